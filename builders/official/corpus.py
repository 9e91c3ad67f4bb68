"""The passages of the official archives: ``passage_collection.json``, or ``part-00`` to ``part-03`` with their ids.

``passage2id.map.json`` of the pre-processed release has the ids of the parts' lines, counted over all parts from 0.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from builders.core.errors import log
from builders.official.archives import OfficialFile
from builders.official.blocks import HEAD, Corpus, Lines, Work
from builders.official.formats import MAP_CUT, ROW_CUT, Texts, parse_map, parse_passages, parse_tsv, parse_wrapped
from builders.official.numbered import Keys, as_keys

_TAIL = 1 << 12
_MAP = re.compile(rb'(\s*\{\s*)"\d+"(\s*:\s*)"\w*"')
_MAP_END = re.compile(rb"\s*\}\s*\Z")
_WRAP = re.compile(rb'\s*\{\s*"data"\s*:\s*\[\s*')
_WRAP_END = re.compile(rb"\s*\]\s*\}\s*\Z")


def read_map(work: Work, files: list[OfficialFile]) -> tuple[npt.NDArray[np.int64], Keys] | None:
    """Return the map's line numbers, rising, shape (lines,), and passage ids, shape (lines, 2); None without a map.

    Raises :class:`InputError` for a second map and for a file that is none.
    """
    if not files:
        return None
    if len(files) > 1:
        raise files[1].error(f"a second passage2id.map.json; the first is {files[0].name}")
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
        raise file.error("expected every line number once, found one twice")
    return lines[order], ids[order]


def read_corpus(work: Work, by_role: Mapping[str, list[OfficialFile]]) -> None:
    """Write the config ``corpus``: the original release's passages first, then the parts' in order, each id once."""
    collections = by_role["passages"]
    parts = sorted(by_role["part"], key=lambda file: file.name.rsplit("/", 1)[-1])
    by_line = read_map(work, by_role["map"])
    if not collections and not parts:
        return
    corpus = Corpus(work.draft)

    def write(file: OfficialFile, keys: Keys, block: Texts) -> None:
        """Write the passages of a block whose ids are new."""
        new = work.passages.add(keys, as_keys(block.digests), work.findings)
        file.rows = (file.rows or 0) + len(keys)
        corpus.write(keys[new], block.texts.filter(pa.array(new)))

    for file in collections:
        for block, _ in _passages(work, file):
            write(file, as_keys(block.ids), block)
    if by_line is not None and [part.name[-2:] for part in parts] != [f"{n:02d}" for n in range(len(parts))]:
        log.warning("a part before %s is missing: the map's line numbers cannot be used, MD5s are ids", parts[-1].name)
        by_line = None
    line = 0  # over all parts; a line that is skipped keeps its number
    for file in parts:
        for (columns, _), lines in work.parsed(file, functools.partial(parse_tsv, role="part")):
            block = columns["passage"]
            keys = as_keys(block.digests)
            if by_line is not None:
                wanted = line + lines[: len(keys)] - 1
                nearest = np.minimum(np.searchsorted(by_line[0], wanted), len(by_line[0]) - 1)
                named = by_line[0][nearest] == wanted
                work.findings.add("lines without an entry in passage2id.map.json", int((~named).sum()))
                keys = np.where(named[:, None], by_line[1][nearest], keys)
            write(file, keys, block)
        line += (file.rows or 0) + len(work.findings.skipped.get(file.name, ()))
    if by_line is not None and line:
        beyond = max(0, int(by_line[0][-1]) + 1 - line)
        work.findings.add("entries of passage2id.map.json for lines that no part holds", beyond)
    work.draft.stats["collections"]["corpus"] = corpus.lengths.summary()


def _passages(work: Work, file: OfficialFile) -> Iterator[tuple[Texts, Lines]]:
    """Return the blocks of ``passage_collection.json``: JSON lines, or one ``{"data": [...]}``."""
    opening, end = _WRAP.match(file.read(HEAD)), _WRAP_END.search(file.read(_TAIL, -_TAIL))
    if not opening:
        return work.parsed(file, parse_passages)
    if end is None or opening.end() + len(end[0]) >= file.size:
        raise file.error('expected passages in {"data": [...]}, whole')
    return work.parsed(file, parse_wrapped, span=(opening.end(), file.size - len(end[0])), cut=ROW_CUT)
