"""Analyse the errors of a run as the paper does (Table 10).

Queries whose top 5 holds no positive passage are drawn (100, seeded). Each of their 5 passages is an error, and people
say of which category (Section 3.5): entity, numeral, modifier or syntactic mismatch, typos, mere overlap of terms,
false negative, other.

With RUN: draws the pairs, prints what can be said of them by rule, and with --round writes them as a round for
`annotate` (Label Studio or sheets, review, quality control), beside each pair what the rules say (with --blind not).
That never counts as a person's answer.
With --tally ROUND: counts people's answers, beside Table 10 and beside the rules'.
With --measure: how often each rule is right on hand-made cases (baselines/errors/cases.jsonl).

The rules, in the order that they count: numerals that differ (years, quantities, in Chinese and Arabic digits); names
(jieba's nr, ns, nt, nz) that the passage lacks; passages that nobody has judged and that are nearly a positive's copy;
Latin words that are a typo apart; one noun in common and nothing else. docs/errors.md has each, and what it is worth.

example:
  python -m baselines errors --release build/sample --split dev --round build/errors build/runs/bm25.dev.run.gz
  python -m builders annotate import --round build/errors --annotator anna@example.com dev-001.csv
  python -m baselines errors --tally build/errors
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from builders.common.command import add_format, log, whole_number
from builders.store.layout import SPLITS

QUERIES, DEPTH = 100, 5  # Section 3.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, nargs="?", metavar="RUN", help="TREC run or official predictions (JSON)")
    parser.add_argument("--release", type=Path, metavar="DIR", help="the release that the run searched")
    parser.add_argument("--split", choices=SPLITS, default="dev", help="whose queries (dev)")
    parser.add_argument("--sample", type=whole_number(1), default=QUERIES, metavar="N", help=f"queries ({QUERIES})")
    parser.add_argument(
        "--top-k", type=whole_number(1), default=DEPTH, metavar="K", help=f"passages without a positive ({DEPTH})"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draw (0)")
    parser.add_argument("--round", type=Path, metavar="ROUND", help="write the pairs as a round for `annotate`")
    parser.add_argument("--blind", action="store_true", help="do not show people what the rules say")
    parser.add_argument("--tally", type=Path, metavar="ROUND", help="count the answers of such a round")
    parser.add_argument("--measure", action="store_true", help="measure the rules on the hand-made cases")
    add_format(parser)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> None:
    if (args.run is not None) + (args.tally is not None) + args.measure != 1:
        args.usage_error("expected one of RUN, --tally ROUND, --measure")
    if args.run and not args.release:
        args.usage_error("RUN needs --release DIR")
    if args.round and not args.run:
        args.usage_error("--round needs RUN; --tally ROUND counts a round's answers")
    if args.measure:
        from baselines.errors.measure import as_text, measured

        _print(args.format, measured(), as_text)
    elif args.tally:
        from baselines.errors import tally

        _print(args.format, tally.tally(args.tally), tally.as_text)
    else:
        _sample(args)


def _print(form: str, found: dict[str, Any], as_text: Any) -> None:
    print(json.dumps(found, ensure_ascii=False, indent=1) if form == "json" else as_text(found))


def _sample(args: argparse.Namespace) -> None:
    from baselines.errors import sample
    from baselines.errors.rules import findings
    from builders.annotate.making import expect_new
    from builders.store.reader import open_release
    from builders.store.runs import read_run

    if args.round:
        expect_new(args.round)
    release = open_release(args.release)
    drawn = sample.draw_errors(release, args.split, read_run(args.run), args.sample, args.top_k, args.seed)
    said = {pair: findings(error) for pair, error in drawn.errors.items()}
    _print(args.format, sample.report(drawn, said), sample.as_text)
    if args.round:
        packages = sample.write_round(args.round, release, args.split, args.run, drawn, said, args.seed, args.blind)
        log.info("%d packages; `annotate upload`, or fill in %s", packages, args.round / "packages")
        if args.format == "text":
            print(f"{len(said):,} pairs to judge: {args.round}")
