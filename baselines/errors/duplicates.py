"""Rule ``duplicates``: nobody has judged the passage, and it is nearly the same as a positive of the query.

Two texts are, where they have at least 0.7 of the 4-grams of characters that either has in common, or where the
shorter one's, of 30 characters or more, are at least 0.9 in the longer: passages are cut out of pages, here and there.
Letters and digits alone count, in one width and case. Every pair is compared exactly: there are few.
"""

from __future__ import annotations

from collections.abc import Sequence

from builders.similar.likeness import jaccard, ngrams, normalised

_LENGTH, _JACCARD, _WITHIN, _LEAST = 4, 0.7, 0.9, 30


def near_duplicate(passage: str, positives: Sequence[str]) -> float | None:
    """How much of a positive the passage is, 0 to 1, by the one that it is most like; None where it is near none."""
    mine = normalised(passage)
    found = [like for positive in positives if (like := _likeness(mine, normalised(positive))) is not None]
    return max(found, default=None)


def _likeness(one: str, other: str) -> float | None:
    first, second = set(ngrams(one, _LENGTH)), set(ngrams(other, _LENGTH))
    if (both := jaccard(first, second)) >= _JACCARD:
        return both
    within = len(first & second) / min(len(first), len(second))
    return within if within >= _WITHIN and min(len(one), len(other)) >= _LEAST else None
