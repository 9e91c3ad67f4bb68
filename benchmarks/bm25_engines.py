"""Run one BM25 engine in a separate process, for benchmarks/bm25.py: ENGINE index|search WORK THREADS.

``index`` prints its figures as a line of JSON. ``search`` opens the index and reads jobs from stdin. Each line is a job
``{"k", "threads", "queries": [...], "hits": FILE or null}``. The seconds and the processor seconds of each job are
printed.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import common  # noqa: F401 (makes the project importable)

K1, B = 1.2, 0.75
_QUERIES_AT_ONCE = 32  # of a thread of this project's engine
Queries = list[list[str]]  # the words of each query
# Two functions: search(queries, k, threads) returns hits; passages(hits) returns the passage ids of each query.
Engine = tuple[Callable[[Queries, int, int], Any], Callable[[Any], list[list[str]]]]

# The functions index_... index the tokens in ``folder`` (bm25_tokens.py) into the folder ``index``. In every engine,
# the id of a passage is its row number.


def index_ours(folder: Path, index: Path, threads: int) -> None:
    """Index with this project's engine."""
    import pyarrow as pa
    from bm25_tokens import ROWS, passages_of, texts_of

    from baselines.bm25.engine_numba import write_index

    passage_count = passages_of(folder)

    def id_blocks() -> Iterator[Any]:
        """Yield the ids, which are the numbers of the passages, in blocks as large as the files."""
        for start in range(0, passage_count, ROWS):
            passage_numbers = range(start, min(start + ROWS, passage_count))
            yield pa.array(map(str, passage_numbers))

    write_index(index, texts_of(folder), id_blocks(), threads)


def index_lucene(folder: Path, index: Path, threads: int) -> None:
    command = [sys.executable, "-m", "pyserini.index.lucene", "--collection", "JsonCollection", "--pretokenized"]
    command += ["--generator", "DefaultLuceneDocumentGenerator", "--threads", str(threads), "--optimize"]
    subprocess.run([*command, "--input", str(folder / "json"), "--index", str(index)], check=True, stdout=sys.stderr)


def index_bm25s(folder: Path, index: Path, threads: int) -> None:
    """Index with bm25s. ``threads`` is not used."""
    import bm25s
    from bm25_tokens import texts_of

    vocabulary: dict[str, int] = {}  # word -> number, in the order of the first occurrences
    token_ids = []
    for text in texts_of(folder):
        token_ids.append([vocabulary.setdefault(word, len(vocabulary)) for word in text.split()])
    engine = bm25s.BM25(method="lucene", k1=K1, b=B, backend="numba")
    engine.index((token_ids, vocabulary), show_progress=False)
    engine.save(index)


def open_lucene(index: Path) -> Engine:
    """Open Lucene. The timed search leaves its hits in Java, because Pyserini passes hits to Python slowly."""
    os.environ.setdefault("OPENAI_API_KEY", "none")  # Pyserini creates a client on import, but sends nothing
    from pyserini.analysis import JWhiteSpaceAnalyzer
    from pyserini.pyclass import autoclass
    from pyserini.search.lucene import LuceneSearcher

    new_java_list = autoclass("java.util.ArrayList")
    lucene = LuceneSearcher(str(index))
    lucene.set_analyzer(JWhiteSpaceAnalyzer())
    lucene.set_bm25(K1, B)

    def search(queries: Queries, k: int, threads: int) -> Any:
        query_texts = new_java_list()
        query_numbers = new_java_list()
        for query_number, words in enumerate(queries):
            query_texts.add(" ".join(words))
            query_numbers.add(str(query_number))
        return lucene.object.batch_search(query_texts, query_numbers, k, threads)

    def passages(java_hits: Any) -> list[list[str]]:
        hits_by_number = {entry.getKey(): entry.getValue() for entry in java_hits.entrySet().toArray()}
        passage_ids = []
        for query_number in range(len(hits_by_number)):
            passage_ids.append([hit.docid for hit in hits_by_number[str(query_number)]])
        return passage_ids

    return search, passages


def open_bm25s(index: Path) -> Engine:
    """Open bm25s. The timed search returns row numbers, which are converted to ids afterwards."""
    import bm25s

    model = bm25s.BM25.load(index, mmap=True)
    model.backend = "numba"

    def search(queries: Queries, k: int, threads: int) -> Any:
        return model.retrieve(queries, k=k, n_threads=threads, show_progress=False)

    def passages(results: Any) -> list[list[str]]:
        return [[str(row) for row in rows] for rows in results.documents.tolist()]

    return search, passages


