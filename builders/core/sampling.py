"""Seeded random draws that do not depend on the machine, the Python version or the order of the input."""

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


def size_name(count: int) -> str:
    """Format a number of queries or passages for a config's name: ``1M``, ``14K``, ``1500``."""
    if count % 1_000_000 == 0:
        return f"{count // 1_000_000}M"
    if count % 1_000 == 0:
        return f"{count // 1_000}K"
    return str(count)


def draw_sample(ids: Iterable[str], size: int, seed: int | str) -> set[str]:
    """Draw ``size`` of the distinct ``ids`` with equal probability, or all ids if there are fewer.

    The ids with the smallest SHA-256 of seed and id are drawn. With the same seed, a larger draw therefore contains
    every smaller draw, and adding or removing ids does not change the order of the other ids.
    """
    return set(draw_in_order(ids, size, seed))


def draw_in_order(ids: Iterable[str], size: int, seed: int | str) -> list[str]:
    """Return the ids of :func:`draw_sample` by rising SHA-256. A smaller draw is the beginning of a larger draw."""
    id_by_digest = {}
    for item_id in ids:
        seeded_id = f"{seed}\n{item_id}".encode("utf-8", "surrogatepass")
        id_by_digest[hashlib.sha256(seeded_id).digest()] = item_id
    smallest_digests = sorted(id_by_digest)[:size]
    return [id_by_digest[digest] for digest in smallest_digests]


def random_lots(ids: Iterable[str], seed: int, count: int) -> npt.NDArray[np.uint64]:
    """Return a random number for each of the ``count`` elements of ``ids``, in their order, shape (count,).

    A caller that draws ids takes those with the lowest numbers.

    A number depends only on seed and id, as in :func:`draw_sample`. It has eight bytes, so millions fit in memory.
    """
    # The hash of the seed is computed once and copied for each id.
    seed_hash = hashlib.blake2b(f"{seed}\n".encode(), digest_size=np.dtype(np.uint64).itemsize)
    number_bytes = bytearray()
    for item_id in ids:
        id_hash = seed_hash.copy()
        id_hash.update(item_id.encode())
        number_bytes += id_hash.digest()
    return np.frombuffer(number_bytes, np.uint64, count)
