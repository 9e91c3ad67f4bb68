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

_CHARACTERS, _PER_QUESTION = 270, 5


def _make(folder: Path, *, train_count: int, test_count: int, pair_count: int) -> None:
    """Write a release and training pairs."""
    draw = random.Random(0)
    letters = [chr(0x4E00 + number) for number in range(3_500)]
    words = ["".join(draw.choices(letters, k=2)) for _ in range(20_000)]
    weights = list(accumulate(1 / (rank + 10) for rank in range(len(words))))

    def text(characters: int) -> str:
        return "".join(draw.choices(words, cum_weights=weights, k=characters // 2))

    tests = [text(draw.randint(8, 20)) for _ in range(test_count)]
    trains = [text(draw.randint(8, 20)) for _ in range(train_count)]
    trains[::150] = [f"{draw.choice(tests)}吗" for _ in trains[::150]]
    passages = [text(_CHARACTERS) for _ in range(test_count * _PER_QUESTION)]
    with draft_release(folder / "release", {"verb": "benchmark", "options": {}, "sources": []}) as draft:
        ids = [text_id(each) for each in passages]
        draft.write("corpus", "corpus", [pa.table([ids, [""] * len(ids), passages], schema=CORPUS)])
        for split, questions in (("train", list(dict.fromkeys(trains))), ("dev", list(dict.fromkeys(tests)))):
            asked = [text_id(each) for each in questions]
            draft.write("queries", split, [pa.table([asked, questions], schema=QUERIES)])
            places = [(place, number) for place in range(len(asked)) for number in range(_PER_QUESTION)]
            rows = [
                [asked[place] for place, _ in places],
                [ids[(place * _PER_QUESTION + number) % len(ids)] for place, number in places],
                [1] * len(places),
            ]
            draft.write("qrels", split, [pa.table(rows, schema=QRELS)])
    with open(folder / "pairs.jsonl", "w", encoding="utf-8") as file:
        for number in range(pair_count):
            passage = draw.choice(passages) if number % 1000 == 0 else text(_CHARACTERS)
            row = {"query": text(14), "pos": [f"{passage}。"], "neg": []}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


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
        pairs = ("--against", f"{folder}/pairs.jsonl", "--workers", args.workers)
        for name, options in (("similar", ("--out", f"{folder}/out")), ("contamination", pairs)):
            costs, printed = measured("similar", "--release", f"{folder}/release", *options)
            figures[name] = {**costs, "printed": printed}
    write_json(args.json, figures, show=True)


if __name__ == "__main__":
    main()
