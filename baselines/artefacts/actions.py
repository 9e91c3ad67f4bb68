"""What the actions of the command do: push, list, pull."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import msgspec

from baselines.artefacts.card import card, table
from baselines.artefacts.look import look
from baselines.artefacts.manifest import BESIDE, NAME, Artefact, File, Manifest, read_manifest, with_more
from baselines.hub.fetch import commit_of, fetch
from builders.common.command import InputError, log
from builders.common.files import check_file, fsync_file, real_path, sha256_of, write_text
from builders.common.folders import check_output, key_of, replace_directory, work_beside
from builders.common.hub import clear_errors, commit_in, upload
from builders.common.temporary import temporary_folder
from builders.store.layout import MANIFEST
from builders.store.manifest import CARD
from builders.store.reader import open_release


def push(args: argparse.Namespace) -> None:
    """Look at every path, then put them into the repository, beside what it holds."""
    release = open_release(args.release)
    found = [look(path, release, args.set) for path in args.paths]
    names = [each.artefact.name for each in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"two of them would be {min(twice)}; give one another name")
    commit, earlier = _held(args.repo)
    files = [file for each in found for file in each.files]
    merged = with_more(earlier, [each.artefact for each in found], [entry for _, entry in files])
    with temporary_folder() as work:
        write_text(work / MANIFEST, merged.text())
        write_text(work / CARD, card(merged, args.repo, args.dataset, args.license))
        sent = {entry.path: (path, entry.sha256) for path, entry in files}
        sent |= {name: (work / name, sha256_of(work / name)) for name in (MANIFEST, CARD)}
        address = upload(
            sent,
            args.repo,
            kind="dataset",
            manifest=MANIFEST,
            name=NAME,
            message=f"Artefacts: {', '.join(names)[:200]}",
            create=args.create,
            private=args.private,
            keep={file.path for file in merged.files},
            after=commit,
        )
    print(address)


def _held(repo: str) -> tuple[str, Manifest | None]:
    """The repository's commit, and what it holds; ``("", None)`` where there is none that can be seen."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

    api = HfApi()
    with temporary_folder() as folder, clear_errors(repo, api.endpoint, "dataset"):
        try:
            commit = commit_in(api.repo_info(repo, repo_type="dataset"), repo)
            path = api.hf_hub_download(repo, MANIFEST, repo_type="dataset", revision=commit, local_dir=folder)
        except RepositoryNotFoundError:
            return "", None  # `upload` makes it, or says what is wrong
        except EntryNotFoundError:
            return commit, None
        try:
            return commit, read_manifest(Path(path))
        except InputError as error:
            raise InputError(
                f"{repo} holds something else ({error}); artefacts want a repository of their own"
            ) from None


def listing(args: argparse.Namespace) -> None:
    """Print what the repository holds."""
    commit = commit_of(args.repo, args.revision, "dataset")
    manifest = _manifest(args.repo, commit)
    if args.format == "json":
        print(json.dumps(msgspec.to_builtins(manifest.artefacts), ensure_ascii=False, indent=1))
    else:
        print(table(manifest))


def _manifest(repo: str, commit: str) -> Manifest:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import EntryNotFoundError

    api = HfApi()
    with temporary_folder() as folder, clear_errors(repo, api.endpoint, "dataset", "download"):
        try:
            path = api.hf_hub_download(repo, MANIFEST, repo_type="dataset", revision=commit, local_dir=folder)
        except EntryNotFoundError:
            raise _none_of_ours(repo, f"no {MANIFEST}") from None
        try:
            return read_manifest(Path(path))
        except InputError as error:
            raise _none_of_ours(repo, str(error)) from None


def pull(args: argparse.Namespace) -> None:
    """Fetch one artefact, checked, to the place that the user names."""
    release = open_release(args.release) if args.release else None
    commit = commit_of(args.repo, args.revision, "dataset")
    artefact = _named(_manifest(args.repo, commit), args.name, args.repo)
    log.info("%s of %s at %s", artefact.name, args.repo, commit)
    for place, said in artefact.of.items() if release else ():
        config, _, split = place.partition("/")
        if release and ((config, split) not in release.splits() or release.fingerprint(config, split) != said):
            raise InputError(f"{artefact.name} is of another release: {place} of {release.path} has other bytes")
    folder = artefact.kind == "embeddings"
    out = check_output(args.out, "a directory of embeddings", MANIFEST) if folder else real_path(args.out)
    if not folder:
        check_file(out)
    with work_beside(out, key_of([commit, artefact.name])) as work:  # what was fetched before is there
        fetch(
            args.repo,
            commit,
            work,
            lambda path: _files(path, args.name, args.repo),
            lambda why: _none_of_ours(args.repo, why),
            "dataset",
        )
        if folder:
            from baselines.vectors.embeddings import open_vectors

            open_vectors(work / artefact.name)
            replace_directory(work / artefact.name, out)
        else:
            _replace_files(work, artefact, out)
    print(args.out)


def _replace_files(work: Path, artefact: Artefact, out: Path) -> None:
    """A run after the record of how it was made, so that the record is never another run's for long."""
    for path in sorted(artefact.paths, reverse=True):
        target = out.with_name(f"{out.name}{BESIDE}") if path.endswith(BESIDE) else out
        fsync_file(work / path)
        os.replace(work / path, target)


def _files(path: Path, name: str, repo: str) -> list[File]:
    manifest = read_manifest(path)
    return manifest.files_of(_named(manifest, name, repo))


def _named(manifest: Manifest, name: str, repo: str) -> Artefact:
    for artefact in manifest.artefacts:
        if artefact.name == name:
            return artefact
    have = ", ".join(artefact.name for artefact in manifest.artefacts) or "none"
    raise InputError(f"{repo} has no artefact {name}; it has {have}")


def _none_of_ours(repo: str, why: str) -> InputError:
    return InputError(f"{repo} holds no artefacts that `artefacts push` put there ({why})")


ACTIONS = {"push": push, "list": listing, "pull": pull}
