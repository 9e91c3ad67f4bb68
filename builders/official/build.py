"""From the official archives to a release: the steps in their order."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from builders.core.errors import InputError, log
from builders.core.folders import work_beside
from builders.core.jobs import process_pool
from builders.core.typed import problem_of
from builders.official.archives import Member, find_members
from builders.official.blocks import OfficialFile, Work
from builders.official.corpus import read_corpus
from builders.official.findings import Skipped
from builders.official.formats import role_of
from builders.official.numbered import NumberedTexts
from builders.official.questions import (
    Split,
    read_question_list,
    read_questions,
    read_training,
    split_named,
    write_split,
)
from builders.official.top50 import read_top50
from builders.store.draft import check_release_output, describe_files, draft_release
from builders.store.layout import SPLITS

SMALL = 32 << 20  # below this many bytes of input starting worker processes costs more than it saves
_BOM = b"\xef\xbb\xbf"


def build_official(archives: list[Path], out: Path, workers: int = 1, skip_bad_lines: bool = False) -> dict[str, Any]:
    """Build the release ``out`` from official archives; returns the content of its ``stats.json``.

    ``skip_bad_lines``: leave lines that their file's format does not allow out, see :class:`.findings.Skipped`.

    Raises:
        InputError: for archives that are damaged, refused, or hold no official file, for a file that is empty, not
            UTF-8 or has a line that its format does not allow, and where ``out`` exists and is not a release.
    """
    out = check_release_output(out)
    with work_beside(out) as folder:
        (folder / "unpacked").mkdir()
        members = find_members(archives, lambda name: role_of(name) is not None, folder / "unpacked")
        files = list(official_files(members))
        workers = workers if sum(file.member.size for file in files) > SMALL else 1
        with (
            draft_release(out, work=folder) as draft,
            process_pool(workers) as processes,
            contextlib.closing(NumberedTexts(folder / "texts")) as texts,
        ):
            work = Work(draft, processes, workers, texts, skipped=Skipped(skip_bad_lines))
            convert(work, files)
            options: dict[str, Any] = {}
            read = {file.name: file.rows for file in files}
            draft.stats["official"] = {"files": read, **work.findings.described()}
            if work.skipped.total:
                work.skipped.write(draft)
                options["skipped_lines"] = work.skipped.total
                draft.stats["official"]["skipped"] = work.skipped.described()
            draft.build = {"verb": "official", "options": options, "sources": _sources(archives, files)}
            work.findings.report()
        return draft.stats


def convert(work: Work, files: list[OfficialFile]) -> None:
    """Write the release's configs."""
    by_role: dict[str, list[OfficialFile]] = defaultdict(list)
    for file in files:
        by_role[file.role].append(file)
    splits = {name: Split(name) for name in SPLITS}
    read_corpus(work, files)  # passage_collection.json, part-00 ..., passage2id.map.json
    for file in [file for file in files if file.role in splits]:  # train.json, dev.json, test1.json ...
        read_questions(work, file, splits[file.role])
    for file in [*by_role["ids"], *by_role["queries"]]:  # q2qid.dev.json, dev.q.format
        read_question_list(work, file, splits[split_named(file)])
    if training := [*by_role["dual"], *by_role["cross"]]:  # dual.train.tsv, cross.train.tsv
        read_training(work, training, splits["train"])
    read_top50(work, files, splits["dev"])  # dev.retrieval.top50.res.tsv, dev.retrieval.top50.res.id_map.tsv
    for split in splits.values():
        if split.questions:
            write_split(work, split)
            log.info("%s: %d questions", split.name, len(split.questions))


def official_files(members: list[Member]) -> Iterator[OfficialFile]:
    """The members as official files, each under a name of its own.

    Raises :class:`InputError` where there is none but a readme or a licence, for two of one name, for an empty one, and
    for one that begins with a byte order mark.
    """
    if all(role_of(member.name) == "document" for member in members):
        raise InputError(
            "no official file; expected passage_collection.json, train.json, dev.json, part-00, dual.train.tsv ..."
        )
    names: set[str] = set()
    for member in members:
        name = member.name if member.name not in names else f"{member.archive.name}/{member.name}"
        if name in names:
            raise InputError(f"a second file {name}", path=member.shown)
        if problem := problem_of(name):  # the manifest and stats.json name it
            raise InputError(problem, path=member.shown)
        names.add(name)
        role = role_of(member.name)
        assert role is not None
        file = OfficialFile(member, name, role)
        if role != "document":
            if not member.size:
                raise InputError("is empty", path=member.shown)
            if member.read(3) == _BOM:
                raise InputError("begins with a byte order mark; the official files have none", path=member.shown)
        yield file


def _sources(archives: list[Path], files: list[OfficialFile]) -> list[dict[str, Any]]:
    """What the manifest names as sources: archives as they are, of a folder its official files."""
    single = [(archive.name, archive) for archive in archives if not archive.is_dir()]
    inside = [(file.name, file.member.path) for file in files if file.member.archive.is_dir()]
    return describe_files([*single, *inside])
