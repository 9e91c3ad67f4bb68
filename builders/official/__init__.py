"""Make a release from the official archives, or from a copy.

Both releases are read, or any part of them: passage_collection.json, train.json, dev.json, test1.json and test2.json of
the original one; part-00 to part-03 with passage2id.map.json, dual.train.tsv and cross.train.tsv (with negatives for
`negative_passages`), dev.q.format, q2qid.dev.json and the dual-encoder's top 50 of dev (the run
runs/official-dev-top50.trec) of the pre-processed one. Ids are compared with the MD5 of their texts, line numbers with
the map, the TSVs with train.json. Disagreements are printed, and counted in stats.json with examples. A line that is
not in its file's format ends the build with file and line. `export --format official` writes such files again.

--skip-bad-lines skips such a line, counts it in stats.json and lists it in official/skipped.tsv. A skipped passage
keeps its line number, so that the map stays right; judgments of it are counted, and left out of the qrels.

--copy reads copies from a hub (HF_ENDPOINT names another), folders or files: rows with their passages
(zyznull/dureader-retrieval-ranking; ORG/NAME/dev.jsonl.gz takes that file alone), or corpus, queries and judgments
(mteb/DuRetrieval; C-MTEB/DuRetrieval with C-MTEB/DuRetrieval-qrels), JSON lines or Parquet. The differences from the
published sizes are printed. A copy holds some of the passages: scores on it are not scores on the collection.

--list prints the source of every archive of the paper, its size, checksums and licence, and how to get by hand what
has no address. Nothing is fetched. `unknown` is a figure that nobody has published, `-` one that does not apply.

An archive is unpacked beside --out, and needs that room. Memory does not grow with the texts; a passage takes about 40
bytes.

example:
  python -m builders official --list cmedqa2 datafountain-424
  python -m builders official --archive dureader_retrieval-data.v0.tar.gz dureader-retrieval-baseline-dataset.tar.gz \\
      test1.json --out dureader_retrieval
  python -m builders official --copy mteb/DuRetrieval --out build/mteb
"""

from __future__ import annotations

import argparse
from pathlib import Path

from builders.core.command import add_format
from builders.core.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    given = parser.add_mutually_exclusive_group(required=True)
    archive = "folders, tar or tar.gz archives, or single official files"
    given.add_argument("--archive", nargs="+", type=Path, metavar="DIR_OR_TAR", help=archive)
    given.add_argument("--list", nargs="*", metavar="NAME", help="print the source and licence of these archives (all)")
    copy = "copies: folders, files, or ORG/NAME of datasets on a hub"
    given.add_argument("--copy", nargs="+", metavar="DIR_OR_REPO", help=copy)
    parser.add_argument("--out", type=Path, metavar="DIR", help="the release directory to write")
    skip = "skip lines that are not in their file's format (default: stop)"
    parser.add_argument("--skip-bad-lines", action="store_true", help=skip)
    add_format(parser)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> None:
    from builders.core.tables import print_result
    from builders.official.build import build_official
    from builders.official.copies import build_copy, differences_text
    from builders.sources.archives import as_json, as_text, read_archives
    from builders.store.table3 import table3_text

    if args.list is not None:
        archives = read_archives(args.list)
        print(as_json(archives) if args.format == "json" else as_text(archives))
        return
    if args.out is None:
        args.usage_error("the following arguments are required: --out")
    if args.copy and args.skip_bad_lines:
        raise InputError("--skip-bad-lines goes with --archive")
    if args.copy:
        stats = build_copy(args.copy, args.out)
        lines, findings = ["", differences_text(stats["copy"])], stats["copy"]
    else:
        stats = build_official(args.archive, args.out, args.skip_bad_lines)
        lines, findings = [], stats["official"]
    for what, times in findings["findings"].items():
        lines.append("; ".join([f"{what}: {times:,}", *findings["examples"].get(what, [])]))
    print_result(stats, "\n".join([table3_text(stats), *lines, f"release: {args.out}"]), args.format)
