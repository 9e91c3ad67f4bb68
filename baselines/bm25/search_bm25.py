"""Search with BM25: write a TREC run of a split's queries.

The default tokens are jieba's words. k1 = 1.2 and b = 0.75 are the defaults of Elasticsearch, which the paper used
(Section 3.1, Table 4). With --analyzer both, words and bigrams are tokens. With --tune SPLIT, k1 and b are selected by
MRR@10 on SPLIT, and RUN.tuned.json lists every tried value. RUN.manifest.json records the settings of the run.

The numba engine runs in this process. The elasticsearch engine needs a server. An index is reused for the same corpus,
analyzer and engine. The numba engine caches indexes in the folder dureader_retrieval/bm25 in $XDG_CACHE_HOME or
~/.cache. On a server, the name of an index begins with dureader-retrieval-.

Example:

  python -m baselines bm25 --release build/sample --split dev --out build/runs/bm25.dev.run.gz --top-k 50
  python -m baselines bm25 --release DIR --out RUN --analyzer bigrams --stop-words drop --tune train
  python -m baselines bm25 --release DIR --out RUN --engine elasticsearch --address http://localhost:9200 --k1 0.9
"""

import argparse
import math
from pathlib import Path

from baselines.bm25.tokens import ANALYZERS, K1, Analyzer, B
from baselines.core.passages import add_sample
from baselines.core.settings import add_options
from baselines.measure.qrels import add_queries, add_set, expect_main, read_queries
from builders.core.command import number_between, whole_number
from builders.core.errors import InputError, log
from builders.core.files import check_file
from builders.core.limits import usable_cores
from builders.store.layout import SETS
from builders.store.reader import open_release


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "--release", "--split", "--out", "--top-k")
    add = parser.add_argument
    add_set(parser)
    add_queries(parser)
    add_sample(parser)
    add("--engine", choices=["numba", "elasticsearch"], default="numba", help="search engine (default: numba)")
    add("--address", metavar="URL", help="Elasticsearch server: http(s)://[USER:PASSWORD@]HOST:PORT")
    add("--ca-certs", type=Path, metavar="FILE", help="certificate authority (PEM) for an https --address")
    add("--k1", type=number_between(0, math.inf), default=K1, help=f"saturation of term counts (default: {K1})")
    add("--b", type=number_between(0, 1), default=B, help=f"weight of passage lengths (default: {B})")
    add("--analyzer", choices=[*ANALYZERS], default="words", help="kind of tokens (default: words)")
    add("--stop-words", choices=["keep", "drop"], default="keep", help="words like 的 and 怎么 (default: keep)")
    add("--tune", metavar="SPLIT", help="select k1 and b on 1,000 questions of this split, for example train")
    add("--seed", type=whole_number(0), default=0, metavar="N", help="seed of the sample for --tune (default: 0)")
    add("--max-chars", type=whole_number(1), metavar="N", help="read N characters of each passage (default: all)")
    add("--threads", type=whole_number(1), default=usable_cores(), metavar="N", help="threads (default: all cores)")
    add("--index", type=Path, metavar="DIR", help="folder of numba indexes (default: in the cache)")


def run(args: argparse.Namespace) -> None:
    from baselines.bm25.bm25_index import Index, Texts, search_columns
    from baselines.core.run_manifest import asked_of, record, write_manifest
    from builders.core.progress import progress
    from builders.store.runs import write_columns

    check_file(args.out)
    release = open_release(args.release)
    configs = SETS[args.set]
    asked = expect_main(args, "--queries", args.queries) or configs.queries
    queries = read_queries(release, args.split, asked)
    if not queries:
        raise InputError(f"has no queries in its split {args.split!r}", path=args.release)
    if args.tune == args.split:
        raise InputError(f"--tune {args.tune}: tuning on the searched questions inflates scores; name another split")
    if args.engine == "elasticsearch" and (args.tune or args.max_chars is not None or args.sample):
        raise InputError("--tune, --max-chars and --sample need --engine numba")
    if (args.engine == "elasticsearch") != (args.address is not None):
        raise InputError("--engine elasticsearch and --address URL need each other")
    analyzer, k1, b = Analyzer(args.analyzer, args.stop_words == "drop"), args.k1, args.b
    texts = Texts(release, configs.corpus, "corpus", analyzer, args.max_chars, args.sample)
    if args.engine == "elasticsearch":
        from baselines.bm25.engine_elasticsearch import open_remote

        index: Index = open_remote(texts, args.address, args.threads, k1, b, args.ca_certs)
    else:
        from baselines.bm25.engine_numba import open_index

        index = open_index(texts, args.index, args.threads, k1, b)
        if args.tune:
            from baselines.bm25.tune import tune

            k1, b = tune(index, release, args)
            index = index.reopened(k1, b)
    parts = progress(search_columns(index, queries, args.top_k, args.threads), unit="block", label="search")
    lines = write_columns(args.out, parts, "bm25")
    model = {"name": "bm25", "engine": args.engine, "k1": k1, "b": b, "analyzer": analyzer.version}
    model["max_chars"] = args.max_chars
    about = {**asked_of(args, release, "bm25", asked), "sample": args.sample}
    write_manifest(args.out, record(model, about, (args.engine, "numpy")), "bm25", len(queries), lines)
    log.info("%s: %d lines for %d queries", args.out, lines, len(queries))
