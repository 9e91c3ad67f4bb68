"""Looks at a path that is to be pushed: what it is, whether it is of the release, which files it consists of."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from baselines.artefacts.manifest import BESIDE, FOLDERS, Artefact, File
from builders.common.command import InputError
from builders.common.files import sha256_of
from builders.common.lines import first_character
from builders.common.names import problem_of
from builders.store.judgments import read_negative_ids
from builders.store.layout import MANIFEST, SETS, SPLITS
from builders.store.reader import Release
from builders.store.runs import read_run


@dataclass(frozen=True)
class Found:
    """An artefact on this machine: its entry, and its files as (file, entry)."""

    artefact: Artefact
    files: list[tuple[Path, File]]


def look(path: Path, release: Release, set_name: str) -> Found:
    """What a path is; :class:`InputError` where it is no artefact, or none of this release."""
    if problem := problem_of(path.name):
        raise InputError(problem, path=path)
    if path.is_dir():
        return _embeddings(path, release)
    if not path.is_file():
        raise InputError("there is no such file or directory", path=path)
    return _negatives(path, release, set_name) if _is_jsonl(path) else _run(path, release, set_name)


def _embeddings(path: Path, release: Release) -> Found:
    from baselines.vectors.embeddings import open_vectors

    vectors = open_vectors(path)
    told = vectors.manifest
    vectors.check(told["of"], release, told["config"], told["split"])
    name = f"{FOLDERS['embeddings']}/{path.resolve().name}"
    files = [(path / MANIFEST, _entry(path / MANIFEST, f"{name}/{MANIFEST}"))]
    for chunk in vectors.chunks:  # just compared with these
        files.append((path / chunk["path"], File(f"{name}/{chunk['path']}", chunk["bytes"], chunk["sha256"])))
    model = told["model"]
    commit = f" at {model['commit'][:8]}" if model.get("commit") else ""
    about = {
        "model": f"{model['name']}{commit}",
        "of": f"{told['of']} of {told['config']}/{told['split']}",
        "size": f"{vectors.rows:,} x {vectors.dim:,}",
    }
    of = {f"{told['config']}/{told['split']}": told["fingerprint"]}
    return Found(Artefact(name, "embeddings", [file.path for _, file in files], of, about), files)


def _run(path: Path, release: Release, set_name: str) -> Found:
    found = read_run(path)
    split, of = _of(release, set_name, found.hits, {hit[0] for hits in found.hits.values() for hit in hits}, path)
    depth = max(map(len, found.hits.values()), default=0)
    about = {"of": split, "size": f"{len(found.hits):,} queries, top {depth:,}"}
    name = f"{FOLDERS['run']}/{path.name}"
    files = [(path, _entry(path, name))]
    if (record := path.with_name(f"{path.name}{BESIDE}")).is_file():
        files.append((record, _entry(record, f"{name}{BESIDE}")))
    return Found(Artefact(name, "run", [file.path for _, file in files], of, about), files)


def _negatives(path: Path, release: Release, set_name: str) -> Found:
    rows = read_negative_ids(path)
    passages = {each for _, negatives, _ in rows for each in negatives}
    split, of = _of(release, set_name, {query for query, _, _ in rows}, passages, path)
    about = {"of": split, "size": f"{len(rows):,} queries, {sum(len(each) for _, each, _ in rows):,} negatives"}
    name = f"{FOLDERS['negatives']}/{path.name}"
    return Found(Artefact(name, "negatives", [name], of, about), [(path, _entry(path, name))])


def _is_jsonl(path: Path) -> bool:
    """Whether it is named as JSON lines are; the official predictions, one JSON object, are a run."""
    return ".jsonl" in path.suffixes and first_character(path) == "{"


def _entry(path: Path, name: str) -> File:
    return File(name, path.stat().st_size, sha256_of(path))


def _of(
    release: Release, set_name: str, queries: Collection[str], passages: Collection[str], path: Path
) -> tuple[str, dict[str, str]]:
    """The split whose queries these are, as ``SET SPLIT``, and the fingerprints of what they are of."""
    found = SETS[set_name]
    have = [split for split in SPLITS if (found.queries, split) in release.splits()]
    missing = {split: release.missing(found.queries, split, queries) for split in have}
    split = next((split for split, lacking in missing.items() if not lacking), "")
    if not split:
        lacking = min(missing.values(), key=len, default=sorted(queries))
        raise InputError(f"no split of {found.queries} has all of its queries; {lacking[0]!r} is missing", path=path)
    if lacking := release.missing(found.corpus, "corpus", passages):
        raise InputError(f"{found.corpus} has no passage {lacking[0]!r}", path=path)
    prints = {
        f"{config}/{each}": release.fingerprint(config, each)
        for config, each in ((found.corpus, "corpus"), (found.queries, split))
    }
    return f"{set_name} {split}", prints
