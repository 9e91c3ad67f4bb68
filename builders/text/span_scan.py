"""Compiled loops of span-F1, which :mod:`.span_f1` defines. An answer has m tokens, and the threshold is p/q.

``_may_reach`` rejects most paragraphs by a bound. In the other paragraphs, ``_reached`` finds the runs of tokens that
may reach the threshold, and ``_run_reaches`` decides on each run.
"""

import numpy as np
from numpy import uint64 as at  # numba does not test unsigned indices for < 0, which halves the time of these loops

from builders.core.jobs import compiled

_STEP = 8  # tokens


@compiled
def _enter(answer, table):  # type: ignore[no-untyped-def]
    """Number an answer's distinct tokens from 1 in ``table``. Return the frequency of each token in the answer."""
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
    """Return the positions of the paragraph's tokens that occur in the answer, and their numbers, from 0."""
    positions = np.empty(paragraph.size + 1, np.int64)
    kinds = np.empty(paragraph.size + 1, np.int64)
    k = 0
    for position in range(paragraph.size):  # no branch, because the CPU cannot predict which tokens match
        kind = table[at(paragraph[at(position)])]
        positions[at(k)], kinds[at(k)] = position, kind - 1
        k += kind > 0
    return positions[:k], kinds[:k]


@compiled
def best_f1(paragraph, answer, table):  # type: ignore[no-untyped-def]
    """Return the largest F1 (numerator, denominator) of any span. ``table`` is the array of :func:`any_reaches`."""
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
            if 2 * answer.size * bottom <= top * tokens:  # a longer span cannot win, even if it has the whole answer
                break
    return top, bottom


@compiled
def _run_reaches(positions, kinds, m, counts, p, q):  # type: ignore[no-untyped-def]
    """True if the F1 of a span of these matches reaches p/q."""
    need, size = p * m, positions.size
    # reach[k]: overlap of the span from match k to the end. rises[k]: the most that the score can rise after match k.
    reach, rises = np.zeros(size + 1, np.int64), np.zeros(size + 1, np.int64)
    left = counts.copy()
    for k in range(size - 1, -1, -1):
        left[kinds[k]] -= 1
        reach[k] = reach[k + 1] + (left[kinds[k]] >= 0)
        if k:
            rises[k - 1] = max(0, rises[k] + 2 * q - p * (positions[k] - positions[k - 1]))
    if 2 * q * reach[0] - p * (positions[-1] - positions[0] + 1) >= need:  # the longest span reaches p/q
        return True
    start = positions[0]
    for first in range(size):
        if (2 * q - p) * reach[first] < need:  # a span is at least as long as its overlap, so no later span reaches p/q
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
            # A prefix without a positive score only lowers the score of the whole span.
            if score <= 0 or score + more <= most:
                # A span that starts later gains at most p for each token that it skips.
                start = positions[first] - (max(most, score + more) - need) // p
                break
    return False


@compiled
def _may_reach(paragraph, m, table, p, q):  # type: ignore[no-untyped-def]
    """False if a bound on the scores of all spans shows that no span reaches p/q.

    The bound is Kadane's sum over groups of eight tokens. The sum counts every token that occurs in the answer, even
    beyond its frequency in the answer. In a span's first and last group, tokens without a match cost nothing.
    """
    need, size = p * m, paragraph.size
    if (2 * q - p) * size < need:  # too short, even if every token matched
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

    Kadane's sum bounds the score of every span, because it counts every token that occurs in the answer, even beyond
    the token's frequency in the answer. A span never gets worse by starting after the last zero of the sum. So only
    runs of positive sums are scanned, up to the last sum that reaches p * m. A run with only lower sums is skipped.
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
    """Run Algorithm 1: return True for each paragraph that reaches p/q with an answer of its own question.

    ``table`` is a scratch array with one entry for each distinct token. All entries are zero before and after the call.
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
