"""Remove or report training questions similar to dev and test.

If a training question means the same as a dev or test question, training reveals the answer (Section 2.3). A training
question is removed if it matches a dev or test question in one of these ways, the strongest first:

  exact       The texts are equal.
  normalised  The letters and digits are equal, ignoring punctuation, blanks, width and case.
  n-gram      The Jaccard similarity of character n-grams is at least --jaccard, and no short text adds new letters.
  model       The score of `python -m baselines match` is above --threshold. The paper uses only --by model.

The questions are removed from queries, qrels, train and crosslingual. train-similar has the removed questions with
their passages. duplicated has the dev and test questions that are similar to a removed question. others has the
remaining dev and test questions. To remove further questions, run the verb on its own output with other options.

--threshold depends on the model: 0.5 for the probabilities of a question-matching model (Section 2.3), or the result of
`python -m baselines match --calibrate`. At 0.5, the cosines of an encoder such as e5 match nearly every question.

--against FILE removes no questions. It searches other training pairs for the questions and positive passages of dev and
test. FILE is JSON lines, plain or gzipped, or Parquet. The report counts the matches of each file and of all files by
the way to match. It also counts questions that share a row with one of their positive passages, and shows examples.
--questions DIR writes the questions of the pairs, of dev and of test as a release for `python -m baselines match`.

example:
  python -m builders similar --release build/release --out build/similar
  python -m baselines match --release build/release --split dev test --model runs/matching --out similar.run
  python -m builders similar --release build/release --scores similar.run --threshold 0.5 --out build/similar
  python -m builders similar --release build/release --against bge-train.jsonl.gz other/*.parquet
"""

import argparse
import json
from pathlib import Path

from builders.core.command import add_format, number_between, whole_number
from builders.core.errors import log
from builders.core.tables import print_result
from builders.text.likeness import TESTED, add_ngrams
from builders.text.ngram_options import HOW


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--release", type=Path, required=True, metavar="DIR", help="release directory to read")
    add("--out", type=Path, metavar="OUT", help="new release (may be --release); report of --against (default: stdout)")
    add("--list", type=Path, metavar="FILE", help="write every similar pair to FILE, as JSON lines")
    add("--split", nargs="+", choices=TESTED, help="splits to compare with (default: dev test)")
    add("--by", nargs="+", choices=HOW, default=list(HOW), help="ways to match (default: all; model needs --scores)")
    add("--scores", type=Path, nargs="+", default=[], metavar="RUN", help="scores of `baselines match`")
    add(
        "--threshold",
        type=number_between(0, 1),
        metavar="X",
        help="questions with a score above X are similar (required with --scores)",
    )
    add_ngrams(parser)
    against = parser.add_argument_group("training pairs").add_argument
    against("--against", type=Path, nargs="+", metavar="FILE", help="report on these training pairs")
    against("--question", nargs="+", metavar="NAME", help="keys or columns with questions (default: usual names)")
    against(
        "--positive", nargs="+", metavar="NAME", help="keys or columns with positive passages (default: usual names)"
    )
    against("--questions", type=Path, metavar="DIR", help="only write the questions of FILE as a release for `match`")
    against(
        "--workers", type=whole_number(1), metavar="N", help="worker processes (default: all cores, or 1 for few pairs)"
    )
    add_format(parser)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> None:
    if args.against and args.list:
        args.usage_error("--list does not work with --against, which removes no questions")
    if not args.against and (args.out is None or args.questions or args.question or args.positive):
        args.usage_error("expected --out or --against; --question, --positive and --questions need --against")
    if args.by == ["model"] and not args.scores:
        args.usage_error("--by model needs --scores")
    if args.scores and "model" in args.by and args.threshold is None:
        args.usage_error("--scores needs --threshold: 0.5 for probabilities, or the result of `match --calibrate`")
    from builders.core.files import check_file, write_text
    from builders.similar import contamination, remove

    if not args.against:
        counts = remove.remove(args)
        print_result(counts, remove.as_table(counts, args.out), args.format)
    elif args.questions:
        contamination.write_questions(args)
    else:
        if args.out:
            check_file(args.out)
        report, is_json = contamination.compare(args), args.format == "json"
        text = json.dumps(report, ensure_ascii=False, indent=1) if is_json else contamination.as_text(report)
        if args.out:
            write_text(args.out, text + "\n")
        else:
            print(text)
    if not args.scores and not args.questions and "model" in args.by:
        log.warning(
            "without --scores, few reworded questions are found (1 in 80 on cMedQQ, see docs/similar.md); write scores"
            " of any encoder: python -m baselines match --model M --release DIR --out RUN"
        )
