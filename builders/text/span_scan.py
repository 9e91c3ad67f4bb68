"""Compiled loops of span-F1, which :mod:`.span_f1` defines.

A span has L tokens, an answer has m tokens, and they share o tokens. The threshold is p/q. F1 reaches the threshold
exactly if ``2q*o - p*L >= p*m``. So a span has a score in whole numbers: each of its tokens costs p (``cost``), and
each shared token gains 2q (``gain``). A span reaches the threshold if its score is at least p*m (``required``).

For the answer "北京 大学" and the threshold 1/2, cost is 1, gain is 4, and required is 2. The span "北京 大学" has the
score 6::

    token               我    在    北京   大学   读    大学
    match in answer     -     -     1      2      -     2 (the answer has 大学 only once, so the span gains nothing)
    change of score     -1    -1    +3     +3     -1    -1

The best span of a text of numbers is a maximum subarray, which Kadane's algorithm finds in one pass (J. Bentley,
Programming pearls: algorithm design techniques, CACM 27(9), 1984). Here a token's gain depends on the span, because the
answer has each token only some times. So Kadane's algorithm gives an upper bound, and three tests follow each other:

1. ``_may_reach`` rejects most paragraphs by a rough bound over groups of tokens.
2. ``_reaches`` finds the runs of tokens whose bound reaches ``required``.
3. ``_run_reaches`` counts the shared tokens of the spans in a run, and decides.
"""

import numpy as np

# Numba does not test unsigned indices for < 0, which halves the time of the loops.
from numpy import uint64 as unsigned

from builders.core.jobs import compiled

_GROUP = 8  # tokens


@compiled
def _number_tokens(answer, token_numbers):  # type: ignore[no-untyped-def]
    """Number an answer's distinct tokens from 1 in ``token_numbers``. Return each token's frequency in the answer.

    ``token_numbers[token]`` is 0 before the call, and stays 0 for other tokens. The frequencies are in the order of the
    numbers.
    """
    frequencies = np.zeros(answer.size, np.int64)
    distinct_count = 0
    for token in answer:
        if token_numbers[token] == 0:
            distinct_count += 1
            token_numbers[token] = distinct_count
        frequencies[token_numbers[token] - 1] += 1
    return frequencies[:distinct_count]


@compiled
def _find_matches(paragraph, token_numbers):  # type: ignore[no-untyped-def]
    """Return the positions of the paragraph's tokens that occur in the answer, and their numbers, from 0."""
    positions = np.empty(paragraph.size + 1, np.int64)
    numbers = np.empty(paragraph.size + 1, np.int64)
    match_count = 0
    # Every token is written, and the next token overwrites it unless it matches. A branch would be slower, because the
    # CPU cannot predict which tokens match.
    for position in range(paragraph.size):
        token_number = token_numbers[unsigned(paragraph[unsigned(position)])]
        positions[unsigned(match_count)] = position
        numbers[unsigned(match_count)] = token_number - 1
        match_count += token_number > 0
    return positions[:match_count], numbers[:match_count]


@compiled
def best_f1(paragraph, answer, token_numbers):  # type: ignore[no-untyped-def]
    """Return the largest F1 of any span of the paragraph with the answer, as (numerator, denominator).

    ``token_numbers`` is a scratch array with an entry for each possible token, zero before and after the call.
    """
    frequencies = _number_tokens(answer, token_numbers)
    positions, numbers = _find_matches(paragraph, token_numbers)
    for token in answer:
        token_numbers[token] = 0
    numerator = 0
    denominator = 1
    # The best span begins and ends with a match. Fractions are compared by their cross products.
    for first in range(positions.size):
        unused = frequencies.copy()  # how often the answer has each token beyond the span's tokens
        overlap = 0
        for last in range(first, positions.size):
            unused[numbers[last]] -= 1
            overlap += unused[numbers[last]] >= 0
            token_count = positions[last] - positions[first] + 1 + answer.size
            if 2 * overlap * denominator > numerator * token_count:
                numerator = 2 * overlap
                denominator = token_count
            # A longer span cannot win, even if it has the whole answer.
            if 2 * answer.size * denominator <= numerator * token_count:
                break
    return numerator, denominator


@compiled
def _run_reaches(positions, numbers, required, frequencies, gain, cost):  # type: ignore[no-untyped-def]
    """True if the score of a span of these matches reaches ``required``.

    ``positions`` and ``numbers`` of the matches are those of :func:`_find_matches`, and ``frequencies`` those of
    :func:`_number_tokens`.
    """
    size = positions.size
    match_gain = gain - cost  # of a shared token, which also costs
    # overlap_to_end[k]: overlap of the span from match k to the last match.
    # rise_after[k]: the most that the score of a span to match k can rise by further matches.
    overlap_to_end = np.zeros(size + 1, np.int64)
    rise_after = np.zeros(size + 1, np.int64)
    unused = frequencies.copy()  # how often the answer has each token beyond the span's tokens
    for k in range(size - 1, -1, -1):
        unused[numbers[k]] -= 1
        overlap_to_end[k] = overlap_to_end[k + 1] + (unused[numbers[k]] >= 0)
        if k:
            distance = positions[k] - positions[k - 1]
            rise_after[k - 1] = max(0, rise_after[k] + gain - cost * distance)

    # The longest span is often enough.
    if gain * overlap_to_end[0] - cost * (positions[-1] - positions[0] + 1) >= required:
        return True

    # Spans from each match. No span that starts before ``earliest_start`` reaches the threshold.
    earliest_start = positions[0]
    for first in range(size):
        # A span is at least as long as its overlap, so no later span reaches the threshold.
        if match_gain * overlap_to_end[first] < required:
            break
        if positions[first] < earliest_start or match_gain + rise_after[first] < required:
            continue
        unused[:] = frequencies
        overlap = 0
        best_score = 0
        for last in range(first, size):
            number = unsigned(numbers[unsigned(last)])
            unused[number] -= 1
            overlap += unused[number] >= 0
            score = gain * overlap - cost * (positions[unsigned(last)] - positions[first] + 1)
            if score >= required:
                return True
            possible_rise = min(rise_after[unsigned(last)], match_gain * (overlap_to_end[first] - overlap))
            best_score = max(best_score, score)
            # A prefix without a positive score only lowers the score of the whole span.
            if score <= 0 or score + possible_rise <= best_score:
                # A span that starts later gains at most ``cost`` for each token that it skips. Python's division of
                # the negative shortfall rounds away from zero, so the skipped tokens are enough.
                shortfall = max(best_score, score + possible_rise) - required
                earliest_start = positions[first] - shortfall // cost
                break
    return False


