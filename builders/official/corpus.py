"""The passage collection of the official archives, in one pass, and which ids and texts it holds.

A passage's id is the one that the archive gives it: ``paragraph_id`` in the original release, the entry of
``passage2id.map.json`` for its line in the pre-processed one; judgments and predictions use these. Where the archive
gives none (no map, or none that covers the line), it is the text's MD5, which the official ids are. Every id is held
against the MD5 of its text; what differs is counted, shown, and kept as the archive says.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.common.command import InputError, log
from builders.common.jobs import Pool
from builders.official.archives import Member
from builders.official.blocks import parsed
from builders.official.formats import MAP_CUT, ROW_CUT, TSV, Texts, read_map, read_passages, read_tsv, read_wrapped
from builders.official.style import is_wrapped, sniff_lines, sniff_map, sniff_wrapped, wrapped_end
from builders.official.text_pool import Keys, KeyTable, Numbers, as_keys, hex_ids
from builders.store.draft import Draft
from builders.store.layout import CORPUS
from builders.store.table3 import LengthCounter

HEAD = 1 << 20
_TAIL = 1 << 12


@dataclass
class Findings:
    """What does not agree: how often, and the first few."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, what: str, times: int = 1, example: str | None = None) -> None:
        self.counts[what] = self.counts.get(what, 0) + int(times)
        if example is not None and len(shown := self.examples.setdefault(what, [])) < 3:
            shown.append(example)

    def report(self) -> None:
        """Log what was found. That both releases hold the same rows is no disagreement."""
        for what, times in self.counts.items():
            if times:
                level = logging.INFO if what.endswith("came before") else logging.WARNING
                log.log(level, "%s: %s", what, "; ".join([f"{times:,}", *self.examples.get(what, [])]))


@dataclass
class Step:
    """What every step works with: worker processes, and the release being written."""

    draft: Draft
    pool: Pool | None
    workers: int
    findings: Findings = field(default_factory=Findings)


@dataclass
class File:
    """An official file: what it is, and what its copy needs to come out byte for byte (the layout)."""

    member: Member
    name: str
    role: str
    layout: dict[str, Any] = field(default_factory=dict)
    numbers: list[Numbers] = field(default_factory=list)  # for every row, the number of its passage or question
    columns: dict[str, Any] = field(default_factory=dict)  # what else of its rows the copy needs, as Arrow arrays

    @property
    def tail(self) -> bytes:
        with open(self.member.path, "rb") as file:
            file.seek(self.member.offset + max(0, self.member.size - _TAIL))
            return file.read(min(_TAIL, self.member.size))

    def order(self) -> tuple[int, Numbers | None]:
        """Where its rows begin in the release; and all their numbers, unless they stand there one after the other."""
        numbers = np.concatenate(self.numbers) if self.numbers else np.empty(0, np.int32)
        start = int(numbers[0]) if len(numbers) else 0
        plain = np.array_equal(numbers, np.arange(start, start + len(numbers)))
        return start, None if plain else numbers


def id_array(keys: Keys) -> pa.Array:
    """Ids as an Arrow column of 16-byte values."""
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(keys), [None, pa.py_buffer(np.ascontiguousarray(keys))]
    )


