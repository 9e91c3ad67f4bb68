"""The scans behind span-F1, compiled. :mod:`.span_f1` defines what they compute, and tests hold them equal to it.

Most paragraphs are never scanned: ``_may_reach`` rejects them, ``_reached`` finds the runs of tokens that may reach the
threshold, ``_run_reaches`` decides on each.
"""

from __future__ import annotations

import numpy as np
from numpy import uint64 as at  # an unsigned index is not tested for being negative: half the time of these loops

from builders.core.compiled import compiled

_STEP = 8  # tokens


@compiled
def _enter(answer, table):  # type: ignore[no-untyped-def]
    """Number the kinds of token of an answer in ``table``, from 1; returns how often the answer holds each."""
    counts = np.zeros(answer.size, np.int64)
    kinds = 0
    for token in answer:
        if table[token] == 0:
            kinds += 1
            table[token] = kinds
        counts[table[token] - 1] += 1
    return counts[:kinds]


@compiled
def _matches(paragraph, table):  # type: ignore[no-untyped-def]
    """Return the places of the tokens that the answer in ``table`` holds, and the kind of each."""
    positions = np.empty(paragraph.size + 1, np.int64)
    kinds = np.empty(paragraph.size + 1, np.int64)
    k = 0
    for position in range(paragraph.size):  # no branches: which tokens match cannot be foreseen
        kind = table[at(paragraph[at(position)])]
        positions[at(k)], kinds[at(k)] = position, kind - 1
        k += kind > 0
    return positions[:k], kinds[:k]


@compiled
def best_f1(paragraph, answer, table):  # type: ignore[no-untyped-def]
    """(numerator, denominator) of the largest F1 of the paragraph's spans with the answer; table as below."""
    counts = _enter(answer, table)
    positions, kinds = _matches(paragraph, table)
    for token in answer:
        table[token] = 0
    top, bottom = 0, 1
    for first in range(positions.size):
        left, overlap = counts.copy(), 0
        for k in range(first, positions.size):
            left[kinds[k]] -= 1
            overlap += left[kinds[k]] >= 0
            tokens = positions[k] - positions[first] + 1 + answer.size
            if 2 * overlap * bottom > top * tokens:
                top, bottom = 2 * overlap, tokens
            if 2 * answer.size * bottom <= top * tokens:  # longer spans are no better, even with the whole answer
                break
    return top, bottom


@compiled
def _run_reaches(positions, kinds, m, counts, p, q):  # type: ignore[no-untyped-def]
    """True if a span of these matches reaches p/q."""
    need, size = p * m, positions.size
    # By match: the overlap of a span from there to the end, and what a span that ends there can still gain at most.
    reach, rises = np.zeros(size + 1, np.int64), np.zeros(size + 1, np.int64)
    left = counts.copy()
    for k in range(size - 1, -1, -1):
        left[kinds[k]] -= 1
        reach[k] = reach[k + 1] + (left[kinds[k]] >= 0)
        if k:
            rises[k - 1] = max(0, rises[k] + 2 * q - p * (positions[k] - positions[k - 1]))
    if 2 * q * reach[0] - p * (positions[-1] - positions[0] + 1) >= need:  # all of them together do
        return True
    start = positions[0]
    for first in range(size):
        if (2 * q - p) * reach[first] < need:  # a span is at least as long as its overlap
            break
        if positions[first] < start or 2 * q - p + rises[first] < need:
            continue
        left[:] = counts
        overlap = most = 0
        for k in range(first, size):
            kind = at(kinds[at(k)])
            left[kind] -= 1
            overlap += left[kind] >= 0
            score = 2 * q * overlap - p * (positions[at(k)] - positions[first] + 1)
            if score >= need:
                return True
            more = min(rises[at(k)], (2 * q - p) * (reach[first] - overlap))
            most = max(most, score)
            # A beginning that scores nothing is better left away.
            if score <= 0 or score + more <= most:
                # A span that starts later scores at most p more for each token that it leaves away.
                start = positions[first] - (max(most, score + more) - need) // p
                break
    return False


@compiled
def _may_reach(paragraph, m, table, p, q):  # type: ignore[no-untyped-def]
    """False for most paragraphs that have no span to reach p/q, from a bound on every span's score.

    The bound is Kadane's over eight tokens at a time, as if every token that the answer holds counted, however often,
    and within eight stood where it counts most: at the span's end in the last eight, at its begin in the first.
    """
    need, size = p * m, paragraph.size
    if (2 * q - p) * size < need:  # even if every token counted
        return False
    whole = size // _STEP * _STEP
    total = bound = 0
    for start in range(0, whole, _STEP):
        matches = 0
        for position in range(start, start + _STEP):
            matches += table[at(paragraph[at(position)])] > 0
        most = (2 * q - p) * matches
        bound = max(bound, total + most)
        total = max(total + 2 * q * matches - p * _STEP, most)
    matches = 0
    for position in range(whole, size):
        matches += table[paragraph[position]] > 0
    return max(bound, total + (2 * q - p) * matches) >= need


@compiled
def _reached(paragraph, m, table, counts, p, q):  # type: ignore[no-untyped-def]
    """True if a span of the paragraph reaches p/q.

    Kadane's scan, as if every token that the answer holds counted, however often, bounds every span's score. A span
    that begins before the sum last fell to zero is no better than without what lies before. So what can reach p/q lies
    within the runs of positive sums that rise high enough, up to where they last are: these are scanned exactly.
    """
    if not _may_reach(paragraph, m, table, p, q):
        return False
    positions, kinds = _matches(paragraph, table)
    total = first = end = 0
    for k in range(positions.size):
        if k:
            total -= p * (positions[k] - positions[k - 1] - 1)
        if total <= 0:
            if end > first and _run_reaches(positions[first:end], kinds[first:end], m, counts, p, q):
                return True
            total, first = 0, k
        total += 2 * q - p
        if total >= p * m:
            end = k + 1
    return end > first and _run_reaches(positions[first:end], kinds[first:end], m, counts, p, q)


@compiled
def any_reaches(ids, ends, rows, answers, answer_ends, answer_rows, table, p, q):  # type: ignore[no-untyped-def]
    """Algorithm 1 question by question: True for each paragraph that reaches p/q with an answer of its own question.

    ``table``: zeroed scratch with an entry for each token; it is left zeroed.
    """
    positive = np.zeros(ends.size, np.bool_)
    first, first_answer = 0, 0
    for row in range(rows.size):
        for j in range(first_answer, answer_rows[row]):
            answer = answers[(answer_ends[j - 1] if j else 0) : answer_ends[j]]
            counts = _enter(answer, table)
            for i in range(first, rows[row]):
                if not positive[i]:
                    paragraph = ids[(ends[i - 1] if i else 0) : ends[i]]
                    positive[i] = _reached(paragraph, answer.size, table, counts, p, q)
            for token in answer:
                table[token] = 0
        first, first_answer = rows[row], answer_rows[row]
    return positive
