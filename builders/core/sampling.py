"""Seeded random draws that do not depend on the machine, the Python version or the order of the input."""

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


def size_name(count: int) -> str:
    """Format a number of queries or passages for a config's name: ``1M``, ``14K``, ``1500``."""
    if count % 1_000_000 == 0:
        return f"{count // 1_000_000}M"
    return str(count) if count % 1_000 else f"{count // 1_000}K"


def draw(ids: Iterable[str], size: int, seed: int | str) -> set[str]:
    """Draw ``size`` of the distinct ``ids`` with equal probability, or all ids if there are fewer.

    The ids with the smallest SHA-256 of seed and id are drawn. With the same seed, a larger draw therefore contains
    every smaller draw, and adding or removing ids does not change the order of the other ids.
    """
    by_hash = {hashlib.sha256(f"{seed}\n{name}".encode("utf-8", "surrogatepass")).digest(): name for name in ids}
    return {by_hash[digest] for digest in sorted(by_hash)[:size]}


def lots(ids: Iterable[str], seed: int, count: int) -> npt.NDArray[np.uint64]:
    """Return a random number for each of ``count`` ids, shape (count,). Ids with the lowest numbers are drawn first.

    A number depends only on seed and id, as in :func:`draw`. A number has eight bytes, so millions fit in memory.
    """
    seeded = hashlib.blake2b(f"{seed}\n".encode(), digest_size=8)
    numbers = bytearray()
    for name in ids:
        digest = seeded.copy()
        digest.update(name.encode())
        numbers += digest.digest()
    return np.frombuffer(numbers, np.uint64, count)
