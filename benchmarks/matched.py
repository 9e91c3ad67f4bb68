"""Measure precision and recall of every way to find questions that ask the same.

With --model, each way labels the pairs of --pairs (in a format of `train --pairs`). The ways are equal texts, equal
normalised texts, n-grams, a model's scores above its threshold, and any of the models. MODEL=X is a model and its
threshold. The table has Wilson intervals of 95 %.

With --out, the pairs become a release. The first question of a pair is a training question. The second question of a
positive pair is a dev question. With --run, the run that `match` wrote is compared with the labels. Its precision is a
lower bound, because questions of different lines may also ask the same.

Example:

  python -m baselines match --model E5 --calibrate dev.txt:label,text1,text2 --out threshold.json
  python benchmarks/matched.py --pairs test.txt:label,text1,text2 --model E5=0.96
  python benchmarks/matched.py --pairs test.txt:label,text1,text2 --out build/matched
  python -m baselines match --release build/matched --model CKPT --encoder DE --recall-sample 10 --out matched.run.gz
  python benchmarks/matched.py --pairs test.txt:label,text1,text2 --run matched.run.gz
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy.stats import binomtest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from baselines import match  # noqa: E402
from baselines.train.question_pairs import QuestionPair, pair_file, read_question_pairs  # noqa: E402
from builders.similar.likeness import LikeTexts  # noqa: E402
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
    precision, recall = (f"{len(right) / len(each):.1%}" if each else "none" for each in (above, known))
    print(f"candidates above {threshold}: {len(above)}; positive: {len(right)}", end=" ")
    print(f"(precision {precision}, recall {recall})")


def compared(pairs: list[QuestionPair], models: list[str], dtype: str) -> None:
    """Print precision and recall of every way as a Markdown table."""
    labels = np.array([pair.label for pair in pairs]) == 1
    similar = {"exact": np.array([pair.first == pair.second for pair in pairs])}
    for way, by, share in [
        ("normalised", "normalised", 1.0),
        *((f"n-grams, {x}", "n-gram", x) for x in (0.8, 0.6, 0.5)),
    ]:
        likes = (LikeTexts({"": pair.first}, ["normalised", by], share=share).find([pair.second]) for pair in pairs)
        similar[way] = np.array([bool(*found) for found in likes])
    for given in models:
        name, _, threshold = given.rpartition("=")
        parser = argparse.ArgumentParser()
        match.add_arguments(parser)
        words = ["--model", name, "--dtype", dtype, "--out", "-"]
        scores = match.scores_of(parser.parse_args(words), [pair[:2] for pair in pairs])
        similar[f"{Path(name).name}, {threshold}"] = np.array(scores) > float(threshold)
    if len(models) > 1:
        similar["any model"] = np.any(list(similar.values())[-len(models) :], axis=0)
    print(f"{len(pairs)} pairs, {labels.sum()} with label 1\n")
    print("| way | pairs found | precision | recall |\n|---|---:|---|---|")
    for way, found in similar.items():
        right = int((found & labels).sum())
        shown = []
        for count in (int(found.sum()), int(labels.sum())):
            test = binomtest(right, max(count, 1))
            low, high = test.proportion_ci(method="wilson")
            shown.append(f"{test.statistic:.1%} ({low:.1%} to {high:.1%})" if count else "")
        print(f"| {way} | {found.sum()} | {shown[0]} | {shown[1]} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", required=True, metavar="FILE[:COLUMNS]", help="labelled pairs of questions")
    parser.add_argument("--first", type=int, default=1000, metavar="N", help="use the first N pairs (default: 1000)")
    parser.add_argument("--threshold", type=float, default=0.5, help="least score of a match (default: 0.5)")
    todo = parser.add_mutually_exclusive_group(required=True)
    todo.add_argument("--run", type=Path, metavar="RUN", help="the run of `match` to evaluate")
    todo.add_argument("--model", nargs="+", metavar="MODEL=X", help="models and thresholds to compare")
    todo.add_argument("--out", type=Path, metavar="DIR", help="the release to write")
    parser.add_argument("--dtype", default="auto", help="precision of --model (default: fp32)")
    args = parser.parse_args()
    pairs = read_question_pairs([pair_file(args.pairs)])[: args.first]
    if args.out:
        release_of(pairs, args.out)
    elif args.model:
        compared(pairs, args.model, args.dtype)
    else:
        measured(pairs, args.run, args.threshold)


if __name__ == "__main__":
    main()
