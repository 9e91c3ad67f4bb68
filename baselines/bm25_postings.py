"""Token strings into the files of the ``numba`` engine: bounded memory, the same bytes for every number of threads.

A term is known by 64 bits of hash (the chance that any two of ten million terms share them is 3 in a million). The
passages are inverted a chunk of 2 ** 16 rows at a time; then one range of the hashes after another is merged over all
chunks. A posting is the low 16 bits of its row, one byte of term count and one of passage length (stored here: to look
it up by row would miss the processor's cache); at most 128 of one term and one chunk make a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numba
import numpy as np

from baselines.threads import in_order
from builders.command import InputError

CHUNK = 1 << 16
BLOCK = 128
MANY = 255  # term counts from here on stand in the file "many"
_PARTS = 64  # ranges of the hashes
FILES = {
    "terms": np.uint64,  # hashes, sorted
    "blocks": np.uint32,  # where the blocks of each term begin
    "first": np.uint32,  # the first row of each block
    "start": np.uint32,  # where the postings of each block begin
    "low": np.uint16,  # the low bits of each posting's row
    "code": np.uint16,  # 256 times how often the passage holds the term (at most MANY), plus its length's code
    "many_at": np.int64,  # the postings with a count of MANY
    "many": np.int64,  # their counts
    "tokens": np.int64,  # passages, passages with a token, tokens of all passages
}
# Passage lengths by code, Lucene's SmallFloat.byte4ToInt: exact below 40, then four significant bits.
LENGTHS = np.array([n if n < 24 else 24 + (n % 8 if n < 32 else (n % 8 + 8) << (n // 8 - 4)) for n in range(256)])
_SEED, _FACTOR, _SHIFT = np.uint64(0x243F6A8885A308D3), np.uint64(0x9FB21C651E98DF25), np.uint64(32)


@numba.njit(cache=True, nogil=True)
def hash_of(data, start, end):  # type: ignore[no-untyped-def]
    """64 bits of ``data[start:end]`` (UTF-8)."""
    code = _SEED
    for place in range(start, end):
        code = (code ^ np.uint64(data[place])) * _FACTOR
        code ^= code >> _SHIFT
    return code


@numba.njit(cache=True, nogil=True)
def _slot(slots, hashes, code):  # type: ignore[no-untyped-def]
    """Where the term of a hash stands in an open-addressing table of term numbers, or may be put."""
    slot = np.int64(code & np.uint64(len(slots) - 1))
    while slots[slot] >= 0 and hashes[slots[slot]] != code:
        slot = (slot + 1) & (len(slots) - 1)
    return slot


@numba.njit(cache=True, nogil=True)
def _number(data, rows, tokens):  # type: ignore[no-untyped-def]
    """Lines of tokens into term numbers: those of the tokens, the terms' hashes and passages, the lines' lengths."""
    numbers, lengths = np.empty(tokens, np.int32), np.zeros(rows, np.int64)
    slots, terms = np.full(1 << 16, -1, np.int32), 0
    hashes, holders, last = np.empty(1 << 15, np.uint64), np.zeros(1 << 15, np.int64), np.empty(1 << 15, np.int32)
    token = row = start = 0
    for end in range(len(data)):
        if data[end] != 32 and data[end] != 10:
            continue
        if end > start:
            code = hash_of(data, start, end)
            slot = _slot(slots, hashes, code)
            if slots[slot] < 0:
                if terms == len(hashes):  # the table is half full
                    hashes, last = np.append(hashes, hashes), np.append(last, last)
                    holders = np.append(holders, 0 * holders)
                    slots = np.full(4 * terms, -1, np.int32)
                    for number in range(terms):
                        slots[_slot(slots, hashes, hashes[number])] = number
                    slot = _slot(slots, hashes, code)
                slots[slot], hashes[terms], last[terms] = terms, code, -1
                terms += 1
            number = slots[slot]
            holders[number] += last[number] != row
            last[number] = row
            numbers[token] = number
            token += 1
            lengths[row] += 1
        start = end + 1
        row += data[end] == 10
    return numbers[:token], hashes[:terms], holders[:terms], lengths


@numba.njit(cache=True, nogil=True)
def _scatter(numbers, lengths, place):  # type: ignore[no-untyped-def]
    """Low bits of the row and count of every posting, by term: ``place`` is where each term number's begin."""
    low, count = np.empty(len(numbers), np.uint16), np.zeros(len(numbers), np.int32)
    after, size = place.copy(), 0
    row, left = -1, 0
    for number in numbers:
        while left == 0:
            row += 1
            left = lengths[row]
        left -= 1
        at = after[number]
        if at == place[number] or low[at - 1] != row:
            low[at] = row
            at += 1
            after[number] = at
            size += 1
        count[at - 1] += 1
    return low[:size], count[:size]


def _invert(texts: list[str]) -> dict[str, Any]:
    """The postings of one chunk of passages, by term hash."""
    data = np.frombuffer("\n".join([*texts, ""]).encode(), np.uint8)
    separators = int(np.count_nonzero((data == 32) | (data == 10)))
    numbers, hashes, holders, lengths = _number(data, len(texts), separators)
    order = np.argsort(hashes)
    ends = np.cumsum(holders[order])
    place = np.empty(len(hashes), np.int64)
    place[order] = ends - holders[order]
    low, count = _scatter(numbers, lengths, place)
    many = np.flatnonzero(count >= MANY)
    codes = (np.searchsorted(LENGTHS, lengths, side="right") - 1).astype(np.uint16)
    return {
        "hashes": hashes[order],
        "ends": np.concatenate([np.zeros(1, np.int64), ends]),
        "low": low,
        "code": np.minimum(count, MANY).astype(np.uint16) << np.uint16(8) | codes[low],
        "many_at": many,
        "many": count[many].astype(np.int64),
        "tokens": np.array([len(lengths), np.count_nonzero(lengths), lengths.sum()]),
    }


