"""Compare the speed of span-F1 with a simple implementation that uses a Counter for every span.

Both implementations label the paragraphs of the questions in --raw by their answers, on words and on characters.
Paragraphs and answers with more than --tokens tokens are skipped, because the simple implementation would take minutes
for each of them. The implementations take turns, and figures are medians.

Example:

  python benchmarks/span_f1.py --raw path/to/rows --tokens 120 --json span_f1.json
"""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from common import in_turns, machine, parser_of, write_json

from builders.core.words import words
from builders.release.rows import Row, find_sources, parse_rows
from builders.sources.lines import read_blocks
from builders.text.span_f1 import Questions, char_ids, label_questions, word_ids
from builders.text.span_options import THRESHOLD

Texts = list[tuple[list[Sequence[Any]], list[Sequence[Any]]]]  # (paragraphs, answers) of each question


def plain(paragraph: Sequence[Any], answer: Sequence[Any]) -> Fraction:
    """Return the largest F1 over all spans. The Counter of a span grows token by token from each start."""
    wanted, best = Counter(answer), Fraction(0)
    for start in range(len(paragraph)):
        span: Counter[Any] = Counter()
        for end in range(start, len(paragraph)):
            span[paragraph[end]] += 1
            common = sum((span & wanted).values())
            if common:
                best = max(best, Fraction(2 * common, end + 1 - start + len(answer)))
    return best


def texts_of(rows: Sequence[Row[Any]], unit: str, longest: int) -> Texts:
    """Return the paragraphs and answers of each question, without texts of more than ``longest`` tokens."""

    def tokens(texts: list[str], segmented: list[Sequence[Any]] | None) -> list[Sequence[Any]]:
        found: list[Any] = texts if unit == "char" else segmented or [words(text) for text in texts]
        return [each for each in found if len(each) <= longest]

    return [
        (
            [each for part in row.documents for each in tokens(part.paragraphs, part.segmented_paragraphs)],
            tokens(row.answers or [], row.segmented_answers),
        )
        for row in rows
    ]


def encode(texts: Texts, unit: str) -> Questions:
    """Convert tokens to numbers for :func:`label_questions`."""
    sides = [[text for question in texts for text in question[side]] for side in (0, 1)]
    (ids, ends), (answers, answer_ends) = word_ids(*sides) if unit == "word" else map(char_ids, sides)
    rows, answer_rows = (np.cumsum([len(question[side]) for question in texts], dtype=np.int64) for side in (0, 1))
    return Questions(ids, ends, rows, answers, answer_ends, answer_rows)


def measure(texts: Texts, unit: str, repeats: int) -> dict[str, Any]:
    questions = encode(texts, unit)
    ways = {
        "plain": lambda: [[plain(p, a) for a in answers] for paragraphs, answers in texts for p in paragraphs],
        # Measure 20 rounds together, because one round is too short for the clock.
        "decide": lambda: [label_questions(questions) for _ in range(20)][-1],
    }
    seconds, found = in_turns(ways, repeats)
    seconds["decide"] /= 20
    decided = [any(score >= THRESHOLD for score in scores) for scores in found["plain"]]
    assert found["decide"].tolist() == decided, "the labels differ"
    compared = sum(sum(map(len, paragraphs)) * len(answers) for paragraphs, answers in texts)
    return {
        "unit": unit,
        "paragraphs": len(decided),
        "pairs": sum(map(len, found["plain"])),
        "tokens": int(questions.ids.size),
        "seconds": seconds,
        "decide_times_plain": round(seconds["plain"] / seconds["decide"]),
        "tokens_per_second_decide": round(compared / seconds["decide"]),
    }


def main() -> None:
    parser = parser_of(__doc__, "--raw", "--repeats", "--json")
    parser.add_argument("--tokens", type=int, default=120, help="limit of a paragraph or answer (default: 120)")
    args = parser.parse_args()
    parsed = (row for block in read_blocks(find_sources(args.raw)) for _, row in parse_rows(block, segmented=True))
    rows = [row for row in parsed if row.answers]
    figures = {
        **machine("numba", "numpy"),
        "repeats": args.repeats,
        "questions": len(rows),
        "longest": args.tokens,
        "units": [measure(texts_of(rows, unit, args.tokens), unit, args.repeats) for unit in ("word", "char")],
    }
    write_json(args.json, figures, show=True)


if __name__ == "__main__":
    main()
