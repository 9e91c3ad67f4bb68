"""Remove or report training questions similar to dev and test.

A training question that asks what a development or test question asks gives its answer away (Section 2.3). It is
removed if it matches in any of these ways, the strongest first:

  exact       the same text;
  normalised  the same letters and digits: no punctuation, no blanks, one width and case;
  n-gram      the two share --jaccard of their n-grams of characters;
  model       the score of a question-matching model (`python -m baselines match`) is higher than --threshold. The paper
              has this way alone: --by model.

The new release lacks them in queries, qrels and train (and crosslingual). It has the configs train-similar (the removed
questions with their passages), duplicated (the development and test questions that one of them is similar to) and
others (the rest). Running it again on its own output removes further questions.

--against FILE reports on anyone's training pairs instead: questions and positive passages of dev and test in JSON lines
(.gz, too) or Parquet, by the usual keys; --question and --positive name others. Printed are, for a file and for all
together: how many questions, and how many of their positive passages, were found in which way; how many questions with
one of their own positive passages in the same row; examples. --questions DIR writes the questions of the pairs and
those of the splits as a release, from which `python -m baselines match` makes the scores.

Example:

  python -m builders similar --release build/release --out build/similar
  python -m baselines match --release build/release --split dev test --model runs/matching --out similar.run
  python -m builders similar --release build/release --scores similar.run --threshold 0.5 --out build/similar
  python -m builders similar --release build/release --against bge-train.jsonl.gz other/*.parquet
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from builders.core.command import add_format, number_between, whole_number
from builders.core.tables import print_result
from builders.similar.likeness import HOW, NGRAM, SHARE, TESTED, THRESHOLD


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--release", type=Path, required=True, metavar="DIR", help="the release to start from")
    add("--out", type=Path, metavar="OUT", help="the new release (may be --release), or the report (stdout)")
    add("--list", type=Path, metavar="FILE", help="write every pair that was found to it, as JSON lines")
    add("--split", nargs="+", choices=TESTED, help="the questions to keep apart (dev test)")
    add("--by", nargs="+", choices=HOW, default=list(HOW), help="the ways that count (all; model with --scores)")
    add("--scores", type=Path, nargs="+", default=[], metavar="RUN", help="scores of `baselines match`")
    add(
        "--threshold",
        type=number_between(0, 1),
        default=THRESHOLD,
        metavar="X",
        help=f"similar is a score above it ({THRESHOLD})",
    )
    add_ngrams(parser)
    against = parser.add_argument_group("training pairs").add_argument
    against("--against", type=Path, nargs="+", metavar="FILE", help="report on these training pairs")
    against("--question", nargs="+", metavar="NAME", help="keys or columns that hold questions")
    against("--positive", nargs="+", metavar="NAME", help="keys or columns that hold positive passages")
    against("--questions", type=Path, metavar="DIR", help="write the questions as a release for `match` alone")
    against("--workers", type=whole_number(1), metavar="N", help="processes (all cores; 1 where the pairs are few)")
    add_format(parser)
    parser.set_defaults(usage_error=parser.error)


def add_ngrams(parser: argparse.ArgumentParser) -> None:
    """When two texts are nearly the same: ``--ngram`` and ``--jaccard``, for every verb that compares texts."""
    parser.add_argument(
        "--ngram", type=whole_number(1), default=NGRAM, metavar="N", help=f"characters of an n-gram ({NGRAM})"
    )
    parser.add_argument(
        "--jaccard",
        type=number_between(0.3, 1),
        default=SHARE,
        metavar="X",
        help=f"shared n-grams, from 0.3 on ({SHARE})",
    )


def run(args: argparse.Namespace) -> None:
    if args.against and args.list:
        args.usage_error("--list lists removed questions; --against removes none")
    if not args.against and (args.out is None or args.questions or args.question or args.positive):
        args.usage_error("expected --out, or --against, with which --question, --positive and --questions go")
    if args.by == ["model"] and not args.scores:
        args.usage_error("--by model needs --scores")
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
        report = contamination.compare(args)
        text = (
            json.dumps(report, ensure_ascii=False, indent=1) if args.format == "json" else contamination.as_text(report)
        )
        if args.out:
            write_text(args.out, text + "\n")
        else:
            print(text)
