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
import numpy.typing as npt
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

_NGRAM_SHARES = (0.8, 0.6, 0.5)  # smallest Jaccard similarities of n-grams


def write_questions(pairs: list[QuestionPair], out: Path) -> None:
    """Write the questions of the pairs as a release that has only queries, each question once.

    The first questions are in train, and the second questions of the positive pairs in dev.
    """
    questions = {
        "train": dict.fromkeys(pair.first for pair in pairs),
        "dev": dict.fromkeys(pair.second for pair in pairs if pair.label),
    }
    with draft_release(out, {"verb": "matched", "options": {}, "sources": []}) as draft:
        for split, texts in questions.items():
            query_ids = [text_id(text) for text in texts]
            draft.write("queries", split, [pa.table([query_ids, list(texts)], schema=QUERIES)])
            print(f"{split}: {len(query_ids)} questions")


def measure_run(pairs: list[QuestionPair], run_path: Path, threshold: float) -> None:
    """Print precision and recall of a run of `match`, by the labels of the pairs.

    The run's queries are the dev questions of :func:`write_questions`, and its hits are training questions.
    """
    positive_pairs = {(text_id(pair.second), text_id(pair.first)) for pair in pairs if pair.label}
    scores: dict[tuple[str, str], float] = {}
    for query_id, hits in read_run(run_path).hits.items():
        for train_id, score in hits:
            scores[query_id, train_id] = score
    matches = {pair for pair, score in scores.items() if score > threshold}
    right_matches = matches & positive_pairs
    candidate_count = len(positive_pairs & scores.keys())
    print(f"positive pairs: {len(positive_pairs)}; found among the {len(scores)} candidates: {candidate_count}")
    precision = f"{len(right_matches) / len(matches):.1%}" if matches else "none"
    recall = f"{len(right_matches) / len(positive_pairs):.1%}" if positive_pairs else "none"
    print(f"candidates above {threshold}: {len(matches)}; positive: {len(right_matches)}", end=" ")
    print(f"(precision {precision}, recall {recall})")


def share_of(part: int, total: int) -> str:
    """Format a share with its Wilson interval, or as an empty cell if ``total`` is 0."""
    if not total:
        return ""
    test = binomtest(int(part), int(total))
    low, high = test.proportion_ci(method="wilson")
    return f"{test.statistic:.1%} ({low:.1%} to {high:.1%})"


def compare_ways(pairs: list[QuestionPair], models: list[str], dtype: str) -> None:
    """Print precision and recall of every way as a Markdown table. ``models`` has the words MODEL=X of --model."""
    labels = np.array([pair.label for pair in pairs]) == 1
    matches = {
        "exact": np.array([pair.first == pair.second for pair in pairs]),
        "normalised": _match_texts(pairs, ["normalised"], 1.0),
    }
    for share in _NGRAM_SHARES:
        matches[f"n-grams, {share}"] = _match_texts(pairs, ["normalised", "n-gram"], share)
    model_matches = []
    for model_and_threshold in models:
        name, _, threshold = model_and_threshold.rpartition("=")
        model = open_question_model(name, work=work_of(dtype=dtype), similarity="cosine")
        scores = score_question_pairs(model, [(pair.first, pair.second) for pair in pairs])
        model_matches.append(np.array(scores) > float(threshold))
        matches[f"{Path(name).name}, {threshold}"] = model_matches[-1]
    if len(models) > 1:
        matches["any model"] = np.any(model_matches, axis=0)
    print(f"{len(pairs)} pairs, {labels.sum()} with label 1\n")
    rows = []
    for way, is_match in matches.items():
        right_count = (is_match & labels).sum()
        precision = share_of(right_count, is_match.sum())
        recall = share_of(right_count, labels.sum())
        rows.append([way, str(is_match.sum()), precision, recall])
    print(markdown_table(["way", "pairs found", "precision", "recall"], rows))


def _match_texts(pairs: list[QuestionPair], methods: list[str], share: float) -> npt.NDArray[np.bool_]:
    """Return for each pair: True if one of the methods of :mod:`builders.text.likeness` finds the questions similar."""
    is_match = []
    for pair in pairs:
        likes = list(LikeTexts({"": pair.first}, methods, share=share).find([pair.second]))
        is_match.append(bool(likes[0]))
    return np.array(is_match)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--pairs", required=True, metavar="FILE[:COLUMNS]", help="labelled pairs of questions")
    parser.add_argument("--first", type=int, default=1000, metavar="N", help="use the first N pairs (default: 1000)")
    threshold = "candidates of --run with a score above X are matches (default: 0.5)"
    parser.add_argument("--threshold", type=float, default=0.5, metavar="X", help=threshold)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--run", type=Path, metavar="RUN", help="the run of `match` to evaluate")
    action.add_argument("--model", nargs="+", metavar="MODEL=X", help="models and thresholds to compare")
    action.add_argument("--out", type=Path, metavar="DIR", help="the release to write")
    parser.add_argument("--dtype", default="auto", help="precision of --model, as in `match` (default: auto)")
    args = parser.parse_args()
    pairs = read_question_pairs([pair_file(args.pairs)])[: args.first]
    if args.out:
        write_questions(pairs, args.out)
    elif args.model:
        compare_ways(pairs, args.model, args.dtype)
    else:
        measure_run(pairs, args.run, args.threshold)


if __name__ == "__main__":
    main()
