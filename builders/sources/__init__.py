"""Show where every source archive comes from, and its licence.

Address, size, checksums, and how to get by hand what has no address. Nothing is fetched. A figure that nobody has
published is shown as unknown; `-` stands for what does not apply.

example:
  python -m builders sources
  python -m builders sources cmedqa2 datafountain-424 --format json
"""

from __future__ import annotations

import argparse
import json

from builders.common.command import add_format


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these archives (default: all)")
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    import msgspec

    from builders.sources.archives import as_text, read_archives

    archives = read_archives(args.names)
    if args.format == "json":
        print(json.dumps(msgspec.to_builtins(archives), ensure_ascii=False, indent=1))
    else:
        print(as_text(archives))
