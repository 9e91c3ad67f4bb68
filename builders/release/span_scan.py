"""The scans behind span-F1, compiled: is there a span of a paragraph that reaches a threshold, and which is the best?

For one end of the span, moved from left to right, a new token adds 1 to the overlap of every start after the token's
c-th last occurrence (c: how often the answer holds it). So the scores of the starts only ever get additions on a
suffix, and a start whose score is reached by a later one never leads again: a list of strictly falling leaders, with
union-find to skip the fallen, gives the best start in near constant time. One scan is O(K a(K)) for K tokens of the
paragraph that occur in the answer. The maximum itself follows by Dinkelbach's iteration over the same scan.

Most paragraphs are never scanned: ``_may_reach`` rejects them, ``_reached`` finds the runs that may reach the
threshold, ``_run_reaches`` decides on each, with ``_best_span`` where nothing simpler does. What they compute is
defined in :mod:`.span_f1`, and held equal to it by tests: who trusts those need not read this file.
"""

from __future__ import annotations

import numpy as np
from numpy import uint64 as at  # an unsigned index is not tested for being negative: half the time of these loops

from builders.core.compiled import compiled

_STEP = 8  # tokens


@compiled
def _find(parent, k):  # type: ignore[no-untyped-def]
    root = k
    while parent[root] != root:
        root = parent[root]
    while parent[k] != root:
        parent[k], k = root, parent[k]
    return root


@compiled
def _best_span(positions, kinds, order, occurrences, starts, counts, p, q):  # type: ignore[no-untyped-def]
    """The largest ``2q*o - p*L`` over all spans, with the o and L that reach it.

    ``positions[k]``: where the k-th matching token stands; ``kinds[k]``: which answer token it is; ``order[k]``: how
    many of its kind stand before it; ``occurrences[starts[t] : starts[t + 1]]``: the k of kind t; ``counts[t]``: how
    often the answer holds kind t.
    """
    size = positions.size
    parent = np.arange(size)  # a start that fell points to the later start that reached it
    before = np.empty(size, np.int64)  # the leading start before this one, or -1
    gap = np.zeros(size, np.int64)  # its score less the next leading start's: > 0
    head, head_score, tail_score = 0, np.int64(0), np.int64(0)
    best, best_overlap, best_length = np.int64(-(1 << 62)), np.int64(0), np.int64(1)
    for k in range(size):
        # A start's score is 2q * overlap + p * position; the new start enters with overlap 0.
        score = p * positions[k]
        last = k - 1
        if k == 0:
            before[k], head, head_score = -1, k, score
        else:
            fall = tail_score - score
            while last >= 0 and fall <= 0:
                parent[last] = k
                last = before[last]
                if last >= 0:
                    fall += gap[last]
            before[k] = last
            if last < 0:
                head, head_score = k, score
            else:
                gap[last] = fall
        # Every start after the c-th last token of this kind gains one.
        kind = kinds[k]
        earlier = order[k] - counts[kind]
        first = 0 if earlier < 0 else occurrences[starts[kind] + earlier] + 1
        gainer = _find(parent, first)
        if gainer == head:
            head_score += 2 * q
        else:
            last = before[gainer]
            gap[last] -= 2 * q
            fall = gap[last]
            while fall <= 0:
                parent[last] = gainer
                previous = before[last]
                before[gainer] = previous
                if previous < 0:
                    head, head_score = gainer, head_score - fall
                    break
                fall += gap[previous]
                gap[previous] = fall
                last = previous
        tail_score = score + 2 * q
        value = head_score - p * (positions[k] + 1)
        if value > best:
            best = value
            best_overlap = (head_score - p * positions[head]) // (2 * q)
            best_length = positions[k] + 1 - positions[head]
    return best, best_overlap, best_length


@compiled
def _enter(answer, table, counts):  # type: ignore[no-untyped-def]
    """Number the kinds of token of an answer in ``table``, from 1, and count each; returns how many kinds there are."""
    kinds = 0
    for token in answer:
        if table[token] == 0:
            kinds += 1
            table[token] = kinds
            counts[kinds - 1] = 0
        counts[table[token] - 1] += 1
    return kinds


