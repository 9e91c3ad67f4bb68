"""Compare the analyzers of BM25: MRR@10, nDCG@10 and R@50, with default and with tuned k1 and b.

Each set is given as NAME=RELEASE[:SET[:SPLIT]]. SET defaults to main. SPLIT defaults to dev, or to test if the set has
no dev. Each analyzer runs with and without stop words. `bm25 --tune train` tunes k1 and b on training questions that
are sampled by --seed. The tuned values are evaluated on SPLIT.

--mteb adds a row for the BM25 that mteb used until 2026. This BM25 has the default tokens of bm25s (runs of letters
between punctuation), English stop words and an English stemmer.

Example:

  python benchmarks/bm25_analyzers.py cmrc2018=build/cmrc drcd=build/drcd cepilepsyqa=build/c:cmedqa:test --json FILE
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import machine, parser_of, write_json

from baselines.bm25.bm25_index import Index, Texts, search_columns
from baselines.bm25.engine_numba import open_index
from baselines.bm25.tokens import ANALYZERS, K1, Analyzer, B
from baselines.bm25.tune import TuningSettings, tune_parameters
from baselines.measure.measures import mean, official, per_query
from baselines.measure.qrels import Qrels, read_queries, release_qrels
from builders.store.layout import SETS
from builders.store.reader import Release, open_release

MEASURES = ["nDCG@10", "R@50"]


def measured(rankings: dict[str, list[str]], qrels: Qrels) -> dict[str, float]:
    found = {name: mean(values) for name, values in per_query(rankings, qrels, MEASURES).items()}
    return {name: round(100 * v, 2) for name, v in {"MRR@10": official(rankings, qrels)["MRR@10"], **found}.items()}


def searched(index: Index, queries: list[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part in search_columns(index, queries, 50, 1):
        found |= part.rankings()
    return found


def of_mteb(release: Release, corpus: str, queries: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Search like mteb/baseline-bm25s 0_1_10: with bm25s's default tokens, English stop words and English stemmer."""
    import bm25s
    import Stemmer

    how: dict[str, Any] = {"stopwords": "en", "stemmer": Stemmer.Stemmer("english"), "show_progress": False}
    rows = [row for batch in release.batches(corpus, "corpus", ["_id", "text"]) for row in batch.to_pylist()]
    engine = bm25s.BM25()
    engine.index(bm25s.tokenize(["\n" + row["text"] for row in rows], **how), show_progress=False)
    asked = bm25s.tokenize([text for _, text in queries], **how)
    best, scores = engine.retrieve(asked, k=min(50, len(rows)), show_progress=False)
    return {
        query: [rows[row]["_id"] for row, score in zip(own, reached, strict=True) if score > 0]
        for (query, _), own, reached in zip(queries, best.tolist(), scores.tolist(), strict=True)
    }


def row_of(name: str, where: str, work: Path, *, seed: int, with_mteb: bool) -> dict[str, Any]:
    """Evaluate every analyzer on the set ``where``, RELEASE[:SET[:SPLIT]]."""
    path, set_name, split = [*where.split(":"), "", ""][:3]
    set_name = set_name or "main"
    release, configs = open_release(Path(path)), SETS[set_name]
    splits = [each for config, each in release.splits() if config == configs.qrels]
    split = split or ("dev" if "dev" in splits else "test")
    qrels = release_qrels(release, split, set_name)
    queries = [query for query in read_queries(release, split, configs.queries) if query[0] in qrels.positives]
    row: dict[str, Any] = {
        "set": name,
        "split": split,
        "passages": release.rows(configs.corpus, "corpus"),
        "queries": len(queries),
        "analyzers": {},
    }
    for analyzer in [Analyzer(each, drop) for each in ANALYZERS for drop in (False, True)]:
        begin = time.perf_counter()
        index = open_index(Texts(release, configs.corpus, analyzer=analyzer), work / "indexes", 1)
        shown = f"{analyzer.name}{', no stop words' * analyzer.drop_stop_words}"
        found: dict[str, Any] = {"default": {"k1": K1, "b": B, **measured(searched(index, queries), qrels)}}
        if "train" in splits:
            settings = TuningSettings(
                split="train", searched_split=split, set_name=set_name, seed=seed, threads=1, out=None
            )
            k1, b = tune_parameters(index, release, settings)
            found["tuned"] = {"k1": k1, "b": b, **measured(searched(index.reopened(k1, b), queries), qrels)}
        row["analyzers"][shown] = found
        print(f"{name} {shown}: {found} ({time.perf_counter() - begin:.0f} s)", file=sys.stderr, flush=True)
    if with_mteb:
        row["mteb"] = measured(of_mteb(release, configs.corpus, queries), qrels)
        print(f"{name} mteb: {row['mteb']}", file=sys.stderr, flush=True)
    return row


def report(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print(f"\n{row['set']}: {row['queries']:,} questions of {row['split']}, {row['passages']:,} passages")
        print(f"{'':26}  MRR@10  nDCG@10    R@50  tuned: k1     b  MRR@10  nDCG@10    R@50")
        for name, found in row["analyzers"].items():
            best = found.get("tuned")
            tuned = f"  {best['k1']:9g} {best['b']:5g}  {_cells(best)}" if best else ""
            print(f"{name:26}  {_cells(found['default'])}{tuned}")
        if "mteb" in row:
            print(f"{'mteb until 2026':26}  {_cells(row['mteb'])}")


def _cells(found: dict[str, float]) -> str:
    return f"{found['MRR@10']:6.2f}  {found['nDCG@10']:7.2f}  {found['R@50']:6.2f}"


def main() -> None:
    parser = parser_of(__doc__, "--json")
    parser.add_argument("sets", nargs="+", metavar="NAME=RELEASE[:SET[:SPLIT]]", help="a set to evaluate")
    parser.add_argument("--seed", type=int, default=0, help="seed of the tuning questions (default: 0)")
    parser.add_argument("--mteb", action="store_true", help="add mteb's BM25; needs bm25s and PyStemmer")
    parser.add_argument("--work", type=Path, help="folder to keep the indexes (default: temporary)")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for each in args.sets:
            title, _, where = each.partition("=")
            rows.append(row_of(title, where, args.work or Path(name), seed=args.seed, with_mteb=args.mteb))
            write_json(args.json, {**machine("numba", "rjieba"), "seed": args.seed, "rows": rows})
    report(rows)


if __name__ == "__main__":
    main()