class Corpus:
    """The ids of the collection's passages, and the texts whose ids are not their MD5."""

    def __init__(self) -> None:
        self.ids = KeyTable()
        self._renamed = KeyTable()
        self._new_ids: list[Keys] = []
        self._rows: list[npt.NDArray[np.int64]] = []
        self.present = False

    def add(self, ids: Keys, digests: Keys, findings: Findings) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """Take in passages; returns their numbers and which of them are new."""
        self.present = True
        numbers, fresh = self.ids.add(ids)
        other = fresh & (ids != digests).any(axis=1)
        if other.any():
            first = self._renamed.add(digests[other])[1]
            self._new_ids.append(ids[other][first])
            self._rows.append(numbers[other][first].astype(np.int64))
            for new, old in zip(hex_ids(ids[other][:3]), hex_ids(digests[other][:3]), strict=True):
                findings.add("passages whose id is not the MD5 of their text", 0, f"id {new}, MD5 {old}")
            findings.add("passages whose id is not the MD5 of their text", int(other.sum()))
        again = ~fresh
        if again.any():
            findings.add("passages that came before", int(again.sum()))
            wrong = (self.texts(numbers[again], ids[again]) != digests[again]).any(axis=1)
            if wrong.any():
                shown = hex_ids(ids[again][wrong][:1])[0]
                findings.add("passages that came before with another text (the first is kept)", int(wrong.sum()), shown)
        return numbers, fresh

    def _join(self) -> None:
        self._new_ids = [np.concatenate([np.empty((0, 2), np.uint64), *self._new_ids])]
        self._rows = [np.concatenate([np.empty(0, np.int64), *self._rows])]

    def texts(self, numbers: Numbers, ids: Keys) -> Keys:
        """The MD5 of the texts of these passages, of which both number and id are given."""
        self._join()
        rows, result = self._rows[0], ids.copy()
        if len(rows):
            place = np.minimum(np.searchsorted(rows, numbers), len(rows) - 1)
            there = rows[place] == numbers
            result[there] = self._renamed.keys()[place[there]]
        return result

    def id_of(self, digests: Keys) -> Keys:
        """The ids of texts, by their MD5."""
        self._join()
        found, result = self._renamed.find(digests), digests.copy()
        # A text that is there under its MD5 too keeps it.
        there = (found >= 0) & (self.ids.find(digests) < 0)
        result[there] = self._new_ids[0][found[there]]
        return result


class _Writer:
    """Takes in the collection's rows and writes the new ones; one block is compressed while the next one is read."""

    def __init__(self, step: Step, corpus: Corpus) -> None:
        self._step, self._corpus = step, corpus
        self._rows = step.draft.writer("corpus", "corpus")
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._behind: concurrent.futures.Future[None] | None = None
        self.lengths = LengthCounter()

    def take(self, file: File, ids: Keys, column: Texts) -> None:
        numbers, fresh = self._corpus.add(ids, as_keys(column.digests), self._step.findings)
        file.numbers.append(numbers)
        file.layout["rows"] = file.layout.get("rows", 0) + len(numbers)
        texts = column.texts
        if not fresh.all():
            texts, ids = texts.filter(pa.array(fresh)), ids[fresh]
        self.wait()
        self._behind = self._thread.submit(self._write, ids, texts)

    def _write(self, ids: Keys, texts: pa.StringArray) -> None:
        self.lengths.add(pc.utf8_length(texts).to_numpy())
        titles = pa.repeat(pa.scalar(""), len(texts))
        self._rows.write(pa.table([pa.array(hex_ids(ids), pa.string()), titles, texts], schema=CORPUS))

    def wait(self) -> None:
        if self._behind is not None:
            self._behind.result()

    def close(self) -> None:
        self._thread.shutdown()


def read_corpus(step: Step, files: list[File]) -> Corpus:
    """Write ``corpus`` from the collection's files: the original one first, then the parts in order."""
    corpus = Corpus()
    sources = [file for file in files if file.role == "passages"]
    parts = sorted((file for file in files if file.role == "part"), key=lambda file: file.name.rsplit("/", 1)[-1])
    maps = [file for file in files if file.role == "map"]
    if len(maps) > 1:
        raise InputError(f"a second passage2id.map.json; the first is {maps[0].name}", path=maps[1].member.shown)
    ids, named = _read_map(step, maps[0]) if maps else (None, np.empty(0, np.bool_))
    lines = 0
    if sources or parts:
        with contextlib.closing(_Writer(step, corpus)) as writer:
            for file in sources:
                for block in _passages(step, file):
                    writer.take(file, as_keys(block.ids), block.column)
            lines = _read_parts(step, parts, ids, named, writer)
            writer.wait()
        step.draft.stats["collections"]["corpus"] = writer.lengths.summary()
    if ids is not None:
        _check_map(step, maps[0], ids, corpus, parts, lines)
    return corpus


def _read_parts(step: Step, parts: list[File], ids: Keys | None, named: npt.NDArray[np.bool_], writer: _Writer) -> int:
    """The parts' passages under the map's ids; returns how many lines the map was held against."""
    line = 0
    if ids is not None and [part.name[-2:] for part in parts] != [f"{n:02d}" for n in range(len(parts))]:
        log.warning("a part before %s is missing: the map's line numbers cannot be used, MD5s are ids", parts[-1].name)
        ids = None
    for file in parts:
        usual = usual_columns(file)
        for (column,), _, unusual in parsed(file.member, read_tsv, "part", usual, pool=step.pool, workers=step.workers):
            count_unusual(step, file, unusual)
            keys = digests = as_keys(column.digests)
            if ids is not None:
                known = ids[line : line + len(digests)]
                missing = np.ones(len(digests), np.bool_)
                missing[: len(known)] = ~named[line : line + len(digests)]
                keys = digests.copy()
                keys[~missing] = known[~missing[: len(known)]]
                step.findings.add("lines without an entry in passage2id.map.json", int(missing.sum()))
                line += len(keys)
            writer.take(file, keys, column)
    return line


