"""Copies of the data that others keep on a hub, as releases: rows with their passages, or corpus, queries and qrels.

``zyznull/dureader-retrieval-ranking`` has ``train.jsonl.gz`` and ``dev.jsonl.gz`` in Tevatron's layout (query_id,
query, positive_passages, negative_passages, each passage with docid and text; its loading script says so).
``mteb/DuRetrieval`` has the configs corpus, queries and default (judgments: query-id, corpus-id, score), of a split
dev; ``C-MTEB/DuRetrieval`` has corpus and queries (id, text; its card), ``C-MTEB/DuRetrieval-qrels`` the judgments
(qid, pid, score), all as Parquet. Files are known by their columns: other copies in these layouts are read, too.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders.core.errors import InputError, log
from builders.core.files import read_toml
from builders.core.hub import clear_errors, commit_in, need_hub
from builders.core.typed import problem_of
from builders.official.copy_rows import DATA, kind_of
from builders.official.copy_write import CopyWriter
from builders.official.findings import Findings
from builders.store.draft import check_release_output, describe_files, draft_release
from builders.store.layout import SPLITS
from builders.store.reader import Release, open_release

_PUBLISHED = Path(__file__).parent.parent / "check" / "published.toml"  # the paper's Table 3 and Section 2.2.2


def published(stats: Mapping[str, Any]) -> dict[str, list[int | None]]:
    """By what is counted: the copy's number (None: it has none), and the published one."""
    paper = read_toml(_PUBLISHED)
    found: dict[str, list[int | None]] = {
        "passages": [stats["collections"]["corpus"]["passages"], paper["collections"]["corpus"]["passages"]]
    }
    for split in SPLITS:
        for key, what in (("queries", "queries"), ("positive_passages", "judgments")):
            found[f"{split} {what}"] = [stats["table3"].get(split, {}).get(key), paper["table3"][split][key]]
    return found


def compared(copy: Path, release: Release) -> dict[str, Any]:
    """What copy and release both have, and what one has alone, by the ids of the texts, with an example of each."""
    mine = open_release(copy)
    ids = {each for batch in mine.batches("corpus", "corpus", ["_id"]) for each in batch["_id"].to_pylist()}
    missing = release.missing("corpus", "corpus", ids)
    rest = release.rows("corpus", "corpus") - (len(ids) - len(missing))
    found: dict[str, Any] = {"passages": {"both": len(ids) - len(missing), "copy": len(missing), "release": rest}}
    if missing:
        found["passages"]["copy_example"] = missing[0]
    for split in SPLITS:
        for config, what, columns in (
            ("queries", "queries", ["_id"]),
            ("qrels", "judgments", ["query-id", "corpus-id"]),
        ):
            if {(config, split)} <= {*mine.splits()} & {*release.splits()}:
                ours, theirs = ({*_rows(each, config, split, columns)} for each in (mine, release))
                found[f"{split} {what}"] = _sides(ours, theirs)
    return found


def _rows(release: Release, config: str, split: str, columns: list[str]) -> Iterator[str]:
    for batch in release.batches(config, split, columns):
        yield from map(" ".join, zip(*(batch[column].to_pylist() for column in columns), strict=True))


def _sides(ours: set[str], theirs: set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"both": len(ours & theirs), "copy": len(ours - theirs), "release": len(theirs - ours)}
    for side, alone in (("copy", ours - theirs), ("release", theirs - ours)):
        if alone:
            found[f"{side}_example"] = min(alone)
    return found


def differences_text(copy: Mapping[str, Any]) -> str:
    """Both as aligned text."""
    lines = [f"{'':<18}{'this copy':>12}{'published':>12}{'difference':>12}"]
    for what, (mine, theirs) in copy["published"].items():
        if mine is not None:
            lines.append(f"{what:<18}{mine:>12,}{theirs:>12,}{mine - theirs:>+12,}")
    for what, times in copy["findings"].items():
        lines.append(f"{what}: {times:,}")
    if "release" in copy:
        lines += ["", f"{'':<18}{'in both':>12}{'copy only':>12}{'release only':>14}"]
        for what, sides in copy["release"].items():
            lines.append(f"{what:<18}{sides['both']:>12,}{sides['copy']:>12,}{sides['release']:>14,}")
        for what, sides in copy["release"].items():
            for side in ("copy", "release"):
                if example := sides.get(f"{side}_example"):
                    lines.append(f"{what} of the {side} only, such as {example}")
    return "\n".join(lines)


_REPOSITORY = re.compile(r"([\w.-]{1,96}/[\w.-]{1,96})(?:/(.+))?")
_SPLIT = re.compile(rf"(?:^|[^a-z])({'|'.join(SPLITS)})(?![a-z])")


