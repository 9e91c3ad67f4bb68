"""Ties of engines that add 32-bit floats.

Sums of float32 terms differ in their last bits with the order of the terms, which depends on the engine's version and
on how its index is cut. Scores closer than that are ties, or those bits would order the passages.
"""

from __future__ import annotations

import numpy as np

_TIE = 1e-6  # relative


def _apart(above: float, below: float) -> bool:
    return above - below > _TIE * above


def end_of_ties(scores: list[float], top_k: int) -> int | None:
    """How many of the falling ``scores`` are needed for the best ``top_k``; None where more may tie below the last."""
    for rank in range(top_k, len(scores)):
        if _apart(scores[rank - 1], scores[rank]):
            return rank
    return None


def settle(found: list[tuple[str, float]], top_k: int) -> list[tuple[str, float]]:
    """The best ``top_k`` of (corpus id, score) by falling score: those that tie get one score, and go by id."""
    hits: list[tuple[str, float]] = []
    previous = shown = 0.0
    for corpus_id, score in found:
        if not hits or _apart(previous, score):
            shown = float(str(np.float32(score)))  # the shortest digits that tell float32 numbers apart
        previous = score
        hits.append((corpus_id, shown))
    return sorted(hits, key=lambda hit: (-hit[1], hit[0]))[:top_k]
