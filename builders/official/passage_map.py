"""``passage2id.map.json`` of the pre-processed release: the ids of the parts' lines, counted over all parts from 0."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from builders.common.command import InputError
from builders.official.formats import MAP_CUT, parse_map
from builders.official.numbered import Keys, as_keys
from builders.official.work import OfficialFile, Work

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
