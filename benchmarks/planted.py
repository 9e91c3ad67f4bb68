"""A release with what Table 6 and Figure 2 measure, planted: for collections that have neither (the demo rows).

- Similar training questions: of every N-th dev question a rewording, with that question's positive passages, stands in
  `train-similar`, as if `builders similar` had found and removed it; `duplicated` and `others` tell dev apart by it.
- Judgments before the correction: `qrels-before` has, of each dev question, the first half of its positives (rounded
  up): what people would have had to find.

Nothing is drawn at random. Figures on it show that the rows of the table and the figure run, and in which direction
the two things work; how large they are in a collection is not known from it.

Example:

  python benchmarks/planted.py --release build/demo --every 3 --out build/planted
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from builders.store.draft import draft_release  # noqa: E402
from builders.store.layout import BEFORE, REMOVED, TOLD_APART, schema_of  # noqa: E402
from builders.store.reader import Release, open_release  # noqa: E402

Rows = list[dict[str, Any]]
# Words that say the same, both ways; a question with none of them is asked politely.
_SAME = (("怎么样", "如何"), ("如何", "怎么"), ("怎么", "如何"), ("什么", "啥"), ("多少", "几"), ("哪里", "哪儿"))


def reworded(question: str) -> str:
    """The question in other words."""
    for word, other in _SAME:
        if word in question:
            return question.replace(word, other)
    return f"请问{question}"


def planted(release: Release, every: int) -> dict[tuple[str, str], Rows]:
    """The rows of the configs that are added, by config and split."""
    similar: Rows = []
    apart: tuple[Rows, Rows] = ([], [])
    before: Rows = []
    for number, row in enumerate(release.table("dev", "dev").to_pylist()):
        question, good = {"_id": row["query_id"], "text": row["query"]}, row["positive_passages"]
        apart[number % every > 0].append(question)
        if number % every == 0:
            text = reworded(row["query"])
            found = {"query_id": hashlib.md5(text.encode()).hexdigest(), "query": text}
            similar.append({**found, "positive_passages": good, "negative_passages": []})
        for each in good[: (len(good) + 1) // 2]:
            before.append({"query-id": row["query_id"], "corpus-id": each["docid"], "score": 1})
    told = {(config, "dev"): rows for config, rows in zip(TOLD_APART, apart, strict=True)}
    return {(REMOVED, "train"): similar, **told, (BEFORE, "dev"): before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", type=Path, required=True, metavar="DIR")
    parser.add_argument("--every", type=int, default=3, metavar="N", help="dev questions: the share 1/N (default: 3)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    args = parser.parse_args()
    base = open_release(args.release)
    build = {"verb": "planted", "options": {"every": args.every}, "sources": []}
    with draft_release(args.out, build, base) as draft:
        for (config, split), rows in planted(base, args.every).items():
            draft.write(config, split, [pa.Table.from_pylist(rows, schema_of(config))])
            print(f"{config}/{split}: {len(rows)} rows")


if __name__ == "__main__":
    main()