@numba.njit(cache=True, nogil=True)
def _lay(order, hashes, chunks, starts, low, code, many_at):  # type: ignore[no-untyped-def]
    """Entries (a term in a chunk each) in ``order`` into blocks; starts of the blocks and of the terms count from 0."""
    entries, size = len(order), len(low)
    terms, blocks = np.empty(entries, np.uint64), np.empty(entries, np.int64)
    first, start = np.empty(entries + size // BLOCK, np.uint32), np.empty(entries + size // BLOCK, np.int64)
    new_low, new_code, new_at = np.empty_like(low), np.empty_like(code), np.empty_like(many_at)
    term = block = at = 0
    for entry in order:
        if term == 0 or terms[term - 1] != hashes[entry]:
            terms[term], blocks[term] = hashes[entry], block
            term += 1
        for source in range(starts[entry], starts[entry + 1]):
            if (source - starts[entry]) % BLOCK == 0:
                first[block], start[block] = chunks[entry] * CHUNK + low[source], at
                block += 1
            new_low[at], new_code[at] = low[source], code[source]
            if code[source] >> 8 == MANY:
                new_at[np.searchsorted(many_at, source)] = at
            at += 1
    return terms[:term], blocks[:term], first[:block], start[:block], new_low, new_code, new_at


def _merge(chunks: list[dict[str, Any]], part: int) -> dict[str, Any]:
    """One range of the hashes over all chunks."""
    step = 2**64 // _PARTS
    limits = np.array([part * step, (part + 1) * step - 1], np.uint64)
    entries = [
        (int(np.searchsorted(chunk["hashes"], limits[0])), int(np.searchsorted(chunk["hashes"], limits[1], "right")))
        for chunk in chunks
    ]
    postings = [(int(c["ends"][a]), int(c["ends"][b])) for c, (a, b) in zip(chunks, entries, strict=True)]
    begin = np.concatenate([[0], np.cumsum([b - a for a, b in postings])])
    joined: dict[str, list[Any]] = {"hashes": [], "starts": [], "low": [], "code": [], "many_at": [], "many": []}
    for chunk, (a, b), (low, high), shift in zip(chunks, entries, postings, begin, strict=False):
        joined["hashes"].append(chunk["hashes"][a:b])
        joined["starts"].append(chunk["ends"][a:b] - low + shift)
        joined["low"].append(chunk["low"][low:high])
        joined["code"].append(chunk["code"][low:high])
        many = slice(*np.searchsorted(chunk["many_at"], [low, high]))
        joined["many_at"].append(chunk["many_at"][many] - low + shift)
        joined["many"].append(chunk["many"][many])
    joined["starts"].append(begin[-1:])
    whole = {name: np.concatenate(parts) for name, parts in joined.items()}
    numbers = np.repeat(np.arange(len(chunks)), [b - a for a, b in entries])
    order = np.argsort(whole["hashes"], kind="stable")
    names = ("terms", "blocks", "first", "start", "low", "code", "many_at")
    laid = _lay(order, whole["hashes"], numbers, whole["starts"], whole["low"], whole["code"], whole["many_at"])
    found = dict(zip(names, laid, strict=True))
    by_place = np.argsort(found["many_at"])
    return {**found, "many_at": found["many_at"][by_place], "many": whole["many"][by_place]}


def write_postings(folder: Path, texts: Iterable[str], threads: int) -> None:
    """The engine's files from token strings (tokens joined by one space), one of each passage, in the rows' order."""
    chunks: list[dict[str, Any]] = []
    totals = np.zeros(3, np.int64)
    for number, chunk in enumerate(in_order(_invert, _lists(iter(texts)), threads, threads)):
        totals += chunk.pop("tokens")
        for name, values in chunk.items():
            np.save(folder / f"chunk-{number:05d}.{name}.npy", values)
        chunks.append({name: np.load(folder / f"chunk-{number:05d}.{name}.npy", mmap_mode="r") for name in chunk})
    totals.tofile(folder / "tokens")
    files = {name: open(folder / name, "wb") for name in FILES if name != "tokens"}  # noqa: SIM115
    postings = blocks = 0
    for part in in_order(lambda part: _merge(chunks, part), range(_PARTS), threads, threads):
        part["blocks"] += blocks
        part["start"] += postings
        part["many_at"] += postings
        blocks += len(part["start"])
        postings += len(part["low"])
        if max(blocks, postings) >= 2**32:
            raise InputError(f"{postings} postings in {blocks} blocks; the engine holds fewer than 2 ** 32 of each")
        for name, file in files.items():
            part[name].astype(FILES[name], copy=False).tofile(file)
    np.array([blocks], np.uint32).tofile(files["blocks"])
    np.array([postings], np.uint32).tofile(files["start"])
    for file in files.values():
        file.close()
    for path in folder.glob("chunk-*.npy"):
        path.unlink()


def _lists(texts: Iterator[str]) -> Iterator[list[str]]:
    while chunk := list(islice(texts, CHUNK)):
        yield chunk
