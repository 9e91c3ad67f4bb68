"""Add simulated data for Table 6 and Figure 2 to a release without such data, for example the demo.

- Similar training questions: every N-th dev question is reworded, and added to `train-similar` with the same positive
  passages, as if `builders similar` had removed it. The configs `duplicated` and `others` split dev accordingly.
- Judgments before the correction: `qrels-before` has the first half (rounded up) of each dev question's positives. The
  other half simulates the positives that annotators still have to find.

Nothing is random. Scores on this release show the direction of each effect. The scores do not show the size of the
effects in a real collection.

Example:

  python benchmarks/planted.py --release build/demo --every 3 --out build/planted
"""

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
from common import parser_of

from builders.store.draft import draft_release
from builders.store.layout import BEFORE, REMOVED, TOLD_APART, schema_of
from builders.store.reader import Release, open_release

Rows = list[dict[str, Any]]
# Replacements of question words. A question without any of these words gets 请问 (may I ask) in front.
_SAME = (("怎么样", "如何"), ("如何", "怎么"), ("怎么", "如何"), ("什么", "啥"), ("多少", "几"), ("哪里", "哪儿"))


def reworded(question: str) -> str:
    """Return the question in other words."""
    for word, other in _SAME:
        if word in question:
            return question.replace(word, other)
    return f"请问{question}"


def planted(release: Release, every: int) -> dict[tuple[str, str], Rows]:
    """Return the rows of the added configs, by config and split."""
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
    parser = parser_of(__doc__)
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release to extend")
    parser.add_argument("--every", type=int, default=3, metavar="N", help="reword every N-th question (default: 3)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the release to write")
    args = parser.parse_args()
    base = open_release(args.release)
    build = {"verb": "planted", "options": {"every": args.every}, "sources": []}
    with draft_release(args.out, build, base) as draft:
        for (config, split), rows in planted(base, args.every).items():
            draft.write(config, split, [pa.Table.from_pylist(rows, schema_of(config))])
            print(f"{config}/{split}: {len(rows)} rows")


if __name__ == "__main__":
    main()
