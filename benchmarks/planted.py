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
_SYNONYMS = (("怎么样", "如何"), ("如何", "怎么"), ("怎么", "如何"), ("什么", "啥"), ("多少", "几"), ("哪里", "哪儿"))


def reword(question: str) -> str:
    """Return the question in other words."""
    for word, synonym in _SYNONYMS:
        if word in question:
            return question.replace(word, synonym)
    return f"请问{question}"


def simulated_configs(release: Release, every: int) -> dict[tuple[str, str], Rows]:
    """Return the rows of the added configs, by config and split."""
    similar_rows: Rows = []
    duplicated_rows: Rows = []
    other_rows: Rows = []
    judgments_before: Rows = []
    for number, row in enumerate(release.table("dev", "dev").to_pylist()):
        positives = row["positive_passages"]
        question = {"_id": row["query_id"], "text": row["query"]}
        if number % every == 0:
            duplicated_rows.append(question)
            similar_rows.append(_similar_row(row["query"], positives))
        else:
            other_rows.append(question)
        first_half = positives[: (len(positives) + 1) // 2]
        for positive in first_half:
            judgments_before.append({"query-id": row["query_id"], "corpus-id": positive["docid"], "score": 1})
    duplicated, others = TOLD_APART
    return {
        (REMOVED, "train"): similar_rows,
        (duplicated, "dev"): duplicated_rows,
        (others, "dev"): other_rows,
        (BEFORE, "dev"): judgments_before,
    }


def _similar_row(question: str, positives: Rows) -> dict[str, Any]:
    """Return the joined row of a training question that asks the same as a dev question."""
    similar_question = reword(question)
    return {
        "query_id": hashlib.md5(similar_question.encode()).hexdigest(),
        "query": similar_question,
        "positive_passages": positives,
        "negative_passages": [],
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release to extend")
    parser.add_argument("--every", type=int, default=3, metavar="N", help="reword every N-th question (default: 3)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the release to write")
    args = parser.parse_args()
    base = open_release(args.release)
    build = {"verb": "planted", "options": {"every": args.every}, "sources": []}
    with draft_release(args.out, build, base) as draft:
        for (config, split), rows in simulated_configs(base, args.every).items():
            draft.write(config, split, [pa.Table.from_pylist(rows, schema_of(config))])
            print(f"{config}/{split}: {len(rows)} rows")


if __name__ == "__main__":
    main()
