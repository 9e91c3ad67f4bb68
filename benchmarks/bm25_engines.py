"""Run one BM25 engine in a separate process, for benchmarks/bm25.py: ENGINE index|search WORK THREADS.

``index`` prints its figures as a line of JSON. ``search`` opens the index and reads jobs from stdin. Each line is a job
``{"k", "threads", "queries": [...], "hits": FILE or null}``. The seconds of each job are printed.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common  # noqa: F401 (makes the project importable)

K1, B = 1.2, 0.75
Queries = list[list[str]]
# Two functions: search(queries, k, threads) returns hits; passages(hits) returns the passage ids of each query.
Engine = tuple[Callable[[Queries, int, int], Any], Callable[[Any], list[list[str]]]]


def index_ours(folder: Path, index: Path, threads: int) -> None:
    import pyarrow as pa
    from bm25_tokens import ROWS, passages_of, texts_of

    from baselines.bm25.engine_numba import write_index

    rows = passages_of(folder)
    ids = (pa.array(map(str, range(start, min(start + ROWS, rows)))) for start in range(0, rows, ROWS))
    write_index(index, texts_of(folder), ids, threads)


def index_lucene(folder: Path, index: Path, threads: int) -> None:
    command = [sys.executable, "-m", "pyserini.index.lucene", "--collection", "JsonCollection", "--pretokenized"]
    command += ["--generator", "DefaultLuceneDocumentGenerator", "--threads", str(threads), "--optimize"]
    subprocess.run([*command, "--input", str(folder / "json"), "--index", str(index)], check=True, stdout=sys.stderr)


def index_bm25s(folder: Path, index: Path, threads: int) -> None:
    import bm25s
    from bm25_tokens import texts_of

    numbers: dict[str, int] = {}
    ids = [[numbers.setdefault(word, len(numbers)) for word in text.split()] for text in texts_of(folder)]
    engine = bm25s.BM25(method="lucene", k1=K1, b=B, backend="numba")
    engine.index((ids, numbers), show_progress=False)
    engine.save(index)


def open_lucene(index: Path) -> Engine:
    """Open Lucene. The timed search leaves its hits in Java, because Pyserini passes hits to Python slowly."""
    os.environ.setdefault("OPENAI_API_KEY", "none")  # Pyserini creates a client on import, but sends nothing
    from pyserini.analysis import JWhiteSpaceAnalyzer
    from pyserini.pyclass import autoclass
    from pyserini.search.lucene import LuceneSearcher

    lucene, new_list = LuceneSearcher(str(index)), autoclass("java.util.ArrayList")
    lucene.set_analyzer(JWhiteSpaceAnalyzer())
    lucene.set_bm25(K1, B)

    def search(queries: Queries, k: int, threads: int) -> Any:
        texts, names = new_list(), new_list()
        for number, words in enumerate(queries):
            texts.add(" ".join(words))
            names.add(str(number))
        return lucene.object.batch_search(texts, names, k, threads)

    def passages(found: Any) -> list[list[str]]:
        hits = {entry.getKey(): entry.getValue() for entry in found.entrySet().toArray()}
        return [[hit.docid for hit in hits[str(number)]] for number in range(len(hits))]

    return search, passages


def open_bm25s(index: Path) -> Engine:
    import bm25s

    model = bm25s.BM25.load(index, mmap=True)
    model.backend = "numba"

    def search(queries: Queries, k: int, threads: int) -> Any:
        return model.retrieve(queries, k=k, n_threads=threads, show_progress=False)

    return search, lambda found: [list(map(str, rows)) for rows in found.documents.tolist()]


def open_ours(index: Path, threads: int) -> Engine:
    from baselines.bm25.engine_numba import NumbaIndex
    from builders.core.jobs import in_threads

    opened = NumbaIndex(index, K1, B, threads)

    def search(queries: Queries, k: int, threads: int) -> Any:
        parts = [list(range(start, min(start + 32, len(queries)))) for start in range(0, len(queries), 32)]
        ask = lambda part: opened.search_columns(list(map(str, part)), [queries[n] for n in part], k)  # noqa: E731
        return list(in_threads(ask, parts, threads))

    return search, lambda found: [ids for part in found for ids in part.rankings().values()]


def main(engine: str, step: str, work: Path, threads: int) -> None:
    index = work / f"index-{engine}"
    begin = time.perf_counter()
    if step == "index":
        shutil.rmtree(index, ignore_errors=True)
        index.mkdir()
        steps = {"numba": index_ours, "lucene": index_lucene, "bm25s": index_bm25s}
        steps[engine](work, index, threads)
        size = sum(path.stat().st_size for path in index.rglob("*") if path.is_file())
        print(json.dumps({"seconds": round(time.perf_counter() - begin, 1), "mb": round(size / 1e6)}), flush=True)
        return
    if engine == "lucene":
        search, passages = open_lucene(index)
    else:
        search, passages = open_bm25s(index) if engine == "bm25s" else open_ours(index, threads)
    print(json.dumps({"open_seconds": round(time.perf_counter() - begin, 2)}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        queries = [text.split() for text in job["queries"]]
        begin = time.perf_counter()
        found = search(queries, job["k"], job["threads"])
        seconds = time.perf_counter() - begin
        if job["hits"]:
            Path(job["hits"]).write_text(json.dumps(passages(found)), encoding="utf-8")
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