@compiled
def _matches(paragraph, table):  # type: ignore[no-untyped-def]
    """Where the tokens stand that the answer in ``table`` holds, and which of its tokens they are."""
    positions = np.empty(paragraph.size + 1, np.int64)
    kinds = np.empty(paragraph.size + 1, np.int64)
    k = 0
    for position in range(paragraph.size):  # no branches: which tokens match cannot be foreseen
        kind = table[at(paragraph[at(position)])]
        positions[at(k)], kinds[at(k)] = position, kind - 1
        k += kind > 0
    return positions[:k], kinds[:k]


@compiled
def _index(kinds, counts):  # type: ignore[no-untyped-def]
    """``order``, ``occurrences`` and ``starts`` as :func:`_best_span` takes them."""
    starts = np.zeros(counts.size + 1, np.int64)
    for kind in kinds:
        starts[kind + 1] += 1
    starts = np.cumsum(starts)
    order = np.empty(kinds.size, np.int64)
    occurrences = np.empty(kinds.size, np.int64)
    found = np.zeros(counts.size, np.int64)
    for k in range(kinds.size):
        kind = kinds[k]
        order[k] = found[kind]
        occurrences[starts[kind] + found[kind]] = k
        found[kind] += 1
    return order, occurrences, starts


@compiled
def _maximum(paragraph, m, table, counts):  # type: ignore[no-untyped-def]
    """(numerator, denominator) of the largest F1 of the paragraph and the answer of ``m`` tokens in ``table``."""
    positions, kinds = _matches(paragraph, table)
    if positions.size == 0:
        return np.int64(0), np.int64(1)
    order, occurrences, starts = _index(kinds, counts)
    top, bottom = np.int64(2), np.int64(1 + m)  # one matching token
    while True:
        best, o, length = _best_span(positions, kinds, order, occurrences, starts, counts, top, bottom)
        if best <= top * m:
            return top, bottom
        top, bottom = 2 * o, length + m


@compiled
def _run_reaches(positions, kinds, m, counts, p, q):  # type: ignore[no-untyped-def]
    """Whether a span of these matches reaches p/q."""
    found = np.zeros(counts.size, np.int64)
    overlap = 0
    for kind in kinds:
        overlap += found[kind] < counts[kind]
        found[kind] += 1
    # No span overlaps more than all matches do, and a span is at least as long as its overlap.
    if (2 * q - p) * overlap < p * m:
        return False
    length = positions[-1] - positions[0] + 1
    if 2 * q * overlap - p * length >= p * m:  # all of them together do
        return True
    order, occurrences, starts = _index(kinds, counts)
    return _best_span(positions, kinds, order, occurrences, starts, counts, p, q)[0] >= p * m


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
    """Whether a span of the paragraph reaches p/q.

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
def largest(paragraphs, paragraph_ends, answers, answer_ends, table, out):  # type: ignore[no-untyped-def]
    """Fill ``out[i, j]`` with (numerator, denominator) of the largest F1 of paragraph i and answer j; (0, 1) for none.

    ``table`` is zeroed scratch as large as the largest token id; it is left zeroed.
    """
    for j in range(answer_ends.size):
        answer = answers[(answer_ends[j - 1] if j else 0) : answer_ends[j]]
        counts = np.empty(answer.size, np.int64)
        counts = counts[: _enter(answer, table, counts)]
        for i in range(paragraph_ends.size):
            paragraph = paragraphs[(paragraph_ends[i - 1] if i else 0) : paragraph_ends[i]]
            out[i, j, 0], out[i, j, 1] = _maximum(paragraph, answer.size, table, counts)
        for token in answer:
            table[token] = 0


@compiled
def any_reaches(ids, ends, rows, answers, answer_ends, answer_rows, table, p, q):  # type: ignore[no-untyped-def]
    """Algorithm 1 question by question: for each paragraph, whether any answer of its own question is reached."""
    positive = np.zeros(ends.size, np.bool_)
    first, first_answer = 0, 0
    for row in range(rows.size):
        for j in range(first_answer, answer_rows[row]):
            answer = answers[(answer_ends[j - 1] if j else 0) : answer_ends[j]]
            counts = np.empty(answer.size, np.int64)
            counts = counts[: _enter(answer, table, counts)]
            for i in range(first, rows[row]):
                if not positive[i]:
                    paragraph = ids[(ends[i - 1] if i else 0) : ends[i]]
                    positive[i] = _reached(paragraph, answer.size, table, counts, p, q)
            for token in answer:
                table[token] = 0
        first, first_answer = rows[row], answer_rows[row]
    return positive
