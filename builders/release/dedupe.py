"""Which passages have come before: decided for millions of them by sorting their ids, part by part.

A shard lists the ids of its passages sorted, with an index by the first byte. The ids are evenly spread, so a part of
the bytes' range is a part of all ids, as small as memory asks for, and every part is a task of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from builders.common.addresses import open_binary

Ints = npt.NDArray[np.int64]
PART_ROWS = 1 << 20  # ids in a part, at most about: 60 MB in the process that sorts them
_ENTRY = np.dtype([("high", ">u8"), ("low", ">u8"), ("place", "<i8")])
_INDEX = np.dtype("<i8")
_BYTES = 256


def write_ids(path: Path, ids: npt.NDArray[np.uint8]) -> tuple[Ints, Ints]:
    """Write the list of a shard's passages, each once.

    Args:
        ids: uint8 array ``[passages, 16]``, in the order of the input, repeats and all.

    Returns:
        where the passages that did not come before stand in ``ids``, in order; and for each of ``ids`` which of these
        it is. The list calls them by their numbers among these.
    """
    count = len(ids)
    high, low = np.ascontiguousarray(ids).view(">u8").reshape(count, 2).T.astype(np.uint64)
    order = np.lexsort((low, high))  # stable: of the same id the first place comes first
    new = np.ones(count, bool)
    new[1:] = (high[order[1:]] != high[order[:-1]]) | (low[order[1:]] != low[order[:-1]])
    firsts = np.sort(order[new])
    first_of = np.empty(count, np.int64)
    first_of[order] = np.searchsorted(firsts, order[new])[np.cumsum(new) - 1]
    entries = np.empty(firsts.size, _ENTRY)
    sorted_firsts = order[new]
    entries["high"], entries["low"], entries["place"] = (
        high[sorted_firsts],
        low[sorted_firsts],
        first_of[sorted_firsts],
    )
    index = np.searchsorted(high[sorted_firsts] >> np.uint64(56), np.arange(_BYTES + 1))
    with open(path, "wb") as file:
        file.write(index.astype(_INDEX).tobytes())
        file.write(entries.tobytes())
    return firsts, first_of


@dataclass(frozen=True)
class Part:
    """The ids whose first byte is from ``low`` to below ``high``, in all ``shards`` (numbers) under ``work``."""

    work: Path
    shards: Sequence[int]
    low: int
    high: int


def parts(work: Path, shards: Sequence[int], passages: int) -> list[Part]:
    """All ids of ``passages`` passages, in parts of about :data:`PART_ROWS`."""
    cuts = np.linspace(0, _BYTES, 1 + min(_BYTES, 1 + passages // PART_ROWS)).astype(int).tolist()
    return [Part(work, shards, low, high) for low, high in pairwise(cuts)]


def count_ids(path: Path) -> int:
    """The number of a shard's passages, by its list."""
    with open_binary(path) as file:
        return int(_read_index(file)[-1])


def _read_index(file: IO[bytes]) -> Ints:
    return np.frombuffer(file.read(_INDEX.itemsize * (_BYTES + 1)), _INDEX)


def find_repeats(part: Part) -> Ints:
    """Every passage of the part that has come before, as (shard << 32) + its number in the shard."""
    found = []
    for shard in part.shards:
        with open_binary(part.work / f"{shard:06d}" / "ids") as file:
            index = _read_index(file)
            first, last = index[part.low], index[part.high]
            file.seek(int(first) * _ENTRY.itemsize, 1)
            entries = np.frombuffer(file.read(int(last - first) * _ENTRY.itemsize), _ENTRY).copy()
        entries["place"] += shard << 32
        found.append(entries)
    entries = np.concatenate(found) if found else np.empty(0, _ENTRY)
    high = entries["high"].astype(np.uint64)
    # Few share their first half with another: the others need no second look.
    order = np.argsort(high)
    same = high[order[1:]] == high[order[:-1]]
    some = order[np.concatenate([same, [False]]) | np.concatenate([[False], same])] if len(order) else order
    high, low, place = high[some], entries["low"][some].astype(np.uint64), entries["place"][some]
    order = np.lexsort((place, low, high))
    again = (high[order[1:]] == high[order[:-1]]) & (low[order[1:]] == low[order[:-1]])
    return np.asarray(place[order[1:][again]])
