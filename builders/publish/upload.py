"""A release on the hub: its own files, cards with histograms, eval.yaml, a manifest over all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from builders.check.count import Figures
from builders.check.histograms import draw
from builders.check.release import check, unlisted_files
from builders.core.errors import InputError
from builders.core.files import sha256_of, temporary_folder, write_bytes, write_text
from builders.core.hub import upload
from builders.publish.benchmark import eval_yaml
from builders.publish.chinese import chinese_card
from builders.publish.sections import example, scores
from builders.store.card import Published, card, configs_of
from builders.store.card_words import is_reading
from builders.store.layout import MANIFEST, NAME
from builders.store.manifest import CARD, CARD_ZH, STATS, describe, is_published, read_stats, write_manifest
from builders.store.reader import Release
from builders.store.tasks import EVAL, parts_of

_FORBIDDEN = (".py", ".lock")  # datasets refuses a repository with a script; locks are leftovers of its cache


@dataclass(frozen=True)
class Wishes:
    """What the user says of a publication.

    Attributes:
        scores: by part (``dev``, ``cmedqa_test``), what `evaluate --format json` printed, for the card.
        framework: ``evaluation_framework`` of eval.yaml; empty: none.
    """

    scores: dict[str, Path] = field(default_factory=dict)
    framework: str = ""


def publish(
    release: Release,
    repo: str,
    accepted: frozenset[str],
    *,
    create: bool,
    private: bool,
    wishes: Wishes | None = None,
    tmp: Path | None = None,
) -> str:
    """Test a release and upload it in one commit; returns the commit's address.

    Args:
        release: an opened release.
        repo: ORG/NAME.
        accepted: tests of ``check`` whose errors count as warnings.
        create, private: see :func:`builders.core.hub.upload`.
        wishes: what the user says of it.
        tmp: see :func:`builders.check.survey.survey`.

    Raises:
        InputError: the release fails a test, holds what its manifest does not list, or the hub refuses.
    """
    _refuse_files(release)
    report = check(release, accepted, tmp)
    if report.errors:
        first = report.errors[0]
        raise InputError(
            f"fails `check` ({len(report.errors)} findings; {first.test} in {first.where}: {first.what}); run"
            f" `python -m builders check --release {release.path}` for all of them",
            path=release.path,
        )
    with temporary_folder(tmp) as work:
        files = stage(release, report.figures, repo, work, wishes or Wishes())
        message = f"Release {files[MANIFEST][1][:12]}"
        return upload(
            files, repo, kind="dataset", manifest=MANIFEST, name=NAME, message=message, create=create, private=private
        )


def _refuse_files(release: Release) -> None:
    listed = [entry.path for entry in release.manifest.files]
    if found := [name for name in [*listed, *unlisted_files(release)] if name.endswith(_FORBIDDEN)]:
        raise InputError(f"holds {', '.join(found[:3])}; no .py and no .lock file is published", path=release.path)
    if found := unlisted_files(release):
        raise InputError(
            f"holds {', '.join(found[:3])}{', ...' if len(found) > 3 else ''}, which its manifest does not list;"
            " remove it or build the release again",
            path=release.path,
        )


def stage(release: Release, figures: Figures, repo: str, work: Path, wishes: Wishes) -> dict[str, tuple[Path, str]]:
    """What is published: path in the repository -> (file, SHA-256). A copy of it is a release again.

    Data and figures are the release's own files; cards, histograms, eval.yaml and the manifest over all of them
    are new, in ``work``.
    """
    builds, written = release.manifest.builds, read_stats(release.path)
    own = [e for e in release.manifest.files if e.path not in (CARD, STATS) and not is_published(e.path)]
    files = {entry.path: (release.path / entry.path, entry.sha256) for entry in own}
    configs, stats = configs_of(own), {**written, **figures.stats}
    images = {f"assets/{name}": content for name, content in draw(figures.lengths, figures.positives).items()}
    parts = list(parts_of({*release.splits()}))
    published = Published(
        repo,
        sorted(images),
        example(release, configs),
        scores(release, builds, wishes.scores),
        next((split for name, split in parts if name == "main"), ""),
    )
    made = {**images, CARD_ZH: chinese_card(configs, stats, builds, published).encode()}
    if benchmark := eval_yaml(configs, is_reading(builds), wishes.framework):
        made[EVAL] = benchmark.encode()
    if written:
        write_bytes(work / STATS, (release.path / STATS).read_bytes())
    entries = [*own]
    for name, content in made.items():
        write_bytes(work / name, content)
        entries.append(describe(work, name))
        files[name] = (work / name, entries[-1].sha256)
    write_text(work / CARD, card(entries, stats, builds, published))
    write_manifest(work, entries, builds)
    for name in (CARD, STATS, MANIFEST):
        if (work / name).exists():
            files[name] = (work / name, sha256_of(work / name))
    return files
