"""Token strings into the files of the ``numba`` engine: bounded memory, the same bytes for every number of threads.

The passages are inverted a chunk at a time, by pyarrow and numpy (which work outside the interpreter's lock); then one
range of the terms after another is merged over all chunks. A term is known by 64 bits of hash: the chance that any two
of ten million share them is 3 in a million.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.compiled import compiled
from builders.core.errors import InputError
from builders.core.jobs import in_threads

Array = npt.NDArray[Any]
CHUNK = 1 << 14  # rows; the sums of a chunk's passages stay in the processor's nearest caches
_RANGES = 64  # ranges of the hashes
_PAIRS = 1 << 16  # as many as 16 bits tell apart
FILES = {
    "terms": np.int64,  # hashes, sorted
    "lists": np.uint32,  # where the lists of each term begin: one for each chunk that holds it
    "chunk": np.uint16,  # the chunk of each list
    "start": np.uint32,  # where the postings of each list begin
    "postings": np.uint32,  # 2 ** 16 times the row within the chunk, plus the index in "pairs"
    "pairs": np.int64,  # 256 times how often a passage holds a term, plus the code of its length; sorted
    "tokens": np.int64,  # passages, passages with a token, tokens of all passages
}
# Passage lengths by code, Lucene's SmallFloat.byte4ToInt: exact below 40, then four significant bits.
LENGTHS = np.array([n if n < 24 else 24 + (n % 8 if n < 32 else (n % 8 + 8) << (n // 8 - 4)) for n in range(256)])


def hashes_of(words: pa.StringArray) -> Array:
    """64 bits for each word."""
    _, ends, data = words.buffers()
    codes = _hashes(np.frombuffer(data or b"", np.uint8), np.frombuffer(ends, np.int32), len(words))
    return np.asarray(codes).view(np.int64)


@compiled
def _hashes(data, ends, words):  # type: ignore[no-untyped-def]
    codes = np.full(words, 0x243F6A8885A308D3, np.uint64)
    for word in range(words):
        for byte in range(ends[word], ends[word + 1]):
            codes[word] = (codes[word] ^ np.uint64(data[byte])) * np.uint64(0x9FB21C651E98DF25)
            codes[word] ^= codes[word] >> np.uint64(32)
    return codes


def _invert(texts: list[str]) -> dict[str, Any]:
    """The postings of one chunk of passages by term, terms by hash."""
    split = pc.split_pattern(pa.array([text or None for text in texts], pa.string()), " ")
    lengths = pc.list_value_length(split).fill_null(0).to_numpy()
    words = split.flatten().dictionary_encode()
    hashes = hashes_of(words.dictionary)
    order = np.argsort(hashes)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    keys = np.sort(rank[words.indices.to_numpy()] * CHUNK + np.repeat(np.arange(len(texts)), lengths))
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    counts, keys = np.diff(first, append=len(keys)), keys[first]
    codes = np.searchsorted(LENGTHS, lengths, side="right") - 1
    pairs = pa.array(counts << 8 | codes[keys % CHUNK]).dictionary_encode()
    starts = np.searchsorted(keys, np.arange(len(order) + 1) * CHUNK)
    cuts = np.searchsorted(hashes[order] >> 58, np.arange(_RANGES + 1) - _RANGES // 2)
    return {
        "hash": hashes[order],
        "size": np.diff(starts),
        "postings": (keys % CHUNK << 16 | pairs.indices.to_numpy()).astype(np.uint32),
        "pairs": pairs.dictionary.to_numpy(),
        "cuts": np.stack([cuts, starts[cuts]], 1),
        "tokens": np.array([len(lengths), np.count_nonzero(lengths), lengths.sum()]),
    }


def _merge(folder: Path, chunks: list[dict[str, Any]], pairs: Array, number_of_range: int) -> dict[str, Any]:
    """One range of the hashes over all chunks; positions count from 0."""

    def read(number: int, name: str, dtype: Any, cut: Array) -> Array:
        offset = int(cut[0]) * np.dtype(dtype).itemsize
        return np.fromfile(folder / f"{name}-{number}.chunk", dtype, int(cut[1] - cut[0]), offset=offset)

    found = []
    for number, chunk in enumerate(chunks):
        lists, cut = chunk["cuts"][number_of_range : number_of_range + 2].T
        hashes, sizes = read(number, "hash", np.int64, lists), read(number, "size", np.int64, lists)
        postings = read(number, "postings", np.uint32, cut)
        indices = np.searchsorted(pairs, chunk["pairs"]).astype(np.uint32)
        postings = postings >> 16 << 16 | indices[postings & 0xFFFF]
        found.append((hashes, sizes, np.full(len(hashes), number), postings))
    hashes, sizes, numbers, postings = map(np.concatenate, zip(*found, strict=True))
    order = np.argsort(hashes, kind="stable")
    terms, first = np.unique(hashes[order], return_index=True)
    begins, sizes = (np.cumsum(sizes) - sizes)[order], sizes[order]
    start = np.cumsum(sizes) - sizes
    take = np.repeat(begins - start, sizes) + np.arange(len(postings))
    return dict(zip(FILES, (terms, first, numbers[order], start, postings[take]), strict=False))


def write_index(folder: Path, texts: Iterable[str], threads: int) -> None:
    """The engine's files from token strings (tokens joined by one space), one of each passage, in the rows' order."""
    chunks, texts = [], iter(texts)
    lists_of_texts = iter(lambda: list(islice(texts, CHUNK)), [])
    for number, chunk in enumerate(in_threads(_invert, lists_of_texts, threads, threads + 1)):
        for name in ("hash", "size", "postings"):
            chunk.pop(name).tofile(folder / f"{name}-{number}.chunk")
        chunks.append(chunk)
    pairs = np.unique(np.concatenate([chunk["pairs"] for chunk in chunks]))
    lists, postings = np.sum([chunk["cuts"][-1] for chunk in chunks], axis=0)
    if len(pairs) > _PAIRS or max(lists, postings) >= 2**32:
        raise InputError(f"{postings} postings, {len(pairs)} pairs of count and length: too many for the numba engine")
    _append(folder, {"pairs": pairs, "tokens": np.sum([chunk["tokens"] for chunk in chunks], axis=0)})
    done = np.zeros(2, np.int64)
    for merged in in_threads(
        lambda number: _merge(folder, chunks, pairs, number), range(_RANGES), threads, threads + 1
    ):
        _append(folder, {**merged, "lists": merged["lists"] + done[0], "start": merged["start"] + done[1]})
        done += len(merged["chunk"]), len(merged["postings"])
    _append(folder, {"lists": done[:1], "start": done[1:]})
    for path in folder.glob("*.chunk"):
        path.unlink()


def _append(folder: Path, values: dict[str, Any]) -> None:
    for name, each in values.items():
        with open(folder / name, "ab") as file:
            each.astype(FILES[name], copy=False).tofile(file)
