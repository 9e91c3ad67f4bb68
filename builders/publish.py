"""Publish a release as a dataset repository of the Hugging Face hub, in one commit.

The release must pass `check` and hold nothing that its manifest does not list; no .py and no .lock file ever. Files of
an earlier release that this one has not are deleted in the same commit; so readers find the one or the other, whole.
Run again after an interruption: what the hub has received is not sent again. The token is that of `hf auth login`, or
HF_TOKEN; HF_ENDPOINT names another hub (HF_HUB_DISABLE_XET=1 where that has no xet storage). The repository's card
shows the histograms, too.

example:
  python -m builders publish --release build/sample --repo ORG/NAME --create --private
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from builders.card import card
from builders.check import add_accept, check
from builders.check.files import unlisted_files
from builders.command import InputError, log
from builders.figures import Figures, draw
from builders.files import sha256_of, write_text
from builders.hub import clear_errors, need_hub
from builders.store import MANIFEST, Release, open_release, write_manifest

_REPO = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
_FORBIDDEN = (".py", ".lock")  # datasets refuses a repository with a script; locks are leftovers of its cache
_KEPT = {".gitattributes", "README.md", MANIFEST, "stats.json"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    parser.add_argument("--repo", type=_repo, required=True, metavar="ORG/NAME", help="the dataset repository")
    parser.add_argument(
        "--create", action=argparse.BooleanOptionalAction, default=False, help="make the repository if it is missing"
    )
    parser.add_argument("--private", action="store_true", help="only into a private repository; --create makes one")
    add_accept(parser)


def _repo(text: str) -> str:
    if not _REPO.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected ORG/NAME, found {text}")
    return text


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
        print(upload(files, args.repo, create=args.create, private=args.private))


def _refuse_files(release: Release) -> None:
    listed = [entry["path"] for entry in release.manifest["files"]]
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
    stats_file, builds = release.path / "stats.json", release.manifest["builds"]
    written = json.loads(stats_file.read_text(encoding="utf-8")) if stats_file.exists() else {}
    images = {f"assets/{name}": content for name, content in draw(figures).items()}
    entries = [
        entry
        for entry in release.manifest["files"]
        if entry["path"] not in ("README.md", "stats.json") and not entry["path"].startswith("assets/")
    ]
    files = {entry["path"]: (release.path / entry["path"], entry["sha256"]) for entry in entries}
    for name, content in images.items():
        path = work / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        digest = sha256_of(path)
        entries.append({"path": name, "bytes": len(content), "rows": None, "sha256": digest})
        files[name] = (path, digest)
    write_text(
        work / "README.md", card(entries, {**written, **figures.stats}, builds, repo=repo, images=sorted(images))
    )
    if written:
        (work / "stats.json").write_bytes(stats_file.read_bytes())
    write_manifest(work, entries, builds)
    for name in ("README.md", "stats.json", MANIFEST):
        if (work / name).exists():
            files[name] = (work / name, sha256_of(work / name))
    return files


def upload(files: dict[str, tuple[Path, str]], repo: str, *, create: bool, private: bool) -> str:
    """Make the dataset repository hold ``files``, in one commit; returns the commit's address.

    Raises:
        InputError: the hub refuses the token, the right or the repository, cannot be reached, or still fails after
            the library's retries; ``repo`` is public where ``private``, or holds a ``.py`` file.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api = HfApi()
    with clear_errors(repo, api.endpoint):
        user = api.whoami()["name"]
        info = _repository(api, repo, create=create, private=private)
        there = {sibling.rfilename for sibling in info.siblings or []}
        earlier = _earlier(api, repo, info.sha) & there if MANIFEST in there else set()
        strangers = sorted(there - earlier - set(files) - _KEPT)
        if scripts := [name for name in strangers if name.endswith(".py")]:
            raise InputError(f"{repo} holds {scripts[0]}, with which `datasets` refuses to load it; delete it there")
        if strangers:
            log.warning("%s keeps %d files that are of no release: %s", repo, len(strangers), ", ".join(strangers[:3]))
        operations: list[Any] = [CommitOperationDelete(name) for name in sorted(earlier - set(files) - _KEPT)]
        log.info("%s, as %s: %d files, %d to delete", repo, user, len(files), len(operations))
        for name, (path, digest) in sorted(files.items()):
            operation = CommitOperationAdd(name, str(path))
            operation.upload_info.sha256 = bytes.fromhex(digest)  # known: spares reading everything once more
            operations.append(operation)
        message = f"Release {files[MANIFEST][1][:12]}"
        # Not upload_folder, which makes several commits of a large folder. The parent: nobody's commit is undone.
        commit = api.create_commit(
            repo, operations, commit_message=message, repo_type="dataset", parent_commit=info.sha
        )
    if commit.oid == info.sha:
        log.info("%s holds this release already", repo)
    return str(commit.commit_url)


def _repository(api: Any, repo: str, *, create: bool, private: bool) -> Any:
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        info = api.repo_info(repo, repo_type="dataset")
    except RepositoryNotFoundError:
        if not create:
            raise
        api.create_repo(repo, repo_type="dataset", private=True if private else None)
        log.info("created %s", repo)
        return api.repo_info(repo, repo_type="dataset")
    if private and not info.private:
        raise InputError(f"{repo} is public; make it private in its settings, or leave out --private")
    return info


def _earlier(api: Any, repo: str, revision: str) -> set[str]:
    """The files of the release that the repository holds at ``revision``."""
    with tempfile.TemporaryDirectory(prefix="dureader-publish-") as folder:
        path = api.hf_hub_download(repo, MANIFEST, repo_type="dataset", revision=revision, local_dir=folder)
        try:
            manifest = json.loads(Path(path).read_text(encoding="utf-8"))
            if manifest["name"] != "dureader_retrieval":
                return set()
            return {entry["path"] for entry in manifest["files"]}
        except (ValueError, KeyError, TypeError):
            return set()
