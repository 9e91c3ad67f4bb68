"""Excerpts of passages around the terms of a question, and the ranks of positives.

An excerpt is a window of whole words. The window with the most text in terms is chosen::

    question:  手机 进水 怎么办
    passage:   夏天 去 海边 ， 手机 进水 了 先 关机 ， 再 送修 。
    excerpt:         … ， [手机] [进水] 了 先 …
"""

import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from baselines.measure.qrels import read_judgments
from builders.core import highlight
from builders.core.errors import make_visible
from builders.core.word_tokens import word_parts
from builders.store.layout import Set
from builders.store.reader import Release

PAGE_EXCERPT_CHARS = 120
# Part of a passage from which an excerpt in the terminal is selected.
EXCERPT_SOURCE_CHARS = 100_000
_PAGE_PASSAGE_CHARS = 5_000  # longest passage that the page shows whole

Word = tuple[str, bool]  # (word of a text, True if the word is also in the question)
_CUT_MARK: Word = ("…", False)


def describe_ranking(ranking: Sequence[str], positive_ids: set[str] | None) -> str:
    """Describe a ranking, for example "50 passages, 2 of 3 positive, at rank 1, 7". ``ranking`` has corpus ids.

    If ``positive_ids`` is None, the positives are unknown, and only the number of passages is returned.
    """
    noun = "passage" if len(ranking) == 1 else "passages"
    passages = f"{len(ranking)} {noun}"
    if positive_ids is None:
        return passages
    positive_ranks = [str(rank) for rank, passage_id in enumerate(ranking, 1) if passage_id in positive_ids]
    summary = f"{passages}, {len(positive_ranks)} of {len(positive_ids)} positive"
    if positive_ranks:
        summary += f", at rank {', '.join(positive_ranks)}"
    return summary


def excerpt_html(passage_text: str, query_text: str) -> tuple[str, str]:
    """Return (excerpt, passage) as HTML, with ``<mark>`` around the terms that the passage shares with the query.

    The excerpt is the part of about :data:`PAGE_EXCERPT_CHARS` characters with the most text in terms. The second
    string is empty if the excerpt is the whole passage. Text behind the first 5,000 characters is replaced by "…".
    """
    line = make_visible(" ".join(passage_text[:_PAGE_PASSAGE_CHARS].split()))
    if len(passage_text) > _PAGE_PASSAGE_CHARS:
        line += "…"
    terms = highlight.common_terms(query_text, line)
    # The terms are written as in the passage. `flag_terms` expects words in NFKC.
    normalized_terms = {unicodedata.normalize("NFKC", term) for term in terms}
    excerpt_words = best_excerpt(flag_terms(line, normalized_terms), PAGE_EXCERPT_CHARS)
    excerpt = "".join(word for word, _ in excerpt_words)
    passage_html = ""
    if excerpt != line:
        passage_html = highlight.mark_terms(line, terms)
    return highlight.mark_terms(excerpt, terms), passage_html


def flag_terms(text: str, terms: set[str]) -> list[Word]:
    """Split a text into words, signs and single spaces. The flag of a word is True if the word is in ``terms``.

    ``terms`` are words of BM25 (``word_tokens``). They also match words of the text that are written in another way,
    such as in full-width letters.
    """
    line = make_visible(" ".join(text.split()))
    return [(part.text, not terms.isdisjoint(part.words)) for part in word_parts(line)]


def best_excerpt(words: Sequence[Word], max_chars: int) -> list[Word]:
    """Return the best part of a text, of at most ``max_chars`` characters, but at least one word.

    ``words`` is the text as :func:`flag_terms` returns it. A part is better if the lengths of its distinct terms have a
    larger sum, or if the sums are equal and it has more terms, repetitions included. Among equally good parts, the
    middle part is chosen, so that the terms have words on both sides. If the text has no terms, its beginning is
    returned. Each end where text is omitted gets a further "…".
    """
    if not words:
        return []
    # Candidate parts: from each word on, as many words as fit, but at least one. Words are counted from 0, and
    # part_ends has the number of the word behind each part.
    word_starts = [0, *accumulate(len(word) for word, _ in words)]
    part_ends = []
    for first, start in enumerate(word_starts[:-1]):
        end = bisect_right(word_starts, start + max_chars) - 1
        part_ends.append(max(first + 1, end))
    # The first part that reaches the text's end contains all later parts.
    del part_ends[bisect_left(part_ends, len(words)) + 1 :]

    part_values = []
    for first, end in enumerate(part_ends):
        terms = [word.lower() for word, is_term in words[first:end] if is_term]
        distinct_length = sum(len(term) for term in set(terms))
        part_values.append((distinct_length, len(terms)))

    first = 0
    best_value = max(part_values)
    if best_value != (0, 0):
        best_parts = [number for number, value in enumerate(part_values) if value == best_value]
        first = best_parts[len(best_parts) // 2]
    end = part_ends[first]
    excerpt = list(words[first:end])
    if first > 0:
        excerpt.insert(0, _CUT_MARK)
    if end < len(words):
        excerpt.append(_CUT_MARK)
    return excerpt


def positives_of(release: Release, configs: Set, split: str) -> dict[str, set[str]] | None:
    """Return the corpus ids of each question's positives, by query id; None if the split has no judgments.

    ``configs`` names the configs of the release that have the set.
    """
    if (configs.qrels, split) not in release.splits():
        return None
    positive_ids = {}
    for query_id, grades in read_judgments(release, configs, split).items():
        positive_ids[query_id] = {passage_id for passage_id, grade in grades.items() if grade > 0}
    return positive_ids
