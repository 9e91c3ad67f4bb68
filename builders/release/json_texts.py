"""Texts out of JSON by compiled loops: no Python string is made of what is only compared, hashed and written as UTF-8.

Nearly all bytes of a raw row are paragraphs. The JSON parser finds their lists and sees that they are JSON; here they
become code points and UTF-8 in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numpy import uint64 as at  # what is not below zero need not be looked at for that: half the time

Ints = npt.NDArray[np.int64]

_ESCAPES = np.zeros(256, np.uint8)
_ESCAPES[list(b'"\\/bfnrt')] = list(b'"\\/\b\f\n\r\t')
_PADDING = bytes(3)  # so that what is cut short within its last character need not be looked for


class NotTexts(ValueError):
    """The value of this ``number`` is no list of strings in UTF-8."""

    def __init__(self, number: int) -> None:
        super().__init__(f"value {number} is no list of strings in UTF-8")
        self.number = number


@dataclass(frozen=True)
class Texts:
    """Many lists of texts, end to end: as UTF-8 (``data``) and as ``codes`` (code points).

    For each text its ``sizes`` in bytes and its ``lengths`` in code points; for each list its number of texts
    (``counts``).
    """

    data: npt.NDArray[np.uint8]
    codes: npt.NDArray[np.int32]
    sizes: Ints
    lengths: Ints
    counts: Ints


def read_lists(values: Sequence[Any]) -> Texts:
    """The strings of ``values``, each a JSON list of strings as bytes.

    What is in ``values`` must be JSON: that is not looked at again. Raises :class:`NotTexts` for one that is something
    else than a list of strings, or not UTF-8.
    """
    joined = b"".join([*values, _PADDING])
    most = len(joined) // 3 + 1  # of texts: quotes and a comma
    out, codes = np.empty(len(joined), np.uint8), np.empty(len(joined), np.int32)
    sizes, lengths, counts = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(len(values), np.int64)
    wrong, texts, size, length = _read_lists(
        np.frombuffer(joined, np.uint8), out, codes, sizes, lengths, counts, _ESCAPES
    )
    if wrong >= 0:
        raise NotTexts(wrong)
    return Texts(out[:size], codes[:length], sizes[:texts], lengths[:texts], counts)


@numba.njit(cache=True, nogil=True)
def _blank(byte):  # type: ignore[no-untyped-def]
    return byte == 0x20 or byte == 0x0A or byte == 0x0D or byte == 0x09


@numba.njit(cache=True, nogil=True)
def _hex4(data, place):  # type: ignore[no-untyped-def]
    value = np.int64(0)
    for k in range(place, place + 4):
        digit = np.int64(data[at(k)])
        value = value * 16 + (digit - 48 if digit < 58 else (digit | 32) - 87)
    return value


@numba.njit(cache=True, nogil=True)
def _escaped(data, place, escapes):  # type: ignore[no-untyped-def]
    """The code point of the escape whose backslash stands before ``place``, and the place behind it."""
    if data[at(place)] != 0x75:
        return np.int64(escapes[data[at(place)]]), place + 1
    code = _hex4(data, place + 1)
    if not 0xD800 <= code < 0xDC00:
        return code, place + 5
    return 0x10000 + ((code - 0xD800) << 10) + _hex4(data, place + 7) - 0xDC00, place + 11  # the other half follows


@numba.njit(cache=True, nogil=True)
def _put(code, out, size):  # type: ignore[no-untyped-def]
    """Write a code point as UTF-8 at ``size``; returns where the next one goes."""
    if code < 0x80:
        out[at(size)] = code
        return size + 1
    if code < 0x800:
        out[at(size)] = 0xC0 | code >> 6
    elif code < 0x10000:
        out[at(size)] = 0xE0 | code >> 12
        size += 1
        out[at(size)] = 0x80 | code >> 6 & 0x3F
    else:
        out[at(size)] = 0xF0 | code >> 18
        out[at(size + 1)] = 0x80 | code >> 12 & 0x3F
        size += 2
        out[at(size)] = 0x80 | code >> 6 & 0x3F
    out[at(size + 1)] = 0x80 | code & 0x3F
    return size + 2


@numba.njit(cache=True, nogil=True)
def _character(data, place, lead):  # type: ignore[no-untyped-def]
    """The code point of the two or four bytes at ``place``, and the place behind it; -1 where they are not UTF-8."""
    more = 1 if lead < 0xE0 else 3
    code = lead & (0x3F >> more)
    for k in range(place + 1, place + 1 + more):
        byte = np.int64(data[at(k)])
        if byte & 0xC0 != 0x80:
            return -1, place
        code = code << 6 | byte & 0x3F
    # Not a byte of the middle of a character, not what fewer bytes could say, and nothing beyond the last code point.
    right = lead >= 0xC2 if more == 1 else lead < 0xF8 and 0x10000 <= code < 0x110000
    return code if right else -1, place + 1 + more


@numba.njit(cache=True, nogil=True)
def _read_string(data, place, out, size, codes, length, escapes):  # type: ignore[no-untyped-def]
    """Read the string whose text begins at ``place``; returns the place behind it, the new size and length.

    The place is -1 where the string is not UTF-8.
    """
    while True:
        lead = np.int64(data[at(place)])
        if lead == 0x22:
            return place + 1, size, length
        if lead < 0x80 and lead != 0x5C:
            codes[at(length)] = out[at(size)] = lead
            place, size = place + 1, size + 1
        elif 0xE0 <= lead < 0xF0:  # nearly every Chinese character
            second, third = np.int64(data[at(place + 1)]), np.int64(data[at(place + 2)])
            code = (lead & 0x0F) << 12 | (second & 0x3F) << 6 | third & 0x3F
            if second & 0xC0 != 0x80 or third & 0xC0 != 0x80 or code < 0x800 or 0xD800 <= code < 0xE000:
                return -1, size, length
            out[at(size)], out[at(size + 1)], out[at(size + 2)] = lead, second, third
            codes[at(length)] = code
            place, size = place + 3, size + 3
        else:
            if lead == 0x5C:
                code, place = _escaped(data, place + 1, escapes)
            else:
                code, place = _character(data, place, lead)
            if code < 0:
                return -1, size, length
            size = _put(code, out, size)
            codes[at(length)] = code
        length += 1


@numba.njit(cache=True, nogil=True)
def _read_lists(data, out, codes, sizes, lengths, counts, escapes):  # type: ignore[no-untyped-def]
    """(the first value that is no list of strings in UTF-8 or -1, texts, bytes, code points)."""
    place = texts = size = length = 0
    for value in range(counts.size):
        while _blank(data[at(place)]):
            place += 1
        if data[at(place)] != 0x5B:
            return value, texts, size, length
        first, closed = texts, False
        while not closed:
            place += 1  # behind the bracket or a comma
            while _blank(data[at(place)]):
                place += 1
            if data[at(place)] == 0x22:
                begin, begun = size, length
                place, size, length = _read_string(data, place + 1, out, size, codes, length, escapes)
                if place < 0:
                    return value, texts, size, length
                sizes[at(texts)], lengths[at(texts)] = size - begin, length - begun
                texts += 1
                while _blank(data[at(place)]):
                    place += 1
            elif data[at(place)] != 0x5D:
                return value, texts, size, length
            closed = data[at(place)] == 0x5D
        counts[value] = texts - first
        place += 1
    return -1, texts, size, length