@compiled
def _may_reach(paragraph, required, token_numbers, gain, cost):  # type: ignore[no-untyped-def]
    """False if a bound on the scores of all spans shows that no span reaches ``required``.

    ``token_numbers`` has the numbers of the answer's tokens, and 0 for other tokens.

    The bound is Kadane's sum over groups of eight tokens. The sum counts every token that occurs in the answer, even
    beyond its frequency in the answer. In a span's first and last group, tokens without a match cost nothing.
    """
    size = paragraph.size
    match_gain = gain - cost
    if match_gain * size < required:  # too short, even if every token matched
        return False
    grouped_size = size // _GROUP * _GROUP
    running_sum = 0  # the bound of the spans that end with the previous group
    bound = 0
    for group_start in range(0, grouped_size, _GROUP):
        match_count = 0
        for position in range(group_start, group_start + _GROUP):
            match_count += token_numbers[unsigned(paragraph[unsigned(position)])] > 0
        # A span that ends within the group, or starts there, need not have the tokens without a match.
        free_gain = match_gain * match_count
        bound = max(bound, running_sum + free_gain)
        running_sum = max(running_sum + gain * match_count - cost * _GROUP, free_gain)
    # The last group, which may have fewer tokens.
    match_count = 0
    for position in range(grouped_size, size):
        match_count += token_numbers[paragraph[position]] > 0
    return max(bound, running_sum + match_gain * match_count) >= required


@compiled
def _reaches(paragraph, required, token_numbers, frequencies, gain, cost):  # type: ignore[no-untyped-def]
    """True if the score of a span of the paragraph reaches ``required``.

    ``token_numbers`` and ``frequencies`` of the answer's tokens are those of :func:`_number_tokens`.

    Kadane's sum bounds the score of every span, because it counts every token that occurs in the answer, even beyond
    the token's frequency in the answer. A span never gets worse by starting after the last zero of the sum. So only
    runs of positive sums are scanned, up to the last sum that reaches ``required``. A run with only lower sums is
    skipped.
    """
    if not _may_reach(paragraph, required, token_numbers, gain, cost):
        return False
    positions, numbers = _find_matches(paragraph, token_numbers)
    running_sum = 0
    run_start = 0
    # After the last sum that reaches ``required``; not above run_start if there is none.
    run_end = 0
    for k in range(positions.size):
        if k:
            running_sum -= cost * (positions[k] - positions[k - 1] - 1)
        if running_sum <= 0:
            # The run has ended.
            if run_end > run_start and _run_reaches(
                positions[run_start:run_end], numbers[run_start:run_end], required, frequencies, gain, cost
            ):
                return True
            running_sum = 0
            run_start = k
        running_sum += gain - cost
        if running_sum >= required:
            run_end = k + 1
    return run_end > run_start and _run_reaches(
        positions[run_start:run_end], numbers[run_start:run_end], required, frequencies, gain, cost
    )


@compiled
def any_reaches(  # type: ignore[no-untyped-def]
    ids,
    ends,
    question_ends,
    answers,
    answer_ends,
    answer_question_ends,
    token_numbers,
    numerator,
    denominator,
):
    """Run Algorithm 1: return True for each paragraph that reaches the threshold with an answer of its own question.

    The first six arguments are the fields of :class:`.span_f1.QuestionTokens`: paragraph i has the tokens from
    ``ends[i - 1]`` to ``ends[i]`` in ``ids``, and question k has the paragraphs from ``question_ends[k - 1]`` to
    ``question_ends[k]``. The answers are stored in the same way. The threshold is numerator/denominator.
    ``token_numbers`` is a scratch array with an entry for each possible token, zero before and after the call.
    """
    gain = 2 * denominator
    cost = numerator
    is_positive = np.zeros(ends.size, np.bool_)
    first = 0
    first_answer = 0
    for question in range(question_ends.size):
        for j in range(first_answer, answer_question_ends[question]):
            answer_start = answer_ends[j - 1] if j else 0
            answer = answers[answer_start : answer_ends[j]]
            frequencies = _number_tokens(answer, token_numbers)
            for i in range(first, question_ends[question]):
                if not is_positive[i]:
                    paragraph_start = ends[i - 1] if i else 0
                    paragraph = ids[paragraph_start : ends[i]]
                    is_positive[i] = _reaches(paragraph, cost * answer.size, token_numbers, frequencies, gain, cost)
            for token in answer:
                token_numbers[token] = 0
        first = question_ends[question]
        first_answer = answer_question_ends[question]
    return is_positive
