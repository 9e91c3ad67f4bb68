"""Compare the analyzers of BM25: MRR@10 with 95 % intervals, nDCG@10 and R@50.

--data builds the six sets of docs/bm25.md in --work from the folders of public files dureader-2.0-demo, ncp-policies,
cepilepsyqa, drcd, cmrc2018 and crud-news. Other sets are given as NAME=RELEASE[:SET[:SPLIT]]. SET defaults to main.
SPLIT defaults to dev, or to test if the set has no dev.

The analyzers are those of `bm25`, each with and without stop words, jieba's search mode, the default with texts in
simplified Chinese (OpenCC), and with --word-pieces the word pieces of a model. `bm25 --tune train` tunes k1 and b of
the default analyzer on training questions that are sampled by --seed. The tuned values are evaluated on SPLIT.

--mteb adds a row for the BM25 that mteb used until 2026. This BM25 has the default tokens of bm25s (runs of letters
between punctuation), English stop words and an English stemmer.

Examples:

  python benchmarks/bm25_analyzers.py --data DATA --work build/analyzers --word-pieces MODEL --json FILE
  python benchmarks/bm25_analyzers.py cmrc2018=build/cmrc drcd=build/drcd cepilepsyqa=build/c:cmedqa:test --json FILE
"""

import itertools
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from bm25_tokenizers import MODEL_VARIABLE
from common import machine, parser_of, write_json

from baselines.bm25.bm25_index import IndexedTexts, InvertedIndex, search_columns
from baselines.bm25.engine_numba import open_index
from baselines.bm25.own_tokenizer import open_tokenizer
from baselines.bm25.tokens import ANALYZERS, DEFAULT, Analyzer
from baselines.bm25.tune import TuningSettings, tune_parameters
from baselines.measure.measures import exact_mean, measure_run, per_query, values_of
from baselines.measure.qrels import Qrels, read_queries, release_qrels
from baselines.measure.significance import of_means
from builders.add.add_ccovid import add_ccovid
from builders.add.add_cmedqa import add_cmedqa
from builders.add.squad import build_squad
from builders.release.build_release import build_release
from builders.store.layout import SETS
from builders.store.reader import Release, open_release
from builders.store.runs import Run

MEASURES = ["nDCG@10", "R@50"]
TOP_K = 50  # passages per query
DEV_QUESTIONS = 1_000  # of cmrc2018 among crud-news
_DEFAULT_NAME = "both, no stop words"
Figures = dict[str, Any]


def build_sets(data: Path, work: Path) -> list[str]:
    """Build the releases of the six sets in ``work``, and return the sets as NAME=RELEASE:SET:SPLIT.

    A release that an earlier call has built is reused.
    """
    demo_files = sorted((data / "dureader-2.0-demo").glob("search.*.json.gz"))
    comprehension = {"train": [data / "cmrc2018/train.json.gz"], "dev": [data / "cmrc2018/dev.json.gz"]}
    news_files = sorted((data / "crud-news").glob("*.gz"))
    build_release(demo_files, out=work / "demo")
    add_ccovid([data / "ncp-policies"], test_size=300, out=work / "policies")
    add_cmedqa([data / "cepilepsyqa"], out=work / "medical")
    if not (work / "drcd").exists():
        build_squad(train=[data / "drcd/DRCD_dev.json.gz"], dev=[data / "drcd/DRCD_test.json.gz"], out=work / "drcd")
    if not (work / "cmrc").exists():
        build_squad(**comprehension, out=work / "cmrc")
    if not (work / "news").exists():
        build_squad(**comprehension, passages=news_files, dev_size=DEV_QUESTIONS, out=work / "news")
    return [
        f"DuReader demo={work}/demo:main:dev",
        f"ncp-policies={work}/policies:ccovid:test",
        f"cepilepsyqa={work}/medical:cmedqa:dev",
        f"drcd={work}/drcd:main:dev",
        f"cmrc2018={work}/cmrc:main:dev",
        f"cmrc2018 among crud-news={work}/news:main:dev",
    ]


def analyzers_to_compare(*, with_word_pieces: bool) -> dict[str, Analyzer]:
    """Return the analyzers by their names in the table."""
    analyzers: dict[str, Analyzer] = {}
    tokenizers = {"jieba's search mode": "bm25_tokenizers:search_mode"}
    if with_word_pieces:
        tokenizers["word pieces"] = "bm25_tokenizers:word_pieces"
    for name, drop_stop_words in itertools.product([*ANALYZERS, *tokenizers], (False, True)):
        description = f"{name}, no stop words" if drop_stop_words else name
        tokenizer = open_tokenizer(tokenizers[name]) if name in tokenizers else None
        analyzers[description] = Analyzer(name, drop_stop_words, tokenizer=tokenizer)
    analyzers[f"{_DEFAULT_NAME}, simplified"] = Analyzer(DEFAULT.name, DEFAULT.drop_stop_words, simplified=True)
    return analyzers


