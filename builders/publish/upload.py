"""A release on the hub: its own files, cards with histograms, eval.yaml, a manifest over all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builders.check.count import Figures
from builders.check.histograms import draw
from builders.check.release import check, unlisted_files
from builders.core.cache import describe
from builders.core.errors import InputError
from builders.core.files import sha256_of, temporary_folder, write_bytes, write_text
from builders.core.hub import upload
from builders.publish.pages import eval_yaml, example, scores_table
from builders.store.card import CHINESE, card, configs_of, is_reading
from builders.store.layout import MANIFEST, NAME, parts_of
from builders.store.manifest import CARD, CARD_ZH, EVAL, STATS, is_published, read_stats, write_manifest
from builders.store.reader import Release

_FORBIDDEN = (".py", ".lock")  # datasets refuses a repository with a script; locks are leftovers of its cache


def publish(
    release: Release,
    repo: str,
    *,
    create: bool,
    private: bool,
    accepted: frozenset[str] = frozenset(),
    scores: dict[str, Path] | None = None,
    framework: str = "",
    tmp: Path | None = None,
) -> str:
    """Test a release and upload it in one commit; returns the commit's address.

    Args:
        release: an opened release.
        repo: ORG/NAME.
        create, private: see :func:`builders.core.hub.upload`.
        accepted: tests of ``check`` whose errors count as warnings.
        scores, framework: see :func:`stage`.
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
        files = stage(release, report.figures, repo, work, scores or {}, framework)
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


def stage(
    release: Release, figures: Figures, repo: str, work: Path, scores: dict[str, Path], framework: str
) -> dict[str, tuple[Path, str]]:
    """Return what is published: path in the repository -> (file, SHA-256). A copy of it is a release again.

    Data and figures are the release's own files. Cards, histograms, eval.yaml and the manifest over all of them are
    new, in ``work``.

    Args:
        release, figures: the release, and its figures as they were counted now.
        repo: ORG/NAME.
        work: a folder for the new files.
        scores: by part (``dev``, ``cmedqa_test``), what `evaluate --format json` printed, for the cards.
        framework: ``evaluation_framework`` of eval.yaml; empty: none.
    """
    builds, written = release.manifest.builds, read_stats(release.path)
    own = [e for e in release.manifest.files if e.path not in (CARD, STATS) and not is_published(e.path)]
    configs, stats = configs_of(own), {**written, **figures.stats}
    made = {f"assets/{name}": content for name, content in draw(figures.lengths, figures.positives).items()}
    published: dict[str, Any] = {
        "repo": repo,
        "images": sorted(made),
        "example": example(release, configs),
        "scores": scores_table(release, builds, scores),
        "split": next((split for name, split in parts_of({*release.splits()}) if name == "main"), ""),
    }
    made[CARD_ZH] = card(own, stats, builds, CHINESE, **published).encode()
    if benchmark := eval_yaml(configs, is_reading(builds), framework):
        made[EVAL] = benchmark.encode()
    for name, content in made.items():
        write_bytes(work / name, content)
    entries = [*own, *(describe(work, name) for name in made)]
    write_text(work / CARD, card(entries, stats, builds, **published))
    if written:
        write_bytes(work / STATS, (release.path / STATS).read_bytes())
    write_manifest(work, entries, builds)
    new = [name for name in (*made, CARD, STATS, MANIFEST) if (work / name).exists()]
    return {e.path: (release.path / e.path, e.sha256) for e in own} | {
        name: (work / name, sha256_of(work / name)) for name in new
    }
