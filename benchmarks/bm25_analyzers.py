"""Compare the analyzers of BM25: MRR@10, nDCG@10 and R@50, with default and with tuned k1 and b.

Each set is given as NAME=RELEASE[:SET[:SPLIT]]. SET defaults to main. SPLIT defaults to dev, or to test if the set has
no dev. Each analyzer runs with and without stop words. `bm25 --tune train` tunes k1 and b on training questions that
are sampled by --seed. The tuned values are evaluated on SPLIT.

--mteb adds a row for the BM25 that mteb used until 2026. This BM25 has the default tokens of bm25s (runs of letters
between punctuation), English stop words and an English stemmer.

Example:

  python benchmarks/bm25_analyzers.py cmrc2018=build/cmrc drcd=build/drcd cepilepsyqa=build/c:cmedqa:test --json FILE
"""

import itertools
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import machine, parser_of, write_json

from baselines.bm25.bm25_index import IndexedTexts, InvertedIndex, search_columns
from baselines.bm25.engine_numba import open_index
from baselines.bm25.tokens import ANALYZERS, K1, Analyzer, B
from baselines.bm25.tune import TuningSettings, tune_parameters
from baselines.measure.measures import exact_mean, official_figures, per_query
from baselines.measure.qrels import Qrels, read_queries, release_qrels
from builders.store.layout import SETS
from builders.store.reader import Release, open_release

MEASURES = ["nDCG@10", "R@50"]
TOP_K = 50  # passages per query


def measure_rankings(rankings: dict[str, list[str]], qrels: Qrels) -> dict[str, float]:
    """Return MRR@10 and ``MEASURES`` in percent."""
    figures = {"MRR@10": round(100 * official_figures(rankings, qrels)["MRR@10"], 2)}
    for name, values in per_query(rankings, qrels, MEASURES).items():
        figures[name] = round(100 * exact_mean(values), 2)
    return figures


def search_index(index: InvertedIndex, queries: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the best passages of each query."""
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


def evaluate_set(title: str, source: str, work: Path, *, seed: int, with_mteb: bool) -> dict[str, Any]:
    """Evaluate every analyzer on the set ``source``, RELEASE[:SET[:SPLIT]]."""
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
    for name, drop_stop_words in itertools.product(ANALYZERS, (False, True)):
        start_time = time.perf_counter()
        analyzer = Analyzer(name, drop_stop_words)
        index = open_index(IndexedTexts(release, configs.corpus, analyzer=analyzer), work / "indexes", 1)
        figures: dict[str, Any] = {"default": {"k1": K1, "b": B}}
        figures["default"].update(measure_rankings(search_index(index, queries), qrels))
        if "train" in judged_splits:
            settings = TuningSettings(
                split="train", searched_split=split, set_name=set_name, seed=seed, threads=1, out=None
            )
            k1, b = tune_parameters(index, release, settings)
            figures["tuned"] = {"k1": k1, "b": b}
            figures["tuned"].update(measure_rankings(search_index(index.with_parameters(k1, b), queries), qrels))
        description = f"{name}, no stop words" if drop_stop_words else name
        row["analyzers"][description] = figures
        seconds = time.perf_counter() - start_time
        print(f"{title} {description}: {figures} ({seconds:.0f} s)", file=sys.stderr, flush=True)
    if with_mteb:
        row["mteb"] = measure_rankings(search_like_mteb(release, configs.corpus, queries), qrels)
        print(f"{title} mteb: {row['mteb']}", file=sys.stderr, flush=True)
    return row


def report(rows: list[dict[str, Any]]) -> None:
    """Print a table for each set."""
    for row in rows:
        print(f"\n{row['set']}: {row['queries']:,} questions of {row['split']}, {row['passages']:,} passages")
        print(f"{'':26}  MRR@10  nDCG@10    R@50  tuned: k1     b  MRR@10  nDCG@10    R@50")
        for description, figures in row["analyzers"].items():
            line = f"{description:26}  {_cells(figures['default'])}"
            if "tuned" in figures:
                tuned = figures["tuned"]
                line += f"  {tuned['k1']:9g} {tuned['b']:5g}  {_cells(tuned)}"
            print(line)
        if "mteb" in row:
            print(f"{'mteb until 2026':26}  {_cells(row['mteb'])}")


def _cells(figures: dict[str, float]) -> str:
    return f"{figures['MRR@10']:6.2f}  {figures['nDCG@10']:7.2f}  {figures['R@50']:6.2f}"


def main() -> None:
    parser = parser_of(__doc__, "--json")
    parser.add_argument("sets", nargs="+", metavar="NAME=RELEASE[:SET[:SPLIT]]", help="a set to evaluate")
    parser.add_argument("--seed", type=int, default=0, help="seed of the tuning questions (default: 0)")
    parser.add_argument("--mteb", action="store_true", help="add mteb's BM25; needs bm25s and PyStemmer")
    parser.add_argument("--work", type=Path, help="folder to keep the indexes (default: temporary)")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        work = args.work or Path(name)
        for named_source in args.sets:
            title, _, source = named_source.partition("=")
            rows.append(evaluate_set(title, source, work, seed=args.seed, with_mteb=args.mteb))
            # The file is written after each set, because a set can take hours.
            write_json(args.json, machine("numba", "rjieba") | {"seed": args.seed, "rows": rows})
    report(rows)


if __name__ == "__main__":
    main()
