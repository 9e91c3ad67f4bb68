"""Publish a release as a dataset of the Hugging Face hub.

It is published in one commit. The release must pass `check` and hold nothing that its manifest does not list; no .py
and no .lock file ever. Files of an earlier release that this one has not are deleted in the same commit; so readers
find the one or the other, whole. Run again after an interruption: what the hub has received is not sent again. The
token is that of `hf auth login`, or HF_TOKEN; HF_ENDPOINT names another hub (HF_HUB_DISABLE_XET=1 where that has no xet
storage). The repository's card shows the histograms, too.

example:
  python -m builders publish --release build/sample --repo ORG/NAME --create --private
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from builders.check import add_accept, check
from builders.check.files import unlisted_files
from builders.common.command import InputError
from builders.common.files import sha256_of, write_bytes, write_text
from builders.common.hub import add_repository, need_hub, upload
from builders.stats.count import Figures
from builders.stats.histograms import draw
from builders.store.card import card
from builders.store.layout import MANIFEST, NAME
from builders.store.manifest import CARD, STATS, describe, read_stats, write_manifest
from builders.store.reader import Release, open_release

_FORBIDDEN = (".py", ".lock")  # datasets refuses a repository with a script; locks are leftovers of its cache


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    add_repository(parser, "dataset")
    add_accept(parser)


def run(args: argparse.Namespace) -> None:
    need_hub()
    release = open_release(args.release)
    _refuse_files(release)
    report = check(release, frozenset(args.accept))
    if report.errors:
        first = report.errors[0]
        raise InputError(
            f"fails `check` ({len(report.errors)} findings; {first.test} in {first.where}: {first.what}); run"
            f" `python -m builders check --release {args.release}` for all of them",
            path=args.release,
        )
    with tempfile.TemporaryDirectory(prefix="dureader-publish-") as work:
        files = stage(release, report.figures, args.repo, Path(work))
        print(
            upload(
                files,
                args.repo,
                kind="dataset",
                manifest=MANIFEST,
                name=NAME,
                message=f"Release {files[MANIFEST][1][:12]}",
                create=args.create,
                private=args.private,
            )
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
