"""Measure precision and recall of every way to find questions that ask the same.

With --model, each way labels the pairs of --pairs (in a format of `train --pairs`). The ways are equal texts, equal
normalised texts, n-grams, each model's scores above its threshold, and a match by any model. MODEL=X is a model and its
threshold. The table has Wilson intervals of 95 %.

With --out, the pairs become a release. The first question of a pair is a training question. The second question of a
positive pair is a dev question. With --run, a run that `match` wrote for this release is compared with the labels. The
precision of a run is a lower bound, because two questions of different pairs may also ask the same.

Example:

  python -m baselines match --model E5 --calibrate dev.txt:label,text1,text2 --out threshold.json
  python benchmarks/matched.py --pairs test.txt:label,text1,text2 --model E5=0.96
  python benchmarks/matched.py --pairs test.txt:label,text1,text2 --out build/matched
  python -m baselines match --release build/matched --model CKPT --encoder DE --recall-sample 10 --out matched.run.gz
  python benchmarks/matched.py --pairs test.txt:label,text1,text2 --run matched.run.gz
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
from common import parser_of
from scipy.stats import binomtest

from baselines.retrieve.devices import work_of
from baselines.retrieve.question_matching import open_question_model, score_question_pairs
from baselines.retrieve.question_pairs import QuestionPair, pair_file, read_question_pairs
from builders.core.tables import markdown_table
from builders.store.draft import draft_release
from builders.store.layout import QUERIES, text_id
from builders.store.runs import read_run
from builders.text.likeness import LikeTexts


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
    """Print precision and recall of a run of `match`, by the labels of the pairs."""
    known = {(text_id(pair.second), text_id(pair.first)) for pair in pairs if pair.label}
    scores = {(query, other): score for query, found in read_run(run).hits.items() for other, score in found}
    above = {pair for pair, score in scores.items() if score > threshold}
    right = above & known
    print(f"positive pairs: {len(known)}; found among the {len(scores)} candidates: {len(known & scores.keys())}")
    precision, recall = (f"{len(right) / len(each):.1%}" if each else "none" for each in (above, known))
    print(f"candidates above {threshold}: {len(above)}; positive: {len(right)}", end=" ")
    print(f"(precision {precision}, recall {recall})")


def share_of(part: int, whole: int) -> str:
    """Format a share with its Wilson interval, or as an empty cell if ``whole`` is 0."""
    if not whole:
        return ""
    test = binomtest(int(part), int(whole))
    low, high = test.proportion_ci(method="wilson")
    return f"{test.statistic:.1%} ({low:.1%} to {high:.1%})"


def compared(pairs: list[QuestionPair], models: list[str], dtype: str) -> None:
    """Print precision and recall of every way as a Markdown table."""
    labels = np.array([pair.label for pair in pairs]) == 1
    similar = {"exact": np.array([pair.first == pair.second for pair in pairs])}
    shares = [("normalised", "normalised", 1.0), *((f"n-grams, {x}", "n-gram", x) for x in (0.8, 0.6, 0.5))]
    for way, by, share in shares:
        likes = (LikeTexts({"": pair.first}, ["normalised", by], share=share).find([pair.second]) for pair in pairs)
        similar[way] = np.array([bool(*found) for found in likes])
    for given in models:
        name, _, threshold = given.rpartition("=")
        model = open_question_model(name, work=work_of(dtype=dtype), similarity="cosine")
        scores = score_question_pairs(model, [pair[:2] for pair in pairs])
        similar[f"{Path(name).name}, {threshold}"] = np.array(scores) > float(threshold)
    if len(models) > 1:
        similar["any model"] = np.any(list(similar.values())[-len(models) :], axis=0)
    print(f"{len(pairs)} pairs, {labels.sum()} with label 1\n")
    rows = []
    for way, found in similar.items():
        right = (found & labels).sum()
        rows.append([way, str(found.sum()), share_of(right, found.sum()), share_of(right, labels.sum())])
    print(markdown_table(["way", "pairs found", "precision", "recall"], rows))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--pairs", required=True, metavar="FILE[:COLUMNS]", help="labelled pairs of questions")
    parser.add_argument("--first", type=int, default=1000, metavar="N", help="use the first N pairs (default: 1000)")
    threshold = "candidates of --run with a score above X are matches (default: 0.5)"
    parser.add_argument("--threshold", type=float, default=0.5, metavar="X", help=threshold)
    todo = parser.add_mutually_exclusive_group(required=True)
    todo.add_argument("--run", type=Path, metavar="RUN", help="the run of `match` to evaluate")
    todo.add_argument("--model", nargs="+", metavar="MODEL=X", help="models and thresholds to compare")
    todo.add_argument("--out", type=Path, metavar="DIR", help="the release to write")
    parser.add_argument("--dtype", default="auto", help="precision of --model, as in `match` (default: auto)")
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
