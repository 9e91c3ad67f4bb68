"""Span-F1 distant supervision (Section 2.2.2, Algorithm 1): does any span of a paragraph match a human answer?

For a span of L tokens, an answer of m tokens and a multiset overlap o, F1 = 2o / (L + m). It reaches a threshold p/q
exactly when ``2q*o - p*L >= p*m``: everything is decided in integers, because many pairs of the real data meet 0.5
exactly and floating point flips some of them.

For one end of the span, moved from left to right, a new token adds 1 to the overlap of every start after the token's
c-th last occurrence (c: how often the answer holds it). So the scores of the starts only ever get additions on a
suffix, and a start whose score is reached by a later one never leads again: a list of strictly falling leaders, with
union-find to skip the fallen, gives the best start in near constant time. One scan is O(K a(K)) for K tokens of the
paragraph that occur in the answer. The maximum itself follows by Dinkelbach's iteration over the same scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numba
import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
THRESHOLD = Fraction(1, 2)


@numba.njit(cache=True, nogil=True)
def _find(parent, k):  # type: ignore[no-untyped-def]
    root = k
    while parent[root] != root:
        root = parent[root]
    while parent[k] != root:
        parent[k], k = root, parent[k]
    return root


@numba.njit(cache=True, nogil=True)
def _best_span(places, kinds, order, occurrences, starts, counts, p, q):  # type: ignore[no-untyped-def]
    """The largest ``2q*o - p*L`` over all spans, with the o and L that reach it.

    ``places[k]``: where the k-th matching token stands; ``kinds[k]``: which answer token it is; ``order[k]``: how many
    of its kind stand before it; ``occurrences[starts[t] : starts[t + 1]]``: the k of kind t; ``counts[t]``: how often
    the answer holds kind t.
    """
    size = places.size
    parent = np.arange(size)  # a start that fell points to the later start that reached it
    before = np.empty(size, np.int64)  # the leading start before this one, or -1
    gap = np.zeros(size, np.int64)  # its score less the next leading start's: > 0
    head, head_score, tail_score = 0, np.int64(0), np.int64(0)
    best, best_overlap, best_length = np.int64(-(1 << 62)), np.int64(0), np.int64(1)
    for k in range(size):
        # A start's score is 2q * overlap + p * place; the new start enters with overlap 0.
        score = p * places[k]
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
        value = head_score - p * (places[k] + 1)
        if value > best:
            best = value
            best_overlap = (head_score - p * places[head]) // (2 * q)
            best_length = places[k] + 1 - places[head]
    return best, best_overlap, best_length


@numba.njit(cache=True, nogil=True)
def _scores(paragraphs, paragraph_ends, answers, answer_ends, table, p, q, exact, out):  # type: ignore[no-untyped-def]
    """Fill ``out[i, j]`` with (numerator, denominator) of an F1 of paragraph i and answer j; (0, 1) for none.

    With ``exact`` it is the largest F1; without, any F1 that reaches p/q, or (0, 1) where none does. ``table`` is
    zeroed scratch as large as the largest token id; it is left zeroed.
    """
    for j in range(answer_ends.size):
        answer = answers[(answer_ends[j - 1] if j else 0) : answer_ends[j]]
        m = answer.size
        counts = np.zeros(m, np.int64)
        kinds_of_answer = 0
        for token in answer:
            if table[token] == 0:
                kinds_of_answer += 1
                table[token] = kinds_of_answer
            counts[table[token] - 1] += 1
        for i in range(paragraph_ends.size):
            paragraph = paragraphs[(paragraph_ends[i - 1] if i else 0) : paragraph_ends[i]]
            out[i, j, 0], out[i, j, 1] = 0, 1
            found = np.zeros(kinds_of_answer + 1, np.int64)
            size = 0
            for token in paragraph:
                if table[token]:
                    found[table[token]] += 1
                    size += 1
            # No span overlaps more than the whole paragraph does, and a span is at least as long as its overlap.
            overlap = 0
            for kind in range(kinds_of_answer):
                overlap += min(found[kind + 1], counts[kind])
            if overlap == 0 or (not exact and (2 * q - p) * overlap < p * m):
                continue
            places = np.empty(size, np.int64)
            kinds = np.empty(size, np.int64)
            order = np.empty(size, np.int64)
            occurrences = np.empty(size, np.int64)
            starts = np.cumsum(found)
            found[:] = 0
            k = 0
            for place in range(paragraph.size):
                kind = table[paragraph[place]] - 1
                if kind >= 0:
                    places[k], kinds[k], order[k] = place, kind, found[kind]
                    occurrences[starts[kind] + found[kind]] = k
                    found[kind] += 1
                    k += 1
            if not exact:
                best, o, length = _best_span(places, kinds, order, occurrences, starts, counts, p, q)
                if best >= p * m:
                    out[i, j, 0], out[i, j, 1] = 2 * o, length + m
                continue
            top, bottom = np.int64(2), np.int64(1 + m)  # one matching token
            while True:
                best, o, length = _best_span(places, kinds, order, occurrences, starts, counts, top, bottom)
                if best <= top * m:
                    break
                top, bottom = 2 * o, length + m
            out[i, j, 0], out[i, j, 1] = top, bottom
        for token in answer:
            table[token] = 0


def _flat(texts: Sequence[Ids]) -> tuple[Ids, npt.NDArray[np.int64]]:
    ends = np.cumsum([text.size for text in texts], dtype=np.int64)
    return (np.concatenate(texts) if len(texts) else np.empty(0, np.int32)).astype(np.int32, copy=False), ends


def char_ids(texts: Sequence[str]) -> list[Ids]:
    """Each text as an array of its code points."""
    return [np.frombuffer(text.encode("utf-32-le"), np.int32) for text in texts]


def word_ids(texts: Sequence[Sequence[str]], vocabulary: dict[str, int]) -> list[Ids]:
    """Each list of words as an array of ids; new words enter ``vocabulary``."""
    return [
        np.fromiter((vocabulary.setdefault(w, len(vocabulary)) for w in words), np.int32, len(words)) for words in texts
    ]


def span_f1(
    paragraphs: Sequence[Ids], answers: Sequence[Ids], threshold: Fraction | None = None
) -> npt.NDArray[np.int64]:
    """Span-level F1 of every paragraph with every answer, as exact fractions.

    Args:
        paragraphs, answers: token ids (:func:`char_ids`, :func:`word_ids`), not negative.
        threshold: None for the largest F1 over all spans; else any F1 that reaches it, or 0 where none does (faster).

    Returns:
        int64 array ``[paragraphs, answers, 2]`` of numerators and denominators; 0/1 where nothing overlaps.
    """
    flat_paragraphs, paragraph_ends = _flat(paragraphs)
    flat_answers, answer_ends = _flat(answers)
    out = np.zeros((len(paragraphs), len(answers), 2), np.int64)
    largest = max(int(flat.max(initial=0)) for flat in (flat_paragraphs, flat_answers))
    table = np.zeros(largest + 1, np.int32)
    exact = threshold is None
    p, q = (1, 1) if threshold is None else threshold.as_integer_ratio()
    _scores(flat_paragraphs, paragraph_ends, flat_answers, answer_ends, table, p, q, exact, out)
    return out


def label(
    paragraphs: Sequence[Ids], answers: Sequence[Ids], threshold: Fraction = THRESHOLD, match: str = "threshold"
) -> npt.NDArray[np.bool_]:
    """Which paragraphs of one question are positive; bool array ``[paragraphs]``.

    Args:
        threshold: above 0, at most 1.
        match: ``"threshold"``, Algorithm 1: any span of the paragraph reaches the threshold with any answer.
            ``"best"``, as v2 of the paper words it: of the paragraphs that reach the threshold with an answer, those
            with that answer's largest F1 (ties are all positive).

    Raises:
        ValueError: for another ``match`` or a threshold out of range.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"the threshold must be above 0 and at most 1, not {threshold}")
    if match == "threshold":
        return np.asarray(span_f1(paragraphs, answers, threshold)[:, :, 0].any(axis=1))
    if match != "best":
        raise ValueError(f"match must be 'threshold' or 'best', not {match!r}")
    positive = np.zeros(len(paragraphs), bool)
    for column in span_f1(paragraphs, answers).transpose(1, 0, 2).tolist():
        scores = [Fraction(top, bottom) for top, bottom in column]
        best = max(scores, default=Fraction(0))
        if best >= threshold:
            positive |= np.array([score == best for score in scores])
    return positive
