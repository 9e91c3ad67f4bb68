"""Write a release for other tools: BEIR, TREC, MS MARCO, Tevatron.

The formats, with the official files among them:

beir      corpus.jsonl, queries.jsonl (every split), qrels/SPLIT.tsv with a header
trec      corpus/docs-NN.jsonl ({"id", "contents"}: Pyserini's JsonCollection), topics.SPLIT.tsv, qrels.SPLIT.txt,
          and the runs of the release (runs/NAME)
msmarco   collection.tsv, queries.SPLIT.tsv, qrels.SPLIT.tsv (query, 0, passage, score: trec_eval reads it, too)
tevatron  SPLIT.jsonl (query_id, query, positive_passages, negative_passages), corpus.jsonl (docid, title, text)
official  the files of the official archives (of the main set only), byte for byte where the release was made from them

JSON formats hold every text as it is. A line of a TSV file cannot hold a tab or a line end: each such character of a
text is written as one space, the number of texts changed is logged and kept in EXPORT, and ids stay those of the
release (the MD5 of the unchanged text). Splits without judgments have queries only. The directory appears when it is
whole; an earlier export in --out is replaced, anything else is left alone.

--set restrain-SIZE-interpolation, -extrapolation or resttest-bucketN, which `extrapolate` makes: the main set with the
training questions of that config alone. With restrain-*, dev and test are the main set's; the test splits of
resttest-bucketN are its own, interpolation and extrapolation.

example:
  python -m builders export --release build/sample --format beir --out build/beir
  python -m builders export --release dureader_retrieval --set cmedqa --format trec --out cmedqa-trec
  python -m builders export --release DIR --set restrain-14K-extrapolation --format msmarco --out restrain
"""

from __future__ import annotations

import argparse
from pathlib import Path

from builders.export.drawn import set_name
from builders.export.formats import FORMATS
from builders.store.layout import SETS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release to export")
    parser.add_argument("--format", choices=list(FORMATS), required=True, help="the layout to write")
    parser.add_argument(
        "--set",
        type=set_name,
        default="main",
        metavar="SET",
        help=f"{', '.join(SETS)} or drawn questions (default: main)",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the directory to write")


def run(args: argparse.Namespace) -> None:
    from builders.export.write import export
    from builders.store.reader import open_release

    for name, rows in export(open_release(args.release), args.format, args.out, args.set).items():
        print(f"{name}: {rows:,} rows" if rows is not None else name)
    print(f"export: {args.out}")
