"""New qrels from a round's accepted packages: a release with them, and the old ones as qrels-before.

A pair that was judged 1 is a positive of the new release, one that was judged 0 is none; pairs that nobody judged, or
of which as many annotators say 1 as 0, stay as they were. Of packages that are not accepted, and of models' judgments,
nothing is taken. A pair judged 0 stands in qrels with the score 0, and among the negative passages of the joined rows:
so it is known to be judged when the next pool is made. Joined rows (dev, test, crosslingual) and figures follow the new
qrels.

qrels-before keeps the judgments from before the first merge, for comparison (Figure 2). Printed are the paper's figures
of Section 2.3 (positives a query before and after, the share of queries with a false negative), ours and its own;
`check` counts them again from the rows.

example:
  python -m builders annotate merge --round build/round --release build/sample --out build/relabelled
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from builders.core.command import add_format


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release that was judged")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the release to write")
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    from builders.annotate.qrels import merge
    from builders.check.paper import published, relabelled_text
    from builders.store.reader import open_release

    figures = merge(args.round, open_release(args.release), args.out)
    if args.format == "json":
        print(json.dumps({"release": figures, "paper": published()["relabelled"]}, ensure_ascii=False, indent=1))
    else:
        print(relabelled_text(figures, published()["relabelled"]))
        print(f"release: {args.out}")