def index_pisa(folder: Path, index: Path, threads: int) -> None:
    """Index with PISA. Words become ``t`` and a number, because PISA's tokenizer reads only ASCII words."""
    import pyterrier_pisa
    from bm25_tokens import texts_of

    vocabulary: dict[str, int] = {}

    def documents() -> Iterator[dict[str, str]]:
        for row, text in enumerate(texts_of(folder)):
            words = [f"t{vocabulary.setdefault(word, len(vocabulary))}" for word in text.split()]
            yield {"docno": str(row), "text": " ".join(words)}

    pisa_index = pyterrier_pisa.PisaIndex(str(index / "pisa"), stemmer="none", stops="none", threads=threads)
    pisa_index.indexer("text").index(documents())
    (index / "vocabulary.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    pisa_index.bm25(k1=K1, b=B)  # compresses the index


def open_pisa(index: Path) -> Engine:
    """Open PISA. The timed search calls PISA's extension module, because PyTerrier's data frame of hits is slow."""
    import numpy as np
    import pyterrier_pisa
    from pyterrier_pisa import _pisathon

    vocabulary = json.loads((index / "vocabulary.json").read_text(encoding="utf-8"))
    pisa_index = pyterrier_pisa.PisaIndex(str(index / "pisa"), stemmer="none", stops="none")
    retriever = pisa_index.bm25(k1=K1, b=B)

    def search(queries: Queries, k: int, threads: int) -> Any:
        texts = []
        for query_number, words in enumerate(queries):
            texts.append((query_number, " ".join(f"t{vocabulary[word]}" for word in words if word in vocabulary)))
        hit_limit = len(queries) * k
        hits = {
            "result_qidxs": np.empty(hit_limit, np.int32),
            "result_docnos": np.empty(hit_limit, object),
            "result_ranks": np.empty(hit_limit, np.int32),
            "result_scores": np.empty(hit_limit, np.float32),
        }
        context = retriever._ctxt
        algorithm = retriever.query_algorithm.value  # PISA's default: block-max WAND
        hit_count = _pisathon.retrieve(
            context, algorithm, texts, k=k, threads=threads, query_weighted=0, pretokenised=False, **hits
        )
        return len(queries), hits["result_qidxs"][:hit_count], hits["result_docnos"][:hit_count]

    def passages(results: Any) -> list[list[str]]:
        query_count, query_numbers, passage_ids = results
        return [passage_ids[query_numbers == query_number].tolist() for query_number in range(query_count)]

    return search, passages


def open_ours(index: Path, threads: int) -> Engine:
    """Open this project's engine. The timed search divides the queries into blocks, which the threads search."""
    from baselines.bm25.engine_numba import NumbaIndex
    from builders.core.jobs import in_threads

    opened_index = NumbaIndex(index, K1, B, threads)

    def search(queries: Queries, k: int, threads: int) -> Any:
        def search_block(query_numbers: range) -> Any:
            query_ids = [str(number) for number in query_numbers]
            return opened_index.search_columns(query_ids, [queries[number] for number in query_numbers], k)

        blocks = []
        for start in range(0, len(queries), _QUERIES_AT_ONCE):
            blocks.append(range(start, min(start + _QUERIES_AT_ONCE, len(queries))))
        return list(in_threads(search_block, blocks, threads))

    def passages(hit_columns: Any) -> list[list[str]]:
        passage_ids: list[list[str]] = []
        for columns in hit_columns:
            passage_ids += columns.rankings().values()
        return passage_ids

    return search, passages


def main(engine: str, step: str, work: Path, threads: int) -> None:
    """Run one step of one engine, as the head of this module describes. ``work`` has the tokens and the indexes."""
    index = work / f"index-{engine}"
    # PISA logs to stdout, which is only for figures here. Its log goes to stderr.
    figures_file = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    start_time = time.perf_counter()
    if step == "index":
        shutil.rmtree(index, ignore_errors=True)
        index.mkdir()
        index_functions = {"numba": index_ours, "lucene": index_lucene, "bm25s": index_bm25s, "pisa": index_pisa}
        index_functions[engine](work, index, threads)
        seconds = time.perf_counter() - start_time
        index_bytes = sum(path.stat().st_size for path in index.rglob("*") if path.is_file())
        print(json.dumps({"seconds": round(seconds, 1), "mb": round(index_bytes / 1e6)}), file=figures_file, flush=True)
        return
    if engine == "lucene":
        search, passages = open_lucene(index)
    elif engine == "bm25s":
        search, passages = open_bm25s(index)
    elif engine == "pisa":
        search, passages = open_pisa(index)
    else:
        search, passages = open_ours(index, threads)
    print(json.dumps({"open_seconds": round(time.perf_counter() - start_time, 2)}), file=figures_file, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        queries = [text.split() for text in job["queries"]]
        start_time = time.perf_counter()
        start_cpu = time.process_time()
        hits = search(queries, job["k"], job["threads"])
        cpu_seconds = time.process_time() - start_cpu
        seconds = time.perf_counter() - start_time
        if job["hits"]:
            Path(job["hits"]).write_text(json.dumps(passages(hits)), encoding="utf-8")
        print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds}), file=figures_file, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
