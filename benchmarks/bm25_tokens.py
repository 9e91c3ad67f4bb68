"""Tokens and queries for benchmarks/bm25.py, either random or from a release.

Lengths of random passages are log-normal (sigma 0.6). Each passage has ten topic words, which make 35 % of its tokens.
The probability of a topic word is proportional to 1 / (rank + 300). The probability of any other token is proportional
to 1 / (rank + 2.7) ** 1.05. A query consists of four topic words of a random passage and the passage's first token. A
word has one or more Chinese characters. Frequent words are shorter.
"""

import json
import multiprocessing
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import common  # noqa: F401 (makes the project importable)
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROWS = 1 << 16  # rows per file


def _tables(vocabulary: int) -> tuple[Any, list[Any]]:
    """Return the words by rank, and a table of ranks for each distribution.

    A random element of a table is a rank drawn from the distribution. The first table is for other tokens, the second
    for topic words.
    """
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
    """Create the tables once in each worker process."""
    global _WORDS, _DRAWS
    _WORDS, _DRAWS = _tables(vocabulary)


def _make_up(task: tuple[Path, int, int, int, int]) -> list[str]:
    """Write one file of passages, and return queries for these passages."""
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
    """Write random passages as Parquet files of ROWS rows, and write the queries."""
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
    """Write the segmented passages and queries of a release."""
    from baselines.bm25.bm25_index import Texts
    from baselines.measure.qrels import read_queries
    from builders.core.word_tokens import word_tokens
    from builders.store.reader import open_release

    release = open_release(path)
    texts = Texts(release).tokens(workers)
    (folder / "tokens").mkdir(exist_ok=True)
    for number, part in enumerate(iter(lambda: list(islice(texts, ROWS)), [])):
        pq.write_table(pa.table({"text": part}), folder / "tokens" / f"{number:05d}.parquet", compression="lz4")
    asked = [" ".join(word_tokens(text)) for _, text in read_queries(release, split)[:queries]]
    (folder / "queries.json").write_text(json.dumps([text for text in asked if text]), encoding="utf-8")


def texts_of(folder: Path) -> Iterator[str]:
    """Yield the passages, with spaces between tokens."""
    for path in sorted((folder / "tokens").iterdir()):
        yield from pq.read_table(path).column("text").to_pylist()


def passages_of(folder: Path) -> int:
    """Return the number of passages."""
    return sum(pq.read_metadata(path).num_rows for path in (folder / "tokens").iterdir())


def _write_lines(path: Path) -> None:
    with open(path.parent.parent / "json.part" / f"{path.stem}.jsonl", "w", encoding="utf-8") as file:
        for row, text in enumerate(pq.read_table(path).column("text").to_pylist(), int(path.stem) * ROWS):
            file.write(json.dumps({"id": str(row), "contents": text}, ensure_ascii=False) + "\n")


def write_for_pyserini(folder: Path, workers: int) -> None:
    """Write the passages in Pyserini's format, unless they are already written."""
    whole = folder / "json"
    if whole.exists():
        return
    (folder / "json.part").mkdir(exist_ok=True)
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(_write_lines, sorted((folder / "tokens").iterdir()), chunksize=1)
    (folder / "json.part").rename(whole)
