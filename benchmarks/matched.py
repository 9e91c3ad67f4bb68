"""Measure how many known paraphrases `match` finds.

With --out, labelled pairs of questions (in a format of `train --pairs`) become a release. The first question of a pair
is a training question. The second question of a positive pair is a dev question. With --run, the run that `match` wrote
is compared with the labels. Precision is a lower bound, because questions of different lines may also ask the same.

Example:

  python benchmarks/matched.py --pairs test.txt:label,text1,text2 --out build/matched
  python -m baselines match --release build/matched --model CKPT --encoder DE --recall-sample 10 --out matched.run.gz
  python benchmarks/matched.py --pairs test.txt:label,text1,text2 --run matched.run.gz
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pyarrow as pa

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from baselines.train.question_pairs import QuestionPair, pair_file, read_question_pairs  # noqa: E402
from builders.store.draft import draft_release  # noqa: E402
from builders.store.layout import QUERIES, text_id  # noqa: E402
from builders.store.runs import read_run  # noqa: E402


def release_of(pairs: list[QuestionPair], out: Path) -> None:
    """Write the questions of the pairs as a release that has only queries."""
    questions = {
        "train": dict.fromkeys(pair.first for pair in pairs),
        "dev": dict.fromkeys(pair.second for pair in pairs if pair.label),
    }
    with draft_release(out, {"verb": "matched", "options": {}, "sources": []}) as draft:
        for split, texts in questions.items():
            ids = [text_id(text) for text in texts]
            draft.write("queries", split, [pa.table([ids, list(texts)], schema=QUERIES)])
            print(f"{split}: {len(ids)} questions")


def measured(pairs: list[QuestionPair], run: Path, threshold: float) -> None:
    """Print precision and recall of a run of question pairs, by the labels."""
    known = {(text_id(pair.second), text_id(pair.first)) for pair in pairs if pair.label}
    scores = {(query, other): score for query, found in read_run(run).hits.items() for other, score in found}
    above = {pair for pair, score in scores.items() if score > threshold}
    right = above & known
    print(f"positive pairs: {len(known)}; found among the {len(scores)} candidates: {len(known & scores.keys())}")
    print(
        f"candidates above {threshold}: {len(above)}; positive: {len(right)} (precision {len(right) / len(above):.1%},",
        end=" ",
    )
    print(f"recall {len(right) / len(known):.1%})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", required=True, metavar="FILE[:COLUMNS]", help="labelled pairs of questions")
    parser.add_argument("--first", type=int, default=1000, metavar="N", help="use the first N pairs (default: 1000)")
    parser.add_argument("--threshold", type=float, default=0.5, help="least score of a match (default: 0.5)")
    todo = parser.add_mutually_exclusive_group(required=True)
    todo.add_argument("--run", type=Path, metavar="RUN", help="the run of `match` to evaluate")
    todo.add_argument("--out", type=Path, metavar="DIR", help="the release to write")
    args = parser.parse_args()
    pairs = read_question_pairs([pair_file(args.pairs)])[: args.first]
    if args.out:
        release_of(pairs, args.out)
    else:
        measured(pairs, args.run, args.threshold)


if __name__ == "__main__":
    main()
