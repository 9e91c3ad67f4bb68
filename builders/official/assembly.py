"""Build a release from the official archives: find and check the files, read them, and write the configs."""

import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from builders.core.errors import InputError, log
from builders.core.file_formats import GZIP, expect_no_archive, expect_utf8
from builders.core.files import BOM
from builders.core.typed import problem_of
from builders.official.blocks import HEAD, Corpus, Lines, Work, open_work
from builders.official.numbered import Keys, as_keys
from builders.official.official_archives import OfficialFile, find_members
from builders.official.official_formats import (
    MAP_CUT,
    ROW_CUT,
    TSV,
    Texts,
    parse_map,
    parse_passages,
    parse_tsv,
    parse_wrapped,
)
from builders.official.questions import (
    Split,
    read_question_list,
    read_questions,
    read_top50,
    read_training,
    write_questions,
)
from builders.sources.source_files import split_of
from builders.store.draft import describe_files
from builders.store.layout import SPLITS

_TAIL = 1 << 12
_MAP = re.compile(rb'(\s*\{\s*)"\d+"(\s*:\s*)"\w*"')
_MAP_END = re.compile(rb"\s*\}\s*\Z")
_WRAP = re.compile(rb'\s*\{\s*"data"\s*:\s*\[\s*')
_WRAP_END = re.compile(rb"\s*\]\s*\}\s*\Z")


