"""Make a release from the official archives, or parts of them.

Both releases are read, unpacked or as tar or tar.gz, whatever part is there: passage_collection.json, train.json,
dev.json, test1.json and test2.json of the original release, and of the pre-processed one part-00 to part-03 with
passage2id.map.json, dual.train.tsv and cross.train.tsv (whose negatives become `negative_passages`), dev.q.format,
q2qid.dev.json and the dual-encoder's top 50 of dev, which becomes the run runs/official-dev-top50.trec. Every id is
held against the MD5 of its text, line numbers against the map, the TSVs against train.json: what does not agree is
counted in stats.json and logged with examples; a line that is not in its file's format ends the build with file and
line. `export --format official` gives the files back byte for byte.

With --skip-bad-lines such a line is left out instead: logged, counted in stats.json, listed in official/skipped.tsv. A
passage that is left out keeps its line number, so that the map stays right; judgments that name it are counted, and
left out of the qrels.

A tar.gz is unpacked once, beside --out, which takes the room of its official files. Memory does not grow with the
texts; a passage takes about 40 bytes of it.

example:
  python -m builders official --archive dureader_retrieval-data.v0.tar.gz dureader-retrieval-baseline-dataset.tar.gz \\
      test1.json --out dureader_retrieval
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from builders.common.command import add_format, whole_number
from builders.common.limits import usable_cores


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--archive",
        nargs="+",
        type=Path,
        required=True,
        metavar="DIR_OR_TAR",
        help="folders, tar or tar.gz archives, or single official files",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the release directory to write")
    parser.add_argument(
        "--workers", type=whole_number(1), default=usable_cores(), help="processes (default: all cores)"
    )
    parser.add_argument(
        "--skip-bad-lines",
        action="store_true",
        help="leave lines out that are not in their file's format (default: stop)",
    )
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    from builders.official.build import build_official
    from builders.store.table3 import table3_text

    stats = build_official(args.archive, args.out, args.workers, args.skip_bad_lines)
    if args.format == "json":
        print(json.dumps(stats, ensure_ascii=False, indent=1))
        return
    print(table3_text(stats))
    for what, times in stats["official"]["findings"].items():
        print(f"{what}: {times:,}")
    for name, skipped in stats["official"].get("skipped", {}).items():
        print(f"bad lines of {name} (left out): {skipped['lines']:,}")
    print(f"release: {args.out}")
