"""Add the cross-lingual set: English queries (Section 2.5).

Table 3 has its figures. Each English query has the passages of its Chinese query. Built from a table of translations
(CSV or TSV; columns named id or zh, and english, or two without a header: query id or Chinese text, English text) and
the release that holds the Chinese queries. An English query is in the split of its Chinese query. Configs:
crosslingual-queries (_id, text, zh_id) and crosslingual (the rows of train, dev and test, query in English, query_zh
added). The judgments are those of the release's qrels for zh_id.

The id is the MD5 of the English text. Where several Chinese queries of a split have one English text, each keeps a row
of its own, as each has its own passages: from the second on the id is the MD5 of the English text, a line feed and
zh_id, so that no id comes twice in a split. A Chinese query may have several translations, too: a row each.

Translating by hand, with the paper's quality control (A.3): `export` writes packages of 1,000 queries with or without a
machine translation to correct, `review` draws 100 random pairs of each finished package for each of two reviewers, and
`import` builds the set when every package's mean accuracy is at least 93 %; else it prints which are not and exits
with 1.

example:
  python -m builders crosslingual --source translations.tsv --release build/sample --out build/with-english
  python -m builders crosslingual export --release build/sample --split dev test --out packages.tsv
  python -m builders crosslingual review --source packages.tsv --release build/sample --out review.tsv --seed 1
  python -m builders crosslingual import --source packages.tsv --reviews review.1.tsv review.2.tsv \\
      --release build/sample --out build/with-english
"""

from __future__ import annotations

import argparse
from pathlib import Path

from builders.annotate.quality import PACKAGE, add_acceptance
from builders.common.command import add_format, whole_number
from builders.sources.encoding import CHOICES
from builders.store.layout import SPLITS

_NEEDS = {
    "build": ("source", "release", "out"),
    "export": ("release", "out"),
    "review": ("source", "release", "out"),
    "import": ("source", "reviews", "release", "out"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=list(_NEEDS), default="build", help="default: build")
    parser.add_argument("--source", nargs="+", type=Path, metavar="TABLE", help="translations, or the packages")
    parser.add_argument("--release", type=Path, metavar="DIR", help="the release with the Chinese queries")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the release to write; export, review: a .tsv file")
    parser.add_argument("--encoding", choices=CHOICES, default="auto", help="default: told by the bytes")
    export = parser.add_argument_group("export")
    export.add_argument("--split", nargs="+", choices=SPLITS, help="splits to translate (default: all there are)")
    export.add_argument("--size", type=whole_number(1), metavar="N", help="queries of a split at random (all)")
    export.add_argument(
        "--package-size", type=whole_number(1), default=PACKAGE, metavar="N", help=f"default: {PACKAGE}"
    )
    export.add_argument("--translations", nargs="+", type=Path, metavar="TABLE", help="a machine's, to be corrected")
    control = parser.add_argument_group("review and import")
    control.add_argument("--reviews", nargs="+", type=Path, metavar="SHEET", help="one filled-in sheet a reviewer")
    add_acceptance(control, "--pairs")
    parser.add_argument("--seed", type=int, default=0, help="of every random choice (default: 0)")
    add_format(parser)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int | None:
    if missing := [name for name in _NEEDS[args.action] if getattr(args, name) is None]:
        args.usage_error(f"{args.action} needs --{missing[0]}")
    from builders.crosslingual.actions import ACTIONS

    return ACTIONS[args.action](args)
