"""A release on the hub: its own files, cards with histograms, eval.yaml, Croissant, a manifest over all of them."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from builders.check.files import unlisted_files
from builders.check.release import check
from builders.common.command import InputError
from builders.common.files import sha256_of, write_bytes, write_text
from builders.common.hub import upload
from builders.common.temporary import temporary_folder
from builders.common.typed import read_json
from builders.publish.croissant import croissant
from builders.publish.pages import eval_yaml, example, scores
from builders.stats.count import Figures
from builders.stats.histograms import draw
from builders.store.card import CHINESE, card, configs_of, is_reading
from builders.store.layout import MANIFEST, NAME
from builders.store.manifest import CARD, CARD_ZH, CROISSANT, STATS, describe, is_published, read_stats, write_manifest
from builders.store.reader import Release
from builders.store.tasks import EVAL, parts_of

_FORBIDDEN = (".py", ".lock")  # datasets refuses a repository with a script; locks are leftovers of its cache


@dataclass(frozen=True)
class Wishes:
    """What the user says of a publication.

    Attributes:
        scores: by part (``dev``, ``cmedqa_test``), what `evaluate --format json` printed, for the card.
        framework: ``evaluation_framework`` of eval.yaml; empty: none.
        date: ``datePublished`` of croissant.json, YYYY-MM-DD; empty: the release's own, else today.
    """

    scores: dict[str, Path] = field(default_factory=dict)
    framework: str = ""
    date: str = ""


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
        create, private: see :func:`builders.common.hub.upload`.
        wishes: what the user says of it.
        tmp: see :func:`builders.stats.survey.survey`.

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

    Data and figures are the release's own files; cards, histograms, eval.yaml, croissant.json and the manifest over
    all of them are new, in ``work``.
    """
    builds, written = release.manifest.builds, read_stats(release.path)
    own = [e for e in release.manifest.files if e.path not in (CARD, STATS) and not is_published(e.path)]
    files = {entry.path: (release.path / entry.path, entry.sha256) for entry in own}
    configs, stats = configs_of(own), {**written, **figures.stats}
    images = {f"assets/{name}": content for name, content in draw(figures.lengths, figures.positives).items()}
    published: dict[str, Any] = {
        "repo": repo,
        "images": sorted(images),
        "example": example(release, configs),
        "scores": scores(release, builds, wishes.scores),
        "split": next((split for name, split in parts_of({*release.splits()}) if name == "main"), ""),
    }
    made = {**images, CARD_ZH: card(own, stats, builds, CHINESE, **published).encode()}
    if benchmark := eval_yaml(configs, is_reading(builds), wishes.framework):
        made[EVAL] = benchmark.encode()
    described = [*own]
    if written:
        write_bytes(work / STATS, (release.path / STATS).read_bytes())
        described.append(describe(work, STATS))
    date = wishes.date or date_of(release)
    made[CROISSANT] = croissant(described, builds, repo, _endpoint(), date).encode()
    entries = [*own]
    for name, content in made.items():
        write_bytes(work / name, content)
        entries.append(describe(work, name))
        files[name] = (work / name, entries[-1].sha256)
    write_text(work / CARD, card(entries, stats, builds, **published))
    write_manifest(work, entries, builds)
    for name in (CARD, STATS, MANIFEST):
        if (work / name).exists():
            files[name] = (work / name, sha256_of(work / name))
    return files


def date_of(release: Release) -> str:
    """The date that a copy of a published release says; today's, in UTC, for one that never was published."""
    if any(entry.path == CROISSANT for entry in release.manifest.files):
        return date_in(release.named(CROISSANT))
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


def date_in(path: Path) -> str:
    """``datePublished`` of a Croissant file, YYYY-MM-DD; :class:`InputError` where it says none."""
    return read_json(path, _Dated).date


class _Dated(msgspec.Struct):
    date: Annotated[str, msgspec.Meta(pattern=r"\A\d{4}-\d{2}-\d{2}\Z")] = msgspec.field(name="datePublished")


def _endpoint() -> str:
    from huggingface_hub import HfApi

    return str(HfApi().endpoint)
