"""The passage collection of the official archives: ``passage_collection.json``, or ``part-00`` to ``part-03``."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from builders.common.command import InputError, log
from builders.official.formats import ROW_CUT, IdsAndTexts, TextColumn, parse_passages, parse_wrapped
from builders.official.numbered import Keys, as_keys, hex_ids
from builders.official.passage_map import PassageMap, check_map, read_map
from builders.official.work import OfficialFile, Work
from builders.store.draft import SplitWriter
from builders.store.layout import CORPUS
from builders.store.table3 import LengthCounter

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
