"""Test a release, and compare its counts with the paper's Table 3.

The exit code is 1 if a test finds an error. Errors are, for example, files that differ from the manifest, ids that are
not the MD5 of their text, duplicate texts, queries without a positive passage, and joined rows or statistics that
disagree with the other files. Warnings are, for example, control characters, very long texts, queries in two splits,
and sizes that differ from the paper's Table 3. For a release from raw data, different sizes are not a warning. Every
shard is read. Testing 8 million passages needs about 1 GB of memory and 1 GB of disk in TMPDIR.

After the tests, the rows are counted without stats.json. The output has Table 3, the lengths of passages, and the
number of test queries that share a positive passage with a training query. --figures draws histograms of the passage
lengths and of the positives per query (passage-length.png, positives-per-query.png), and writes stats.json.

example:
  python -m builders check --release build/sample --figures build/sample-figures
  python -m builders check --release dureader_retrieval --format json --accept ids-not-md5
"""

import argparse
import json
from pathlib import Path

from builders.check.findings import ERROR, TESTS
from builders.core.command import add_format
from builders.core.errors import log
from builders.core.tables import print_result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--release", type=Path, required=True, metavar="DIR", help="release directory to test")
    add_accept(parser)
    add("--figures", type=Path, metavar="DIR", help="write histograms (PNG) and the counts (stats.json) into DIR")
    add_format(parser)


def add_accept(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--accept",
        nargs="+",
        default=[],
        metavar="TEST",
        choices=sorted(name for name, (level, _) in TESTS.items() if level == ERROR and name != "manifest"),
        help="count the errors of these tests as warnings (default: no test): %(choices)s",
    )


def run(args: argparse.Namespace) -> int:
    from builders.check.histograms import draw
    from builders.check.release_report import check
    from builders.core.files import check_file, write_bytes, write_text
    from builders.store.reader import open_release

    if args.figures:
        check_file(args.figures / "stats.json")
    report = check(open_release(args.release), frozenset(args.accept))
    if args.figures:
        for name, image in draw(report.figures.lengths, report.figures.positives).items():
            write_bytes(args.figures / name, image)
        write_text(args.figures / "stats.json", json.dumps(report.figures.stats, ensure_ascii=False, indent=1) + "\n")
        log.info("wrote %s", args.figures)
    print_result(report.as_json(), report.text(), args.format)
    return 1 if report.errors else 0
