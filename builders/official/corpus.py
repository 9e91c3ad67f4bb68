"""The passages of the official archives: ``passage_collection.json``, or ``part-00`` to ``part-03`` with their ids.

``passage2id.map.json`` of the pre-processed release has the ids of the parts' lines, counted over all parts from 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.errors import InputError, log
from builders.official.blocks import OfficialFile, Work
from builders.official.formats import (
    MAP_CUT,
    ROW_CUT,
    IdsAndTexts,
    TextColumn,
    parse_map,
    parse_passages,
    parse_wrapped,
)
from builders.official.numbered import Keys, as_keys, hex_ids
from builders.store.layout import CORPUS
from builders.store.table3 import LengthCounter
from builders.store.writer import SplitWriter

_START = re.compile(rb'(\s*\{\s*)"\d+"(\s*:\s*)"\w*"')
_END = re.compile(rb"\s*\}\s*\Z")


@dataclass(frozen=True)
class PassageMap:
    """The ids by line (lines, 2), and for which lines the map has one (lines,)."""

    ids: Keys
    named: npt.NDArray[np.bool_]

    def at(self, lines: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.bool_], Keys]:
        """Which of some lines have an id, and their ids; shapes (lines,) and (lines, 2)."""
        named, ids = np.zeros(len(lines), np.bool_), np.zeros((len(lines), 2), np.uint64)
        inside = lines < len(self.ids)
        named[inside], ids[inside] = self.named[lines[inside]], self.ids[lines[inside]]
        return named, ids


def read_map(work: Work, files: list[OfficialFile]) -> PassageMap | None:
    """The map, where the archives have one; an :class:`InputError` for a second one and for what is no such map."""
    if not files:
        return None
    if len(files) > 1:
        raise InputError(f"a second passage2id.map.json; the first is {files[0].name}", path=files[1].member.shown)
    file = files[0]
    lines, ids = _entries(work, file)
    file.rows = len(lines)
    if np.array_equal(lines, np.arange(len(lines))):
        return PassageMap(ids, np.ones(len(ids), np.bool_))
    if len(np.unique(lines)) != len(lines):
        raise InputError("expected every line number once, found one twice", path=file.member.shown)
    if int(lines.max()) >= 2 * len(lines) + 1000:
        raise InputError(f"names line {lines.max()} with {len(lines):,} entries", path=file.member.shown)
    work.findings.add("entries of passage2id.map.json out of order", int((np.diff(lines) != 1).sum()))
    by_line = np.zeros((int(lines.max()) + 1, 2), np.uint64)
    named = np.zeros(len(by_line), np.bool_)
    by_line[lines], named[lines] = ids, True
    return PassageMap(by_line, named)


def _entries(work: Work, file: OfficialFile) -> tuple[npt.NDArray[np.int64], Keys]:
    """Line numbers and ids in the order of the file."""
    start, end = _START.match(file.head), _END.search(file.tail)
    if file.head.strip() in (b"{}", b"{ }"):
        raise InputError("is an empty map", path=file.member.shown)
    if start is None or end is None:
        raise InputError('expected one JSON object {"0": passage id, "1": passage id, ...}', path=file.member.shown)
    span = (len(start[1]), file.member.size - len(end[0]))
    blocks = [
        (np.asarray(numbers, np.int64), as_keys(ids))
        for numbers, ids in work.blocks(file, parse_map, span=span, cut=MAP_CUT)
    ]
    numbers, ids = zip(*blocks, strict=True)
    return np.concatenate(numbers), np.concatenate(ids)


def check_map(work: Work, ids: PassageMap, lines: int) -> None:
    """Count the entries beyond the ``lines`` lines that the parts have (0: the map was compared with no part)."""
    if lines and len(ids.ids) > lines:
        work.findings.add("entries of passage2id.map.json for lines that no part holds", len(ids.ids) - lines)


_WRAP = re.compile(rb'\s*\{\s*"data"\s*:\s*\[\s*')
_WRAP_END = re.compile(rb"\s*\]\s*\}\s*\Z")


def read_corpus(work: Work, files: list[OfficialFile]) -> None:
    """Write the config ``corpus``: the original release's passages first, then the parts' in order, each id once."""
    collections = [file for file in files if file.role == "passages"]
    parts = sorted((file for file in files if file.role == "part"), key=lambda file: file.name.rsplit("/", 1)[-1])
    ids = read_map(work, [file for file in files if file.role == "map"])
    lines = 0
    if collections or parts:
        corpus = _Corpus(work)
        for file in collections:
            for block in _passages(work, file):
                corpus.take(file, as_keys(block.ids), block.column)
        lines = _read_parts(work, parts, ids, corpus)
        work.draft.stats["collections"]["corpus"] = corpus.lengths.summary()
    if ids is not None:
        check_map(work, ids, lines)


class _Corpus:
    """The corpus being written."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._rows: SplitWriter = work.draft.writer("corpus", "corpus")
        self.lengths = LengthCounter()

    def take(self, file: OfficialFile, ids: Keys, column: TextColumn) -> None:
        """Take in a block of a file's passages: those whose ids are new are written."""
        new = self._work.passages.add(ids, as_keys(column.digests), self._work.findings)
        file.rows = (file.rows or 0) + len(ids)
        texts = column.texts.filter(pa.array(new))
        self.lengths.add(pc.utf8_length(texts).to_numpy())
        titles = pa.repeat(pa.scalar(""), len(texts))
        self._rows.write(pa.table([pa.array(hex_ids(ids[new]), pa.string()), titles, texts], schema=CORPUS))


def _passages(work: Work, file: OfficialFile) -> Iterator[IdsAndTexts]:
    """The blocks of ``passage_collection.json``: JSON lines, or one ``{"data": [...]}``."""
    member, opening = file.member, _WRAP.match(file.head)
    if not opening:
        work.head(file, parse_passages)
        return work.blocks(file, parse_passages)
    end = _WRAP_END.search(file.tail)
    if end is None or opening.end() + len(end[0]) >= member.size:
        raise InputError('expected passages in {"data": [...]}, whole', path=member.shown)
    return work.blocks(file, parse_wrapped, span=(opening.end(), member.size - len(end[0])), cut=ROW_CUT)


def _read_parts(work: Work, parts: list[OfficialFile], ids: PassageMap | None, corpus: _Corpus) -> int:
    """The parts' passages under the map's ids; returns how many lines the map was held against."""
    if ids is not None and [part.name[-2:] for part in parts] != [f"{n:02d}" for n in range(len(parts))]:
        log.warning("a part before %s is missing: the map's line numbers cannot be used, MD5s are ids", parts[-1].name)
        ids = None
    line = 0  # over all parts; a line that is skipped keeps its number
    for file in parts:
        for block in work.tsv_blocks(file):
            column = block.columns["passage"]
            keys = as_keys(column.digests)
            if ids is not None:
                named, known = ids.at(line + block.lines - 1)
                work.findings.add("lines without an entry in passage2id.map.json", int((~named).sum()))
                keys = np.where(named[:, None], known, keys)
            corpus.take(file, keys, column)
        if ids is not None:
            line += (file.rows or 0) + len(work.skipped.lines.get(file.name, ()))
    return line