def build_from_archives(archives: Sequence[Path], out: Path, skip_bad_lines: bool = False) -> dict[str, Any]:
    """Build the release ``out`` from official archives, and return the content of its ``stats.json``.

    ``skip_bad_lines`` skips lines in a wrong format; see :class:`.blocks.Findings`.

    Raises:
        InputError: an archive is damaged or refused, there is no official file, a file is empty or not UTF-8, a line
            has a wrong format, or ``out`` exists and is not a release.
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
        split = splits[str(split_of(file.name))]
        if not split.by_id:  # unless dev.json or an earlier list has the questions
            read_question_list(work, file, split)
    if training := [*by_role["dual"], *by_role["cross"]]:  # dual.train.tsv, cross.train.tsv
        read_training(work, training, splits["train"])
    read_top50(work, by_role, splits["dev"])  # dev.retrieval.top50.res.tsv, dev.retrieval.top50.res.id_map.tsv
    for split in splits.values():
        write_questions(work, split)
        log.info("%s: %d questions", split.name, len(split.by_id))


def check_files(files: list[OfficialFile]) -> None:
    """Check the names of the official files, and their first bytes.

    Raises :class:`InputError` for an empty list, a repeated or unsafe name, an empty file, a byte order mark, or CR LF.
    """
    if not files:
        raise InputError(
            "--archive has no official file; expected passage_collection.json, train.json, dev.json, part-00 ..."
        )
    names: set[str] = set()
    for file in files:
        if file.name in names:
            raise file.error(f"is a second file with the name {file.name}; give each file once")
        if problem := problem_of(file.name):  # the manifest and stats.json will contain this name
            raise file.error(problem)
        names.add(file.name)
        if not (head := file.read(HEAD)):
            raise file.error("is empty")
        if head.startswith(GZIP):
            raise file.error("is compressed by gzip; decompress the file first")
        expect_no_archive(head, file.shown)
        expect_utf8(head, file.shown)
        if head.startswith(BOM):
            raise file.error("begins with a byte order mark; expected the unchanged official file")
        if file.role in TSV and head.split(b"\n", 1)[0].endswith(b"\r"):
            raise file.error("lines end in CR LF; expected LF, as in the official files", 1)


def read_map(work: Work, files: list[OfficialFile]) -> tuple[npt.NDArray[np.int64], Keys] | None:
    """Return the map's ascending line numbers, shape (n,), and passage ids, shape (n, 2). None if there is no map.

    Raises :class:`InputError` for a second map, and for a file that is not a map.
    """
    if not files:
        return None
    if len(files) > 1:
        raise files[1].error(f"is a second map; the first is {files[0].name}; give one map")
    file = files[0]
    start, end = _MAP.match(file.read(HEAD)), _MAP_END.search(file.read(_TAIL, -_TAIL))
    if start is None or end is None:
        raise file.error('expected one JSON object {"0": passage id, "1": passage id, ...}')
    span = (len(start[1]), file.size - len(end[0]))
    blocks = [found for found, _ in work.parsed(file, parse_map, span=span, cut=MAP_CUT)]
    lines = np.concatenate([np.asarray(numbers, np.int64) for numbers, _ in blocks])
    ids = np.concatenate([as_keys(digests) for _, digests in blocks])
    file.rows = len(lines)
    order = np.argsort(lines, kind="stable")
    work.findings.add("entries of passage2id.map.json out of order", int((np.diff(lines) != 1).sum()))
    if not np.diff(lines[order]).all():
        raise file.error("has a line number twice; expected every line number once")
    return lines[order], ids[order]


def read_corpus(work: Work, by_role: Mapping[str, list[OfficialFile]]) -> None:
    """Write the config ``corpus``, one row for each passage id.

    ``passage_collection.json`` is read first, then the files ``part-00``, ``part-01`` and so on.
    """
    collections = by_role["passages"]
    parts = sorted(by_role["part"], key=lambda file: file.name.rsplit("/", 1)[-1])
    by_line = read_map(work, by_role["map"])
    if not collections and not parts:
        return
    corpus = Corpus(work.draft)

    def write(file: OfficialFile, keys: Keys, block: Texts) -> None:
        new = work.passages.add(keys, as_keys(block.digests), work.findings)
        file.rows = (file.rows or 0) + len(keys)
        corpus.write(keys[new], block.texts.filter(pa.array(new)))

    for file in collections:
        for block, _ in _passages(work, file):
            write(file, as_keys(block.ids), block)
    numbers = [part.name[-2:] for part in parts]
    if by_line is not None and numbers != [f"{n:02d}" for n in range(len(parts))]:
        found = ", ".join(numbers)
        log.warning("ids are MD5s, because the map needs each of the parts 00, 01 ... once; found %s", found)
        by_line = None
    line = 0  # lines of the earlier parts, with skipped lines
    for file in parts:
        for (columns, _), lines in work.parsed(file, functools.partial(parse_tsv, role="part")):
            block = columns["passage"]
            keys = as_keys(block.digests)
            if by_line is not None:
                wanted = line + lines - 1
                nearest = np.minimum(np.searchsorted(by_line[0], wanted), len(by_line[0]) - 1)
                named = by_line[0][nearest] == wanted
                work.findings.add("lines without an entry in passage2id.map.json", int((~named).sum()))
                keys = np.where(named[:, None], by_line[1][nearest], keys)
            write(file, keys, block)
        line += (file.rows or 0) + len(work.findings.skipped.get(file.name, ()))
    if by_line is not None and line:
        beyond = max(0, int(by_line[0][-1]) + 1 - line)
        work.findings.add("entries of passage2id.map.json without a line in the parts", beyond)
    work.draft.stats["collections"]["corpus"] = corpus.lengths.summary()


def _passages(work: Work, file: OfficialFile) -> Iterator[tuple[Texts, Lines]]:
    """Return the blocks of ``passage_collection.json``: JSON lines, or one ``{"data": [...]}``."""
    opening, end = _WRAP.match(file.read(HEAD)), _WRAP_END.search(file.read(_TAIL, -_TAIL))
    if not opening:
        return work.parsed(file, parse_passages)
    if end is None or opening.end() + len(end[0]) >= file.size:
        raise file.error('is cut short or empty; expected passages in {"data": [...]}')
    return work.parsed(file, parse_wrapped, span=(opening.end(), file.size - len(end[0])), cut=ROW_CUT)
