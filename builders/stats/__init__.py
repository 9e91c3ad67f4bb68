"""Count a release: Table 3 beside the paper's, and histograms.

The histograms are of passage length and of positives a query. Everything is counted from the rows, whatever stats.json
says. With --out the histograms are drawn, too (passage-length.png, positives-per-query.png), and the figures written as
stats.json. The rows are counted in a folder for temporary files: 8 million passages take about 1 GB there.

example:
  python -m builders stats --release build/sample --out build/sample-figures
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from builders.common.command import InputError, add_format, add_tmp, log


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to put the histograms as PNG, and stats.json")
    add_tmp(parser)
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    from builders.common.files import write_bytes, write_text
    from builders.stats.count import count
    from builders.stats.histograms import draw
    from builders.stats.paper import published, side_by_side
    from builders.store.reader import open_release

    figures = count(open_release(args.release), args.tmp)
    if args.out:
        if args.out.exists() and not args.out.is_dir():
            raise InputError("exists and is no directory", path=args.out)
        for name, image in draw(figures.lengths, figures.positives).items():
            write_bytes(args.out / name, image)
        write_text(args.out / "stats.json", json.dumps(figures.stats, ensure_ascii=False, indent=1) + "\n")
        log.info("wrote %s", args.out)
    if args.format == "json":
        print(json.dumps({"release": figures.stats, "paper": published()}, ensure_ascii=False, indent=1))
    else:
        print(side_by_side(figures.stats))
