"""Measure time and memory of `similar` and `similar --against` at the size of DuReader-retrieval.

Texts consist of two-character words, drawn by Zipf's law from a vocabulary of 20,000. By default there are 86,395
training questions and 6,000 dev questions. Each dev question has 5 positive passages of 270 characters. One of 150
training questions is a near-duplicate of a dev question.

`--against` reads --rows training pairs (a question and a passage). One of 1,000 pairs has a passage of the release.
Each command runs in its own process.

Example:

  python benchmarks/similar.py --rows 400000 --json similar.json
"""

import json
import random
import tempfile
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
from common import machine, measured, parser_of, write_json

from builders.store.draft import draft_release
from builders.store.layout import CORPUS, QRELS, QUERIES, text_id

_CHARACTERS = 270  # of a passage
_POSITIVES = 5  # of a question
_DUPLICATED = 150  # every 150th training question is a near-duplicate of a dev question
_CONTAMINATED = 1000  # every 1000th training pair has a passage of the release


def _make(folder: Path, *, train_count: int, test_count: int, pair_count: int) -> None:
    """Write the release and the file pairs.jsonl of training pairs to ``folder``.

    ``train_count`` and ``test_count`` are the numbers of training and dev questions, before equal questions are joined.
    """
    generator = random.Random(0)
    characters = [chr(0x4E00 + number) for number in range(3_500)]
    words = ["".join(generator.choices(characters, k=2)) for _ in range(20_000)]
    cumulative_weights = list(accumulate(1 / (rank + 10) for rank in range(len(words))))  # Zipf's law

    def random_text(character_count: int) -> str:
        return "".join(generator.choices(words, cum_weights=cumulative_weights, k=character_count // 2))

    test_questions = [random_text(generator.randint(8, 20)) for _ in range(test_count)]
    train_questions = [random_text(generator.randint(8, 20)) for _ in range(train_count)]
    for number in range(0, train_count, _DUPLICATED):
        train_questions[number] = f"{generator.choice(test_questions)}吗"
    passages = [random_text(_CHARACTERS) for _ in range(test_count * _POSITIVES)]
    passage_ids = [text_id(passage) for passage in passages]
    with draft_release(folder / "release", {"verb": "benchmark", "options": {}, "sources": []}) as draft:
        titles = [""] * len(passages)
        draft.write("corpus", "corpus", [pa.table([passage_ids, titles, passages], schema=CORPUS)])
        for split, questions in (("train", train_questions), ("dev", test_questions)):
            unique_questions = list(dict.fromkeys(questions))
            query_ids = [text_id(question) for question in unique_questions]
            draft.write("queries", split, [pa.table([query_ids, unique_questions], schema=QUERIES)])
            draft.write("qrels", split, [_judgments(query_ids, passage_ids)])
    with open(folder / "pairs.jsonl", "w", encoding="utf-8") as file:
        for number in range(pair_count):
            passage = generator.choice(passages) if number % _CONTAMINATED == 0 else random_text(_CHARACTERS)
            # The full stop makes a passage of the release a near-duplicate, which exact equality would miss.
            row = {"query": random_text(14), "pos": [f"{passage}。"], "neg": []}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _judgments(query_ids: list[str], passage_ids: list[str]) -> pa.Table:
    """Return judgments that deal the passages to the queries in turns, from the first passage again after the last."""
    judged_queries = []
    judged_passages = []
    for number in range(len(query_ids) * _POSITIVES):
        judged_queries.append(query_ids[number // _POSITIVES])
        judged_passages.append(passage_ids[number % len(passage_ids)])
    return pa.table([judged_queries, judged_passages, [1] * len(judged_queries)], schema=QRELS)


def main() -> None:
    parser = parser_of(__doc__, "--json")
    parser.add_argument("--trains", type=int, default=86_395, help="training questions (default: 86395)")
    parser.add_argument("--tests", type=int, default=6_000, help="dev questions (default: 6000)")
    parser.add_argument("--rows", type=int, default=400_000, help="training pairs (default: 400000)")
    parser.add_argument("--workers", type=int, default=1, help="processes of `similar --against` (default: 1)")
    args = parser.parse_args()
    figures: dict[str, Any] = machine("rensa", "pyarrow")
    figures |= {name: value for name, value in vars(args).items() if name != "json"}
    with tempfile.TemporaryDirectory() as folder:
        _make(Path(folder), train_count=args.trains, test_count=args.tests, pair_count=args.rows)
        against = ("--against", f"{folder}/pairs.jsonl", "--workers", args.workers)
        for name, options in (("similar", ("--out", f"{folder}/out")), ("contamination", against)):
            costs, printed = measured("similar", "--release", f"{folder}/release", *options)
            figures[name] = costs | {"printed": printed}
    write_json(args.json, figures, show=True)


if __name__ == "__main__":
    main()