def _passages(step: Step, file: File) -> Any:
    member = file.member
    head, tail = member.read(HEAD), file.tail
    opening = is_wrapped(head)
    if not opening:
        file.layout["style"] = sniff_lines(head, len(head) == member.size)
        return parsed(member, read_passages, pool=step.pool, workers=step.workers)
    end = wrapped_end(tail)
    if end is None or opening.end() + end >= member.size:
        raise InputError('expected passages in {"data": [...]}, whole', path=member.shown)
    file.layout["style"] = sniff_wrapped(head, tail, opening.end(), end)
    span = (opening.end(), member.size - end)
    return parsed(member, read_wrapped, pool=step.pool, workers=step.workers, span=span, pattern=ROW_CUT)


def usual_columns(file: File) -> list[bytes]:
    """What the columns that mean nothing hold in the first line; they come back on export."""
    first = file.member.read(HEAD).split(b"\n", 1)[0]
    layout = TSV[file.role]
    row = first.split(b"\t")
    if first.endswith(b"\r"):
        raise InputError(
            "lines end in CR LF; expected LF alone, as in the official files", path=file.member.shown, line=1
        )
    usual = layout.nothing(row) if len(row) == layout.columns else []
    file.layout["nothing"] = [value.decode(errors="replace") for value in usual]
    return usual


def count_unusual(step: Step, file: File, times: int) -> None:
    if times:
        step.findings.add(f"lines of {file.name} whose unused columns are not as in its first", times)


def _read_map(step: Step, file: File) -> tuple[Keys, npt.NDArray[np.bool_]]:
    """The ids by line number, and for which lines the map names one; shapes (lines, 2) and (lines,)."""
    member = file.member
    head, tail = member.read(HEAD), file.tail
    style = sniff_map(head, tail)
    if head.strip() in (b"{}", b"{ }"):
        raise InputError("is an empty map", path=member.shown)
    if style is None:
        raise InputError('expected one JSON object {"0": passage id, "1": passage id, ...}', path=member.shown)
    file.layout["style"] = style
    numbers, ids = [], []
    span = (len(style["head"]), member.size - len(style["tail"]))
    for block_numbers, block in parsed(
        member, read_map, pool=step.pool, workers=step.workers, span=span, pattern=MAP_CUT
    ):
        numbers.append(np.asarray(block_numbers, np.int64))
        ids.append(as_keys(block))
    lines, keys = np.concatenate(numbers), np.concatenate(ids)
    file.layout["rows"] = len(lines)
    if np.array_equal(lines, np.arange(len(lines))):
        return keys, np.ones(len(keys), np.bool_)
    if len(np.unique(lines)) != len(lines):
        raise InputError("expected every line number once, found one twice", path=member.shown)
    if int(lines.max()) >= 2 * len(lines) + 1000:
        raise InputError(f"names line {lines.max()} with {len(lines):,} entries", path=member.shown)
    step.findings.add("entries of passage2id.map.json out of order", int((np.diff(lines) != 1).sum()))
    placed = np.zeros((int(lines.max()) + 1, 2), np.uint64)
    named = np.zeros(len(placed), np.bool_)
    placed[lines], named[lines] = keys, True
    return placed, named


def _check_map(step: Step, file: File, ids: Keys, corpus: Corpus, parts: list[File], lines: int) -> None:
    if parts and lines and len(ids) > lines:
        step.findings.add("entries of passage2id.map.json for lines that no part holds", len(ids) - lines)
    # The corpus holds the map's ids in its order, unless there were other passages, or none, or too few.
    numbers = corpus.ids.find(ids) if corpus.present else np.full(len(ids), -1, np.int32)
    if not np.array_equal(numbers, np.arange(len(ids))):
        file.columns["id"] = id_array(ids)