@dataclass(frozen=True)
class CopyFile:
    """A file of a copy: ``place``, the folder or repository that it is in, empty for a file alone, its name there."""

    path: Path
    place: str
    name: str

    @property
    def shown(self) -> str:
        """How the manifest calls it."""
        return f"{self.place}/{self.name}" if self.place else self.name

    @functools.cached_property
    def kind(self) -> str:
        """See :func:`.copy_rows.kind_of`."""
        return kind_of(self.path, self.name, self.place)

    @property
    def split(self) -> str:
        """What its name says; dev where it says nothing."""
        found = _SPLIT.findall(self.name.lower())
        return found[-1] if found else "dev"


def build_copy(words: Sequence[str], out: Path, against: Release | None = None) -> dict[str, Any]:
    """Build the release ``out`` from copies; returns its ``stats.json``, with the comparison with ``against``.

    Args:
        words: folders, files, or repositories of datasets on a hub: ORG/NAME, or ORG/NAME/PATH for some of its files.
        out: the release directory.
        against: a release that the copy is compared with, by the ids of texts.

    Raises:
        InputError: for a file that is no copy's, a wrong line, judgments of texts that are not there, or where ``out``
            exists and is not a release; what the hub refuses.
    """
    out = check_release_output(out)
    files = [found for word in words for found in _files(word)]
    kinds = {file.kind for file in files}
    if "ranking" in kinds and len(kinds) > 1:
        raise InputError("rows with their passages and separate judgments are two copies; give one of them")
    for kind, example in () if "ranking" in kinds else (("corpus", ""), ("queries", ""), ("qrels", "-qrels")):
        if kind not in kinds:
            keeps = f" (C-MTEB keeps them in a repository of their own, NAME{example})" if example else ""
            raise InputError(f"the copy has no {kind}{keeps}; found {', '.join(sorted(kinds))}", path=words[0])
    with draft_release(out) as draft:
        findings = Findings()
        writer = CopyWriter(draft, findings)
        if "ranking" in kinds:
            for split in SPLITS:
                if of_split := [file.path for file in files if file.split == split]:
                    writer.ranking(split, of_split)
        else:
            by_kind = {kind: [(f.path, f.split) for f in files if f.kind == kind] for kind in kinds}
            writer.tables(by_kind["corpus"], by_kind["queries"], by_kind["qrels"])
        writer.finish()
        draft.stats["copy"] = {**findings.described(), "published": published(draft.stats)}
        draft.build = {
            "verb": "official",
            "options": {"copy": [word if not os.path.exists(word) else Path(word).name for word in words]},
            "sources": describe_files((file.shown, file.path) for file in files),
        }
        findings.report()
    if against is not None:
        draft.stats["copy"]["release"] = compared(out, against)
    return draft.stats


def _files(word: str) -> list[CopyFile]:
    """The data files that a word names, by name; :class:`InputError` where there is none."""
    path = Path(word)
    if path.is_file():
        return [CopyFile(path, "", path.name)]
    if path.is_dir():
        # No hidden folder: what a client of the hub notes down about its downloads.
        found = [p for p in sorted(path.rglob("*")) if p.is_file() and not _hidden(p.relative_to(path))]
        files = {p.relative_to(path).as_posix(): p for p in found if DATA.search(p.name)}
        if not files:
            raise InputError("has no .jsonl, .jsonl.gz or .parquet file", path=path)
        return [CopyFile(file, path.name, name) for name, file in files.items()]
    if match := _REPOSITORY.fullmatch(word):
        return _fetched(match[1], match[2] or "")
    raise InputError("no such file or directory, and no ORG/NAME of a hub", path=word)


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _fetched(repo: str, start: str) -> list[CopyFile]:
    """The data files of a repository below ``start``, by the library's cache: what is there is not fetched again."""
    need_hub()
    from huggingface_hub import HfApi

    api = HfApi()
    with clear_errors(repo, api.endpoint, "dataset", "download"):
        info = api.dataset_info(repo)
        commit = commit_in(info, repo)
        names = sorted(each.rfilename for each in info.siblings or [] if DATA.search(each.rfilename))
        names = [name for name in names if not start or f"{name}/".startswith(f"{start.rstrip('/')}/")]
        if not names:
            raise InputError(f"{repo} has no .jsonl, .jsonl.gz or .parquet file {start}".rstrip())
        if bad := next((problem for name in names if (problem := problem_of(name))), None):
            raise InputError(f"{repo}: the name of a file {bad}")
        log.info("%s at %s: %d files", repo, commit, len(names))
        paths = [Path(api.hf_hub_download(repo, name, repo_type="dataset", revision=commit)) for name in names]
    return [CopyFile(path, repo, name) for name, path in zip(names, paths, strict=True)]
