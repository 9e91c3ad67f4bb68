"""Seeded random choices that are the same on every machine and Python, and in whatever order the input came."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


def size(text: str) -> int:
    """An argparse type: a number of queries or passages, ``14K`` for 14,000, ``1M`` for a million."""
    times = {"K": 1_000, "M": 1_000_000}.get(text[-1:].upper(), 1)
    value = int(text[:-1] if times > 1 else text) * times
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, found {text}")
    return value


def size_name(count: int) -> str:
    """A number of queries or passages in a config's name: ``1M``, ``14K``, ``1500``."""
    if count % 1_000_000 == 0:
        return f"{count // 1_000_000}M"
    return str(count) if count % 1_000 else f"{count // 1_000}K"


def draw(ids: Iterable[str], size: int, seed: int | str) -> set[str]:
    """``size`` of the distinct ``ids`` (all, where there are no more), each as likely as the next.

    Those with the smallest SHA-256 of seed and id are taken: a longer draw with the same seed contains a shorter one,
    and an id that is added or removed elsewhere changes nothing about the others.
    """

    def rank(each: str) -> bytes:
        return hashlib.sha256(f"{seed}\n{each}".encode("utf-8", "surrogatepass")).digest()

    return set(sorted(set(ids), key=lambda each: (rank(each), each))[:size])


def lots(ids: Iterable[str], seed: int, count: int) -> npt.NDArray[np.uint64]:
    """The lot of each of ``count`` ids, shape (count,): the lowest are drawn first. For millions: 8 bytes an id.

    It depends on seed and id alone, as in :func:`draw`.
    """
    seeded = hashlib.blake2b(f"{seed}\n".encode(), digest_size=8)
    found = bytearray()
    for each in ids:
        digest = seeded.copy()
        digest.update(each.encode())
        found += digest.digest()
    return np.frombuffer(found, np.uint64, count)
