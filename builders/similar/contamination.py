"""Find dev and test questions and answers in training pairs.

Whether a model was trained on this benchmark is told by its training data: compared with the development and test
questions and their positive passages are any training pairs, JSON lines (.gz, too) or Parquet: FlagEmbedding's (query,
pos, neg), Tevatron's (query, positive_passages), triplets (anchor, positive, negative), MTEB's (text), lists of texts.
Negatives are passed over. --question and --positive name other keys or columns.

Texts are compared as by `similar`: exact, normalised, n-gram; questions by a question-matching model's scores, too
(--scores), where a training question's id is the MD5 of its text. --questions DIR writes the questions of the pairs and
those of the splits as a release, from which `python -m baselines match` makes the scores.

Printed, a file and for all together: how many questions, and how many of their positive passages, were found in which
way; how many questions with one of their own positive passages in the same row; examples.

Example:

  python -m builders contamination --release build/release --pairs bge-train.jsonl.gz other/*.parquet
  python -m builders contamination --release build/release --pairs train.jsonl --format markdown --out report.md
  python -m builders contamination --release build/release --pairs train.jsonl --questions build/questions
  python -m baselines match --release build/questions --split dev test --model runs/matching --out similar.run
  python -m builders contamination --release build/release --pairs train.jsonl --scores similar.run
"""

from __future__ import annotations

import argparse
from pathlib import Path

from builders.common.command import whole_number
from builders.similar import add_ways


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the benchmark")
    parser.add_argument("--pairs", type=Path, nargs="+", required=True, metavar="FILE", help="the training pairs")
    parser.add_argument("--question", nargs="+", metavar="NAME", help="keys or columns that hold questions")
    parser.add_argument("--positive", nargs="+", metavar="NAME", help="keys or columns that hold positive passages")
    parser.add_argument(
        "--questions", type=Path, metavar="DIR", help="write the questions as a release for `match`, and nothing else"
    )
    add_ways(parser, "of dev or test and the pairs' questions")
    parser.add_argument(
        "--workers", type=whole_number(1), metavar="N", help="processes (all cores; 1 where the pairs are few)"
    )
    parser.add_argument("--examples", type=whole_number(0), default=3, metavar="N", help="of each kind (3)")
    parser.add_argument(
        "--format", choices=["text", "json", "markdown"], default="text", help="how the report is printed"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="where it is written (stdout)")


def run(args: argparse.Namespace) -> None:
    from builders.common.files import check_file, write_text
    from builders.similar.compare import compare
    from builders.similar.questions import write_questions
    from builders.similar.report import FORMATS

    if args.questions:
        write_questions(args)
        return
    if args.out:
        check_file(args.out)
    text = FORMATS[args.format](compare(args))
    if args.out:
        write_text(args.out, text + "\n")
    else:
        print(text)
