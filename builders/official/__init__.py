"""Make a release from the official archives, or from a copy.

Both releases are read, whatever part is there: passage_collection.json, train.json,
dev.json, test1.json and test2.json of the original release, and of the pre-processed one part-00 to part-03 with
passage2id.map.json, dual.train.tsv and cross.train.tsv (whose negatives become `negative_passages`), dev.q.format,
q2qid.dev.json and the dual-encoder's top 50 of dev, which becomes the run runs/official-dev-top50.trec. Every id is
held against the MD5 of its text, line numbers against the map, the TSVs against train.json: what does not agree is
counted in stats.json and logged with examples; a line that is not in its file's format ends the build with file and
line. `export --format official` writes such files again.

With --skip-bad-lines such a line is left out instead: logged, counted in stats.json, listed in official/skipped.tsv. A
passage that is left out keeps its line number, so that the map stays right; judgments that name it are counted, and
left out of the qrels.

--copy reads what others keep on a hub, from there (HF_ENDPOINT names another), from folders or files: rows with their
passages (zyznull/dureader-retrieval-ranking; ORG/NAME/dev.jsonl.gz takes that file alone), or corpus, queries and
judgments (mteb/DuRetrieval; C-MTEB/DuRetrieval with C-MTEB/DuRetrieval-qrels), JSON lines or Parquet. The differences
from the published sizes are printed. A copy holds some of the passages: scores on it are not scores on the collection.

--list prints where every archive of the paper comes from, its size, checksums and licence, and how to get by hand what
has no address. Nothing is fetched. A figure that nobody has published is shown as unknown; `-` stands for what does not
apply.

An archive is unpacked beside --out, and needs that room. Memory does not grow with the texts; a passage takes about 40
bytes of it.

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
    given.add_argument(
        "--archive",
        nargs="+",
        type=Path,
        metavar="DIR_OR_TAR",
        help="folders, tar or tar.gz archives, or single official files",
    )
    given.add_argument(
        "--list", nargs="*", metavar="NAME", help="print where these archives come from, and their licences (all)"
    )
    given.add_argument(
        "--copy", nargs="+", metavar="DIR_OR_REPO", help="copies: folders, files, or ORG/NAME of datasets on a hub"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="the release directory to write")
    parser.add_argument(
        "--skip-bad-lines",
        action="store_true",
        help="leave lines out that are not in their file's format (default: stop)",
    )
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
