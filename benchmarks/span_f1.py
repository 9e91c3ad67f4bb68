"""Compare the speed of span-F1 with a simple implementation that uses a Counter for every span.

Both implementations label the paragraphs of the questions in --raw by their answers, on words and on characters.
Paragraphs and answers with more than --tokens tokens are skipped, because the simple implementation would take minutes
for each of them. The implementations take turns, and figures are medians.

Example:

  python benchmarks/span_f1.py --raw path/to/rows --tokens 120 --json span_f1.json
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from builders.core.words import words  # noqa: E402
from builders.release.options import THRESHOLD  # noqa: E402
from builders.release.rows import Row, find_sources, parse_rows  # noqa: E402
from builders.release.span_f1 import Questions, char_ids, label_questions, word_ids  # noqa: E402
from builders.sources.lines import read_blocks  # noqa: E402

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
    texts: Texts = []
    for row in rows:
        paragraphs: list[Sequence[Any]] = []
        for document in row.documents:
            given = document.segmented_paragraphs if unit == "word" else document.paragraphs
            paragraphs += [words(p) for p in document.paragraphs] if given is None else given
        answers = row.answers or []
        given_answers = row.segmented_answers if unit == "word" else answers
        answers = [words(a) for a in answers] if given_answers is None else given_answers
        texts.append(([p for p in paragraphs if len(p) <= longest], [a for a in answers if len(a) <= longest]))
    return texts


def encode(texts: Texts, unit: str) -> Questions:
    sides = [[text for question in texts for text in question[side]] for side in (0, 1)]
    (ids, ends), (answers, answer_ends) = word_ids(*sides) if unit == "word" else map(char_ids, sides)
    rows, answer_rows = (np.cumsum([len(question[side]) for question in texts], dtype=np.int64) for side in (0, 1))
    return Questions(ids, ends, rows, answers, answer_ends, answer_rows)


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def measure(texts: Texts, unit: str, repeats: int) -> dict[str, Any]:
    questions = encode(texts, unit)
    label_questions(questions)  # warm-up: compiles the loops
    times: dict[str, list[float]] = {"plain": [], "decide": []}
    for _ in range(repeats):
        seconds, expected = timed(lambda: [[[plain(p, a) for a in row[1]] for p in row[0]] for row in texts])
        times["plain"].append(seconds)
        # Measure 20 rounds together, because one round is too short for the clock.
        seconds, marks = timed(lambda: [label_questions(questions) for _ in range(20)][-1])
        times["decide"].append(seconds / 20)
    decided = [any(score >= THRESHOLD for score in line) for row in expected for line in row]
    assert marks.tolist() == decided, "the labels differ"
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "unit": unit,
        "paragraphs": len(decided),
        "pairs": sum(len(row[0]) * len(row[1]) for row in texts),
        "tokens": int(questions.ids.size),
        "seconds": medians,
        "decide_times_plain": round(medians["plain"] / medians["decide"]),
        "tokens_per_second_decide": round(
            sum(sum(map(len, row[0])) * len(row[1]) for row in texts) / medians["decide"]
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sample = [ROOT / "builders" / "sample"]
    parser.add_argument("--raw", nargs="+", type=Path, default=sample, metavar="PATH", help="default: the sample")
    parser.add_argument("--tokens", type=int, default=120, help="limit of a paragraph or answer (default: 120)")
    parser.add_argument("--repeats", type=int, default=5, help="runs for each figure (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for the figures (default: no file)")
    args = parser.parse_args()
    rows = [
        row
        for block in read_blocks(find_sources(args.raw))
        for _, row in parse_rows(block, segmented=True)
        if row.answers
    ]
    figures: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(os.getloadavg()[0], 1),
        "versions": {name: importlib.metadata.version(name) for name in ("numba", "numpy")}
        | {"python": platform.python_version()},
        "repeats": args.repeats,
        "questions": len(rows),
        "longest": args.tokens,
        "units": [measure(texts_of(rows, unit, args.tokens), unit, args.repeats) for unit in ("word", "char")],
    }
    print(json.dumps(figures, indent=1))
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
