"""A release on the hub: its own files, a card with histograms, and a manifest over all of them."""

from __future__ import annotations

from pathlib import Path

from builders.check.files import unlisted_files
from builders.check.release import check
from builders.common.command import InputError
from builders.common.files import sha256_of, write_bytes, write_text
from builders.common.hub import upload
from builders.common.temporary import temporary_folder
from builders.stats.count import Figures
from builders.stats.histograms import draw
from builders.store.card import card
from builders.store.layout import MANIFEST, NAME
from builders.store.manifest import CARD, STATS, describe, read_stats, write_manifest
from builders.store.reader import Release

_FORBIDDEN = (".py", ".lock")  # datasets refuses a repository with a script; locks are leftovers of its cache


def publish(
    release: Release, repo: str, accepted: frozenset[str], *, create: bool, private: bool, tmp: Path | None = None
) -> str:
    """Test a release and upload it in one commit; returns the commit's address.

    Args:
        release: an opened release.
        repo: ORG/NAME.
        accepted: tests of ``check`` whose errors count as warnings.
        create, private: see :func:`builders.common.hub.upload`.
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
        files = stage(release, report.figures, repo, work)
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


def stage(release: Release, figures: Figures, repo: str, work: Path) -> dict[str, tuple[Path, str]]:
    """What is published: path in the repository -> (file, SHA-256). A copy of it is a release again.

    Data and figures are the release's own files; card, histograms and the manifest over all of them are new, in
    ``work``.
    """
    builds, written = release.manifest.builds, read_stats(release.path)
    images = {f"assets/{name}": content for name, content in draw(figures.lengths, figures.positives).items()}
    entries = [
        entry
        for entry in release.manifest.files
        if entry.path not in (CARD, STATS) and not entry.path.startswith("assets/")
    ]
    files = {entry.path: (release.path / entry.path, entry.sha256) for entry in entries}
    for name, content in images.items():
        write_bytes(work / name, content)
        entries.append(describe(work, name))
        files[name] = (work / name, entries[-1].sha256)
    write_text(work / CARD, card(entries, {**written, **figures.stats}, builds, repo=repo, images=sorted(images)))
    if written:
        write_bytes(work / STATS, (release.path / STATS).read_bytes())
    write_manifest(work, entries, builds)
    for name in (CARD, STATS, MANIFEST):
        if (work / name).exists():
            files[name] = (work / name, sha256_of(work / name))
    return files
