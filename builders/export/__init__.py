"""Write a release for other tools: BEIR, FlagEmbedding, PyLate.

The formats, with the official files among them:

beir      corpus.jsonl, queries.jsonl (every split), qrels/SPLIT.tsv with a header
trec      corpus/docs-NN.jsonl ({"id", "contents"}: Pyserini's JsonCollection), topics.SPLIT.tsv, qrels.SPLIT.txt,
          and the runs of the release (runs/NAME.trec)
msmarco   collection.tsv, queries.SPLIT.tsv, qrels.SPLIT.tsv (query, 0, passage, score: trec_eval reads it, too)
tevatron  SPLIT.jsonl (query_id, query, positive_passages, negative_passages), corpus.jsonl (docid, title, text)
flagembedding          SPLIT.jsonl: query, pos (all positives), neg (all negatives)
triplets               SPLIT.jsonl: query, positive, negative; a line a negative
pylate                 SPLIT.jsonl: query, positive, negative_1, negative_2 ...; a line a positive
sentence-transformers  as pylate, and SPLIT.pairs.jsonl: query, passage, label, for a CrossEncoder
official  the files of the original release (of the main set only): passage_collection.json, train.json, dev.json,
          test1.json; where train has negatives, the baseline's dual.train.tsv and cross.train.tsv, too

--negatives F ..., files that `python -m baselines mine` wrote, puts mined negatives before a query's own, in the
formats of training data (tevatron to sentence-transformers). Each positive gets --negatives-per-positive of them, dealt
in turn; where a query has fewer, a line of pylate holds one twice. Queries without a positive or a negative are counted
and left out. --run RUN ... writes runs, too: trec (runs/NAME.trec), beir (runs/NAME.json, BEIR's results), official
(predictions/NAME.json: at most 50 passages a query). No two scores of a query are equal there, also as 32 bits hold
them: no tool can order ties in another way. A submission of the test split consists of such predictions: queries that
the run lacks are named and count 0; queries of another split and passages that the corpus lacks are refused.

JSON formats hold every text as it is. In a TSV file, each tab or line end of a text is written as one space; the number
of lines changed is logged and kept in EXPORT. Splits without judgments have queries only. The directory appears when it
is whole; an earlier export in --out is replaced, anything else is left alone.

--set restrain-SIZE-interpolation, -extrapolation or resttest-bucketN, which `add` makes: the main set with the training
questions of that config alone. The test splits of resttest-bucketN are its own, interpolation and extrapolation.

example:
  python -m builders export --release build/sample --format beir --out build/beir
  python -m builders export --release dureader_retrieval --set cmedqa --format trec --out cmedqa-trec
  python -m builders export --release build/sample --format flagembedding --negatives build/negatives.jsonl.gz \\
    --out build/flagembedding
  python -m builders export --release build/sample --format official --runs-only --run build/runs/bm25.test.run.gz \\
    --out build/predictions
  python -m builders export --release DIR --set restrain-14K-extrapolation --format msmarco --out restrain
"""

from __future__ import annotations

import argparse
from pathlib import Path

from builders.core.command import whole_number
from builders.export.formats import FORMATS, export
from builders.export.sets import set_name
from builders.store.layout import SETS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--release", type=Path, required=True, metavar="DIR", help="the release to export")
    add("--format", choices=list(FORMATS), required=True, help="the layout to write")
    add(
        "--set",
        type=set_name,
        default="main",
        metavar="SET",
        help=f"{', '.join(SETS)} or drawn questions (default: main)",
    )
    add("--negatives", nargs="+", type=Path, default=[], metavar="F", help="what `baselines mine` wrote")
    add("--negatives-per-positive", type=whole_number(1), default=4, metavar="N", help="for each positive (default: 4)")
    add("--run", nargs="+", type=Path, default=[], metavar="RUN", help="runs to write beside the set")
    add("--runs-only", action="store_true", help="write these runs and nothing else")
    add("--out", type=Path, required=True, metavar="DIR", help="the directory to write")


def run(args: argparse.Namespace) -> None:
    from builders.store.reader import open_release

    written = export(
        open_release(args.release),
        args.format,
        args.out,
        args.set,
        negatives=args.negatives,
        negatives_per_positive=args.negatives_per_positive,
        runs=args.run,
        runs_only=args.runs_only,
    )
    for name, rows in written.items():
        print(f"{name}: {rows:,} rows")
    print(f"export: {args.out}")
