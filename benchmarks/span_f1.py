"""Compare the speed of span-F1 with a simple implementation that uses a Counter for every span.

Both implementations label the paragraphs of the questions in --raw by their answers, on words and on characters.
Paragraphs and answers with more than --tokens tokens are skipped, because the simple implementation would take minutes
for each of them. The implementations take turns, and figures are medians.

Example:

  python benchmarks/span_f1.py --raw path/to/rows --tokens 120 --json span_f1.json
"""

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
from common import in_turns, machine, parser_of, write_json

from builders.core.words import split_words
from builders.release.rows import RawRow, find_sources, parse_rows
from builders.sources.lines import read_blocks
from builders.text.span_f1 import QuestionTokens, char_ids, label_questions, word_ids
from builders.text.span_options import THRESHOLD

_ROUNDS = 20  # of this project's implementation in one measurement
Texts = list[tuple[list[Sequence[Any]], list[Sequence[Any]]]]  # (paragraphs, answers) of each question


def plain_f1(paragraph: Sequence[Any], answer: Sequence[Any]) -> Fraction:
    """Return the largest F1 over all spans. The Counter of a span grows token by token from each start."""
    answer_tokens = Counter(answer)
    best = Fraction(0)
    for start in range(len(paragraph)):
        span_tokens: Counter[Any] = Counter()
        for end in range(start, len(paragraph)):
            span_tokens[paragraph[end]] += 1
            common_count = sum((span_tokens & answer_tokens).values())
            if common_count:
                span_length = end + 1 - start
                best = max(best, Fraction(2 * common_count, span_length + len(answer)))
    return best


def label_plainly(texts: Texts) -> list[list[Fraction]]:
    """Return, for each paragraph, the largest F1 with each answer of the paragraph's question."""
    scores = []
    for paragraphs, answers in texts:
        for paragraph in paragraphs:
            scores.append([plain_f1(paragraph, answer) for answer in answers])
    return scores


def texts_of(rows: Sequence[RawRow[Any]], unit: str, longest: int) -> Texts:
    """Return the paragraphs and answers of each question, without texts of more than ``longest`` tokens.

    With the unit word, a text is a list of words, otherwise a string.
    """

    def tokens(texts: list[str], segmented: list[Sequence[Any]] | None) -> list[Sequence[Any]]:
        """Return the tokens of the short texts. ``segmented`` has the words of each text if the row has them."""
        token_lists: list[Any] = texts
        if unit == "word":
            token_lists = segmented or [split_words(text) for text in texts]
        return [token_list for token_list in token_lists if len(token_list) <= longest]

    questions = []
    for row in rows:
        paragraphs: list[Sequence[Any]] = []
        for document in row.documents:
            paragraphs += tokens(document.paragraphs, document.segmented_paragraphs)
        questions.append((paragraphs, tokens(row.answers or [], row.segmented_answers)))
    return questions


def encode(texts: Texts, unit: str) -> QuestionTokens:
    """Convert tokens to numbers for :func:`label_questions`."""
    all_paragraphs = list(chain.from_iterable(paragraphs for paragraphs, _ in texts))
    all_answers = list(chain.from_iterable(answers for _, answers in texts))
    if unit == "word":
        (ids, ends), (answer_ids, answer_ends) = word_ids(all_paragraphs, all_answers)
    else:
        ids, ends = char_ids(all_paragraphs)
        answer_ids, answer_ends = char_ids(all_answers)
    # The number of paragraphs, and of answers, until the end of each question.
    paragraph_rows = np.cumsum([len(paragraphs) for paragraphs, _ in texts], dtype=np.int64)
    answer_rows = np.cumsum([len(answers) for _, answers in texts], dtype=np.int64)
    return QuestionTokens(ids, ends, paragraph_rows, answer_ids, answer_ends, answer_rows)


def measure(texts: Texts, unit: str, repeats: int) -> dict[str, Any]:
    """Return the seconds and the speeds of both implementations. Their labels must be equal.

    The simple implementation has the name "plain", this project's "decide".
    """
    questions = encode(texts, unit)
    ways: dict[str, Callable[[], Any]] = {
        "plain": lambda: label_plainly(texts),
        # One round is too short for the clock.
        "decide": lambda: [label_questions(questions) for _ in range(_ROUNDS)][-1],
    }
    seconds, results = in_turns(ways, repeats)
    seconds["decide"] /= _ROUNDS
    plain_labels = [any(score >= THRESHOLD for score in scores) for scores in results["plain"]]
    assert results["decide"].tolist() == plain_labels, "the labels differ"
    compared_tokens = 0
    for paragraphs, answers in texts:
        compared_tokens += sum(map(len, paragraphs)) * len(answers)
    return {
        "unit": unit,
        "paragraphs": len(plain_labels),
        "pairs": sum(map(len, results["plain"])),
        "tokens": int(questions.ids.size),
        "seconds": seconds,
        "decide_times_plain": round(seconds["plain"] / seconds["decide"]),
        "tokens_per_second_decide": round(compared_tokens / seconds["decide"]),
    }


def main() -> None:
    parser = parser_of(__doc__, "--raw", "--repeats", "--json")
    parser.add_argument("--tokens", type=int, default=120, help="limit of a paragraph or answer (default: 120)")
    args = parser.parse_args()
    rows = []
    for block in read_blocks(find_sources(args.raw)):
        rows += [row for _, row in parse_rows(block, segmented=True) if row.answers]
    figures = machine("numba", "numpy")
    figures["repeats"] = args.repeats
    figures["questions"] = len(rows)
    figures["longest"] = args.tokens
    figures["units"] = []
    for unit in ("word", "char"):
        figures["units"].append(measure(texts_of(rows, unit, args.tokens), unit, args.repeats))
    write_json(args.json, figures, show=True)


if __name__ == "__main__":
    main()
