"""From the official archives to a release: the steps in their order."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from builders.core.errors import InputError, log
from builders.core.typed import problem_of
from builders.official.archives import OfficialFile, find_members
from builders.official.blocks import HEAD, Work, open_work
from builders.official.corpus import read_corpus
from builders.official.formats import TSV
from builders.official.questions import (
    Split,
    read_question_list,
    read_questions,
    read_top50,
    read_training,
    write_questions,
)
from builders.sources.files import split_of
from builders.store.draft import describe_files
from builders.store.layout import SPLITS

_BOM = b"\xef\xbb\xbf"


def build_official(archives: list[Path], out: Path, skip_bad_lines: bool = False) -> dict[str, Any]:
    """Build the release ``out`` from official archives; returns the content of its ``stats.json``.

    ``skip_bad_lines``: skip the lines that their file's format does not allow, see :class:`.blocks.Findings`.

    Raises:
        InputError: for archives that are damaged, refused, or hold no official file, for a file that is empty, not
            UTF-8 or has a line that its format does not allow, and where ``out`` exists and is not a release.
    """
    with open_work(out, skip_bad_lines) as work:
        (work.folder / "unpacked").mkdir()
        files = find_members(archives, work.folder / "unpacked")
        check_files(files)
        convert(work, files)
        draft = work.draft
        options = {"skipped_lines": work.findings.list_skipped(draft)} if work.findings.skipped else {}
        draft.stats["official"] = {"files": {file.name: file.rows for file in files}, **work.findings.described()}
        single = [(archive.name, archive) for archive in archives if not archive.is_dir()]
        inside = [(file.name, file.path) for file in files if file.archive.is_dir()]
        draft.build = {"verb": "official", "options": options, "sources": describe_files([*single, *inside])}
    return draft.stats


def convert(work: Work, files: list[OfficialFile]) -> None:
    """Write the release's configs."""
    by_role: dict[str, list[OfficialFile]] = defaultdict(list)
    for file in files:
        by_role[file.role].append(file)
    splits = {name: Split(name) for name in SPLITS}
    read_corpus(work, by_role)  # passage_collection.json, part-00 ..., passage2id.map.json
    for file in [file for file in files if file.role in splits]:  # train.json, dev.json, test1.json ...
        read_questions(work, file, splits[file.role])
    for file in [*by_role["ids"], *by_role["queries"]]:  # q2qid.dev.json, dev.q.format
        if not (split := splits[str(split_of(file.name))]).by_id:  # the pattern of its role has it
            read_question_list(work, file, split)
    if training := [*by_role["dual"], *by_role["cross"]]:  # dual.train.tsv, cross.train.tsv
        read_training(work, training, splits["train"])
    read_top50(work, by_role, splits["dev"])  # dev.retrieval.top50.res.tsv, dev.retrieval.top50.res.id_map.tsv
    for split in splits.values():
        write_questions(work, split)
        log.info("%s: %d questions", split.name, len(split.by_id))


def check_files(files: list[OfficialFile]) -> None:
    """Check the names of the official files, and their first bytes.

    Raises :class:`InputError` where there is none, for two of one name, for an empty one, and
    for one that begins with a byte order mark or has lines that end in CR LF.
    """
    if not files:
        raise InputError(
            "no official file; expected passage_collection.json, train.json, dev.json, part-00, dual.train.tsv ..."
        )
    names: set[str] = set()
    for file in files:
        if file.name in names:
            raise file.error(f"a second file {file.name}")
        if problem := problem_of(file.name):  # the manifest and stats.json name it
            raise file.error(problem)
        names.add(file.name)
        if not (head := file.read(HEAD)):
            raise file.error("is empty")
        if head.startswith(_BOM):
            raise file.error("begins with a byte order mark; the official files have none")
        if file.role in TSV and head.split(b"\n", 1)[0].endswith(b"\r"):
            raise file.error("lines end in CR LF; expected LF alone, as in the official files", 1)
