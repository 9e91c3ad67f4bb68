"""Write a release for other tools: BEIR, FlagEmbedding, PyLate.

The formats are:

beir      corpus.jsonl, queries.jsonl (every split), qrels/SPLIT.tsv with a header
trec      corpus/docs-NN.jsonl ({"id", "contents"}: Pyserini's JsonCollection), topics.SPLIT.tsv, qrels.SPLIT.txt,
          and the runs of the release (runs/NAME.trec)
msmarco   collection.tsv, queries.SPLIT.tsv, qrels.SPLIT.tsv (query, 0, passage, score: also for trec_eval)
tevatron  SPLIT.jsonl (query_id, query, positive_passages, negative_passages), corpus.jsonl (docid, title, text)
flagembedding          SPLIT.jsonl: query, pos (all positives), neg (all negatives)
triplets               SPLIT.jsonl: query, positive, negative; one line for each negative
pylate                 SPLIT.jsonl: query, positive, negative_1, negative_2 ...; one line for each positive
sentence-transformers  the files of pylate, and SPLIT.pairs.jsonl: query, passage, label, for a CrossEncoder
rag       only runs (--run): rag/NAME.jsonl with a line for each query: question, answers and types of the config
          answers, and the --top-k best passages with rank, score and text, for generation
official  the files of the original release (main set only): passage_collection.json, train.json, dev.json,
          test1.json, and the baseline's dual.train.tsv and cross.train.tsv if train has negatives

--negatives F ... adds hard negatives from files of `python -m baselines mine` to tevatron, flagembedding, triplets,
pylate and sentence-transformers. Mined negatives come before the release's own negatives. In triplets, pylate and
sentence-transformers, the first positive of a query gets the first --negatives-per-positive negatives, the second
positive gets the next ones, and so on. If a query has too few negatives, pylate and sentence-transformers repeat
negatives. tevatron keeps all queries. The other four formats skip queries without a positive or a negative, and log
their number.

--run RUN ... also writes runs, in the formats trec (runs/NAME.trec), beir (runs/NAME.json, BEIR's results) and official
(predictions/NAME.json, at most 50 passages per query). The scores of a query are distinct, even as 32-bit floats, so
that every tool sorts the passages alike. A submission consists of official predictions for the test split. Official
predictions may lack queries, which are logged. Unknown passages and queries of another split are errors.

JSON formats contain the unchanged texts. TSV formats replace each tab or line end by a space. The number of changed
lines is logged and written to the file EXPORT. For splits without judgments, only queries are written. The output
directory appears when it is complete. An earlier export is replaced. Any other directory with files is an error.

--set also accepts the drawn training sets that `add` makes: restrain-SIZE-interpolation, restrain-SIZE-extrapolation
and resttest-bucketN. The export is then the main set with only the training questions of the drawn set. The test splits
of resttest-bucketN are interpolation and extrapolation.

example:
  python -m builders export --release build/sample --format beir --out build/beir
  python -m builders export --release dureader_retrieval --set cmedqa --format trec --out cmedqa-trec
  python -m builders export --release build/sample --format flagembedding --negatives build/negatives.jsonl.gz \\
    --out build/flagembedding
  python -m builders export --release build/sample --format official --runs-only --run build/runs/bm25.test.run.gz \\
    --out build/predictions
  python -m builders export --release build/sample --format rag --run build/runs/bm25.dev.run.gz --out build/rag
  python -m builders export --release DIR --set restrain-14K-extrapolation --format msmarco --out restrain
"""

import argparse
from pathlib import Path

from builders.core.command import whole_number
from builders.export.export_formats import FORMATS, export
from builders.export.sets import set_name
from builders.store.layout import SETS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--release", type=Path, required=True, metavar="DIR", help="the release to export")
    add("--format", choices=list(FORMATS), required=True, help="the format to write")
    add(
        "--set",
        type=set_name,
        default="main",
        metavar="SET",
        help=f"the set to export: {', '.join(SETS)} or a drawn training set (default: main)",
    )
    add("--negatives", nargs="+", type=Path, default=[], metavar="F", help="hard negatives from `baselines mine`")
    number = "number of negatives for each positive (default: 4)"
    add("--negatives-per-positive", type=whole_number(1), default=4, metavar="N", help=number)
    add("--run", nargs="+", type=Path, default=[], metavar="RUN", help="runs to write beside the set")
    add("--runs-only", action="store_true", help="write only the runs")
    add("--top-k", type=whole_number(1), default=10, metavar="K", help="rag: passages of each query (default: 10)")
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
        top_k=args.top_k,
    )
    for name, rows in written.items():
        print(f"{name}: {rows:,} rows")
    print(f"export: {args.out}")