def measure_rankings(rankings: dict[str, list[str]], qrels: Qrels) -> tuple[Figures, np.ndarray]:
    """Return MRR@10, its interval and ``MEASURES`` in percent, and the reciprocal rank of every query."""
    # The scores only keep the order of a ranking. No two are equal, so no query has ties.
    scored_hits = {}
    for query_id, passage_ids in rankings.items():
        scored_hits[query_id] = [(passage_id, -float(rank)) for rank, passage_id in enumerate(passage_ids)]
    _, by_query = measure_run(Run.in_memory("bm25", scored_hits), qrels)
    values = np.asarray(values_of(by_query, "MRR@10"))
    figures: Figures = {"MRR@10": round(100 * values.mean(), 2), "interval": interval_in_percent(values)}
    for name, query_values in per_query(rankings, qrels, MEASURES).items():
        figures[name] = round(100 * exact_mean(query_values), 2)
    return figures, values


def interval_in_percent(values: np.ndarray) -> list[float]:
    """Return the limits of the 95 % interval of a mean over queries (percentile bootstrap)."""
    ((low, high),) = of_means(values[:, None])
    return [round(100 * low, 2), round(100 * high, 2)]


def search_index(index: InvertedIndex, queries: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the ids of the best ``TOP_K`` passages by query id. ``queries`` are (id, text)."""
    rankings: dict[str, list[str]] = {}
    for columns in search_columns(index, queries, TOP_K, 1):
        rankings.update(columns.rankings())
    return rankings


def search_like_mteb(release: Release, corpus: str, queries: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Search like mteb/baseline-bm25s 0_1_10: with bm25s's default tokens, English stop words and English stemmer."""
    import bm25s
    import Stemmer

    tokenizer_options: dict[str, Any] = {
        "stopwords": "en",
        "stemmer": Stemmer.Stemmer("english"),
        "show_progress": False,
    }
    passage_ids: list[str] = []
    passage_texts: list[str] = []
    for batch in release.batches(corpus, "corpus", ["_id", "text"]):
        passage_ids += batch["_id"].to_pylist()
        # mteb joins title and text by a line break. The titles are empty.
        passage_texts += ["\n" + text for text in batch["text"].to_pylist()]
    engine = bm25s.BM25()
    engine.index(bm25s.tokenize(passage_texts, **tokenizer_options), show_progress=False)
    query_tokens = bm25s.tokenize([text for _, text in queries], **tokenizer_options)
    best_rows, scores = engine.retrieve(query_tokens, k=min(TOP_K, len(passage_ids)), show_progress=False)
    rankings = {}
    for (query_id, _), query_rows, query_scores in zip(queries, best_rows.tolist(), scores.tolist(), strict=True):
        ranking = []
        for row, score in zip(query_rows, query_scores, strict=True):
            if score > 0:  # bm25s fills the list with passages that share no word with the query
                ranking.append(passage_ids[row])
        rankings[query_id] = ranking
    return rankings


def evaluate_set(
    title: str, source: str, work: Path, analyzers: dict[str, Analyzer], *, seed: int, with_mteb: bool
) -> dict[str, Any]:
    """Evaluate every analyzer on the set ``source``, RELEASE[:SET[:SPLIT]]. Return the set's row of the figures.

    ``title`` names the set in the tables. The indexes are in ``work``. ``seed`` samples the questions for tuning.
    """
    release_path, _, set_and_split = source.partition(":")
    set_name, _, split = set_and_split.partition(":")
    set_name = set_name or "main"
    release = open_release(Path(release_path))
    configs = SETS[set_name]
    judged_splits = [split_name for config, split_name in release.splits() if config == configs.qrels]
    if not split:
        split = "dev" if "dev" in judged_splits else "test"
    qrels = release_qrels(release, split, set_name)
    queries = [query for query in read_queries(release, split, configs.queries) if query[0] in qrels.positives]
    row: dict[str, Any] = {
        "set": title,
        "split": split,
        "passages": release.rows(configs.corpus, "corpus"),
        "queries": len(queries),
        "analyzers": {},
    }
    values_by_analyzer: dict[str, np.ndarray] = {}
    for description, analyzer in analyzers.items():
        start_time = time.perf_counter()
        index = open_index(IndexedTexts(release, configs.corpus, analyzer=analyzer), work / "indexes", 1)
        figures, values_by_analyzer[description] = measure_rankings(search_index(index, queries), qrels)
        row["analyzers"][description] = figures
        if analyzer == DEFAULT and "train" in judged_splits:
            settings = TuningSettings(
                split="train", searched_split=split, set_name=set_name, seed=seed, threads=1, out=None
            )
            k1, b = tune_parameters(index, release, settings)
            tuned_figures, _ = measure_rankings(search_index(index.with_parameters(k1, b), queries), qrels)
            row["analyzers"][f"{description}, tuned"] = {"k1": k1, "b": b} | tuned_figures
        seconds = time.perf_counter() - start_time
        print(f"{title} {description}: {figures} ({seconds:.0f} s)", file=sys.stderr, flush=True)
    # Paired differences to the default analyzer, over the same queries.
    for description, values in values_by_analyzer.items():
        differences = values - values_by_analyzer[_DEFAULT_NAME]
        row["analyzers"][description]["minus default"] = interval_in_percent(differences)
    if with_mteb:
        row["mteb"], _ = measure_rankings(search_like_mteb(release, configs.corpus, queries), qrels)
        print(f"{title} mteb: {row['mteb']}", file=sys.stderr, flush=True)
    return row


def report(rows: list[dict[str, Any]]) -> None:
    """Print MRR@10 of all sets as the table of docs/bm25.md, then all measures of each set."""
    titles = [row["set"] for row in rows]
    lines = [["", *titles], ["---"] * (len(rows) + 1)]
    lines.append(["passages", *[f"{row['passages']:,}" for row in rows]])
    lines.append(["questions", *[f"{row['queries']:,} ({row['split']})" for row in rows]])
    # A set without training questions has no tuned analyzer.
    descriptions = dict.fromkeys(description for row in rows for description in row["analyzers"])
    for description in descriptions:
        lines.append([description, *[_cell(row["analyzers"].get(description)) for row in rows]])
    if any("mteb" in row for row in rows):
        lines.append(["mteb's tokens of revision 0_1_10", *[_cell(row.get("mteb")) for row in rows]])
    for cells in lines:
        print("|".join(["", *[f" {cell} " if cell else " " for cell in cells], ""]))
    for row in rows:
        print(f"\n{row['set']}")
        print(f"{'':36}  MRR@10  nDCG@10    R@50  minus the default (95 % interval)")
        for description, figures in row["analyzers"].items():
            line = f"{description:36}  {figures['MRR@10']:6.2f}  {figures['nDCG@10']:7.2f}  {figures['R@50']:6.2f}"
            if "minus default" in figures:
                low, high = figures["minus default"]
                line += f"  {low:+.2f} to {high:+.2f}"
            print(line)


def _cell(figures: Figures | None) -> str:
    """Return MRR@10 with its interval, and with tuned k1 and b, as "60.0 (52.2–68.1)"."""
    if figures is None:
        return ""
    low, high = figures["interval"]
    tuned = f" [{figures['k1']:g}, {figures['b']:g}]" if "k1" in figures else ""
    return f"{figures['MRR@10']:.1f} ({low:.1f}–{high:.1f}){tuned}"


def main() -> None:
    parser = parser_of(__doc__, "--json")
    parser.add_argument("sets", nargs="*", metavar="NAME=RELEASE[:SET[:SPLIT]]", help="a set to evaluate")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the public files of the six sets")
    parser.add_argument("--word-pieces", metavar="MODEL", help="model whose word pieces are compared")
    parser.add_argument("--seed", type=int, default=0, help="seed of the tuning questions (default: 0)")
    parser.add_argument("--mteb", action="store_true", help="add mteb's BM25; needs bm25s and PyStemmer")
    parser.add_argument("--work", type=Path, help="folder to keep releases and indexes (default: temporary)")
    args = parser.parse_args()
    # A variable of the environment, because worker processes open the word pieces, too.
    if args.word_pieces:
        os.environ[MODEL_VARIABLE] = args.word_pieces
    analyzers = analyzers_to_compare(with_word_pieces=args.word_pieces is not None)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        work = args.work or Path(name)
        sets = args.sets
        if args.data:
            sets = build_sets(args.data, work) + sets
        for named_source in sets:
            title, _, source = named_source.partition("=")
            rows.append(evaluate_set(title, source, work, analyzers, seed=args.seed, with_mteb=args.mteb))
            # The file is written after each set, because a set can take hours.
            write_json(args.json, machine("numba", "rjieba") | {"seed": args.seed, "rows": rows})
    report(rows)


if __name__ == "__main__":
    main()
