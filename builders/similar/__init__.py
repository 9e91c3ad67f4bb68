"""Remove training questions similar to dev and test questions.

Section 2.3: a training question that asks what a development or test question asks gives its answer away. Removed are
those that are, from the strongest on,

  exact       the same text;
  normalised  the same letters and digits: no punctuation, no blanks, one width and case;
  n-gram      nearly so: the two share --jaccard of their n-grams of characters;
  model       similar to a question-matching model: its score, from 0 to 1, is higher than --threshold. The paper has
              this way alone: --by model. `python -m baselines match` writes the scores.

The new release lacks them in queries, qrels and train (and crosslingual); their passages stay in the corpus. It has the
configs train-similar (the removed questions with their passages), duplicated (the development and test questions that
one of them is similar to) and others (the rest), and the counts beside the paper's in stats.json and on the card. Of a
release that this was done to before, more is removed.

`python -m builders contamination` compares any training pairs with the benchmark in the same ways.

Example:

  python -m builders similar --release build/release --out build/similar
  python -m baselines match --release build/release --split dev test --model runs/matching --out similar.run
  python -m builders similar --release build/release --scores similar.run --threshold 0.5 --out build/similar
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from builders.common.command import add_format, number_between, whole_number
from builders.similar.likeness import HOW, NGRAM, SHARE, THRESHOLD


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release to start from")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the new release (may be --release)")
    parser.add_argument(
        "--list", type=Path, metavar="FILE", help="write every pair that was found to it, as JSON lines"
    )
    add_ways(parser, "of dev or test and training questions")
    add_format(parser)


def add_ways(parser: argparse.ArgumentParser, pairs: str) -> None:
    """How texts are compared: the options that the two verbs share; ``pairs``: of what the scores are."""
    parser.add_argument("--split", nargs="+", metavar="SPLIT", help="the questions to keep apart (dev test)")
    parser.add_argument(
        "--by",
        nargs="+",
        choices=HOW,
        default=list(HOW),
        help="the ways that count (all; model where --scores is given)",
    )
    parser.add_argument(
        "--scores", type=Path, nargs="+", default=[], metavar="RUN", help=f"a matching model's scores {pairs}"
    )
    parser.add_argument(
        "--threshold",
        type=number_between(0, 1),
        default=THRESHOLD,
        metavar="X",
        help=f"similar is a score above it ({THRESHOLD})",
    )
    add_ngrams(parser)


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
    from builders.similar.remove import as_table, remove

    counts = remove(args)
    print(json.dumps(counts, ensure_ascii=False, indent=1) if args.format == "json" else as_table(counts, args.out))
