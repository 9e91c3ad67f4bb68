"""Build a release from the official archives, or from a copy.

--archive reads the original release, the pre-processed release, or some of their files. The original release has
passage_collection.json, train.json, dev.json, test1.json and test2.json. The pre-processed release has part-00 to
part-03 with passage2id.map.json, dual.train.tsv, cross.train.tsv, dev.q.format and q2qid.dev.json. The TSVs' negatives
become `negative_passages`. The top 50 passages of the official dual-encoder become runs/official-dev-top50.trec.

The build compares ids with the MD5s of their texts, parts with the map, and TSVs with train.json. Differences are
printed, and counted in stats.json with examples. A line in a wrong format stops the build. The error names the line.
--skip-bad-lines skips wrong lines, counts them in stats.json and lists them in official/skipped.tsv. The map counts
skipped lines, so the ids of other passages do not change. Judgments of a skipped passage are counted, but not written
to the qrels. `export --format official` writes official files from a release.

--copy reads JSON lines or Parquet from a hub, a folder or a file. HF_ENDPOINT sets another hub. A copy has queries with
their passages (zyznull/dureader-retrieval-ranking), or corpus, queries and judgments (mteb/DuRetrieval, or
C-MTEB/DuRetrieval with C-MTEB/DuRetrieval-qrels). ORG/NAME/dev.jsonl.gz reads only this file. The differences from the
published sizes are printed. Copies lack passages, so do not compare scores on a copy with scores on the collection.

--list prints the source, size, checksums and licence of the paper's archives, and instructions for archives without an
address. Nothing is downloaded. `unknown` marks values that are not published, `-` values that do not apply.

Archives are unpacked into a folder beside --out. Memory grows by about 45 bytes for each passage.

example:
  python -m builders official --list cmedqa2 datafountain-424
  python -m builders official --archive dureader_retrieval-data.v0.tar.gz dureader-retrieval-baseline-dataset.tar.gz \\
      test1.json --out dureader_retrieval
  python -m builders official --copy mteb/DuRetrieval --out build/mteb
"""

import argparse
from pathlib import Path

from builders.core.command import add_format
from builders.core.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    given = parser.add_mutually_exclusive_group(required=True)
    archive = "official files: folders, tar or tar.gz archives, or single files"
    given.add_argument("--archive", nargs="+", type=Path, metavar="DIR_OR_TAR", help=archive)
    given.add_argument(
        "--list", nargs="*", metavar="NAME", help="print sources and licences of archives (default: all)"
    )
    given.add_argument(
        "--copy", nargs="+", metavar="DIR_OR_REPO", help="folders, files, or ORG/NAME of a hub's dataset"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="release directory to write")
    parser.add_argument("--skip-bad-lines", action="store_true", help="skip lines in a wrong format (default: stop)")
    add_format(parser)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> None:
    from builders.core.tables import print_result
    from builders.official.assembly import build_official
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
        raise InputError("--skip-bad-lines works only with --archive; remove it")
    if args.copy:
        stats = build_copy(args.copy, args.out)
        lines, findings = ["", differences_text(stats["copy"])], stats["copy"]
    else:
        stats = build_official(args.archive, args.out, args.skip_bad_lines)
        lines, findings = [], stats["official"]
    for what, times in findings["findings"].items():
        lines.append("; ".join([f"{what}: {times:,}", *findings["examples"].get(what, [])]))
    print_result(stats, "\n".join([table3_text(stats), *lines, f"release: {args.out}"]), args.format)
