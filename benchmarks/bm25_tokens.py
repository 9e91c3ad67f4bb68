"""Tokens and queries for benchmarks/bm25.py, either random or from a release.

Lengths of random passages are log-normal (sigma 0.6). Each passage has ten topic words, which make 35 % of its tokens.
The probability of a topic word is proportional to 1 / (rank + 300). The probability of any other token is proportional
to 1 / (rank + 2.7) ** 1.05. A query consists of four topic words of a random passage and the passage's first token. A
word has one or more Chinese characters. Frequent words are shorter.
"""

import gzip
import json
import multiprocessing
import re
import shutil
import sys
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import common  # noqa: F401 (makes the project importable)
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROWS = 1 << 16  # rows per file
_DRAWS_PER_TABLE = 1 << 24  # the resolution of the tables of ranks
_CHARACTERS = 3_000  # distinct Chinese characters in the words
_FIRST_CHARACTER = 0x4E00
_LENGTH_SIGMA = 0.6
_TOPIC_WORDS = 10  # of a passage
_TOPIC_SHARE = 0.35  # of the tokens of a passage
_TOPIC_WORDS_IN_QUERY = 4
_SEED = 7
_PASSAGE_CHARS = 120  # most characters of a passage of text files, except if a single sentence is longer
_TEXTS_PER_BATCH = 512


def _tables(vocabulary: int) -> tuple[Any, list[Any]]:
    """Return the words by rank, and a table of ranks for each distribution.

    A random element of a table is a rank drawn from the distribution. The first table is for other tokens, the second
    for topic words. For example, with the probabilities 1/2, 1/4 and 1/4, and eight elements, a table is
    0 0 0 0 1 1 2 2.
    """
    words = [_word_of_rank(rank) for rank in range(vocabulary)]
    levels = (np.arange(_DRAWS_PER_TABLE) + 0.5) / _DRAWS_PER_TABLE  # evenly spaced between 0 and 1
    rank_tables = []
    for shift, power in ((2.7, 1.05), (300, 1.0)):
        cumulative_weights = np.cumsum(1 / (np.arange(vocabulary) + shift) ** power)
        ranks = np.searchsorted(cumulative_weights, levels * cumulative_weights[-1])
        rank_tables.append(ranks.astype(np.int32))
    return pa.array(words), rank_tables


def _word_of_rank(rank: int) -> str:
    """Return the word of a rank: the rank's digits in base 3,000, each as a Chinese character."""
    word = ""
    remaining = rank
    while not word or remaining:
        remaining, digit = divmod(remaining, _CHARACTERS)
        word += chr(_FIRST_CHARACTER + digit)
    return word


def _start(vocabulary: int) -> None:
    """Create the tables once in each worker process."""
    global _WORDS, _RANK_TABLES
    _WORDS, _RANK_TABLES = _tables(vocabulary)


def _write_random_file(task: tuple[Path, int, int, int, int]) -> list[str]:
    """Write one file of passages, and return queries for these passages, with spaces between the words.

    ``task`` has the folder, the file's number, and the numbers of passages, of tokens in an average passage, and of
    queries.
    """
    folder, file_number, row_count, mean_tokens, query_count = task
    random = np.random.default_rng([_SEED, file_number])
    # On the logarithmic scale, the mean of a log-normal variable is half of sigma squared above the median: here 0.18.
    log_median = np.log(mean_tokens) - _LENGTH_SIGMA**2 / 2
    lengths = np.maximum(3, random.lognormal(log_median, _LENGTH_SIGMA, row_count)).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])

    # Draw all tokens of the file, and then replace some by topic words of their passage.
    common_ranks, topic_ranks = _RANK_TABLES
    token_ranks = common_ranks[random.integers(0, _DRAWS_PER_TABLE, int(offsets[-1]))]
    topics = topic_ranks[random.integers(0, _DRAWS_PER_TABLE, (row_count, _TOPIC_WORDS))]
    is_topic = random.random(len(token_ranks)) < _TOPIC_SHARE
    row_of_token = np.repeat(np.arange(row_count), lengths)
    topic_numbers = random.integers(0, _TOPIC_WORDS, int(is_topic.sum()))
    token_ranks[is_topic] = topics[row_of_token[is_topic], topic_numbers]
    token_lists = pa.LargeListArray.from_arrays(pa.array(offsets), _WORDS.take(pa.array(token_ranks)))
    table = pa.table({"text": pc.binary_join(token_lists, " ").cast(pa.string())})
    pq.write_table(table, folder / f"{file_number:05d}.parquet", compression="lz4", use_dictionary=False)

    queries = []
    for row in random.integers(0, row_count, query_count):
        query_ranks = list(random.choice(topics[row], _TOPIC_WORDS_IN_QUERY, replace=False))
        query_ranks.append(token_ranks[offsets[row]])
        queries.append(" ".join(_WORDS[int(rank)].as_py() for rank in query_ranks))
    return queries


def made_up(folder: Path, passages: int, tokens: int, vocabulary: int, queries: int, workers: int) -> None:
    """Write random passages as Parquet files of ROWS rows, and write the queries.

    ``tokens`` is the average number of tokens of a passage, and ``vocabulary`` the number of words.
    """
    tokens_folder = folder / "tokens"
    shutil.rmtree(tokens_folder, ignore_errors=True)  # files of an earlier call
    tokens_folder.mkdir()
    tasks = []
    for file_number, start in enumerate(range(0, passages, ROWS)):
        row_count = min(ROWS, passages - start)
        # Queries in proportion to the passages, rounded so that the sum over the files is exact.
        query_count = queries * (start + row_count) // passages - queries * start // passages
        tasks.append((tokens_folder, file_number, row_count, tokens, query_count))
    query_texts: list[str] = []
    with multiprocessing.get_context("spawn").Pool(workers, _start, (vocabulary,)) as pool:
        for file_queries in pool.imap(_write_random_file, tasks):
            query_texts += file_queries
    (folder / "queries.json").write_text(json.dumps(query_texts), encoding="utf-8")


def of_release(folder: Path, path: Path, split: str, queries: int, workers: int) -> None:
    """Write the segmented passages of a release, and the first ``queries`` queries of a split.

    Queries without a word are skipped.
    """
    from baselines.bm25.bm25_index import IndexedTexts
    from baselines.measure.qrels import read_queries
    from builders.core.word_tokens import word_tokens
    from builders.store.reader import open_release

    release = open_release(path)
    _write_tokens(folder, IndexedTexts(release).tokens(workers))
    query_texts = [" ".join(word_tokens(text)) for _, text in read_queries(release, split)[:queries]]
    searchable = [text for text in query_texts if text]
    (folder / "queries.json").write_text(json.dumps(searchable), encoding="utf-8")


def of_texts(folder: Path, paths: list[Path], questions: Path, passages: int, queries: int, workers: int) -> None:
    """Write the first ``passages`` segmented passages of text files, and the first ``queries`` segmented questions.

    ``questions`` is a file with a question in each line. Questions without a word are skipped. Ends the program if the
    files have fewer passages.
    """
    from baselines.bm25.bm25_index import segment_batches
    from baselines.bm25.tokens import WORDS
    from builders.core.word_tokens import word_tokens

    passage_texts = islice(_cut_passages(paths), passages)
    batches = iter(lambda: list(islice(passage_texts, _TEXTS_PER_BATCH)), [])
    token_batches = segment_batches(batches, workers, WORDS)
    _write_tokens(folder, chain.from_iterable(token_batches))
    passage_count = passages_of(folder)
    if passage_count < passages:
        file_names = ", ".join(map(str, paths))
        sys.exit(f"{file_names}: expected {passages} distinct passages, found {passage_count}; lower --passages")
    question_lines = questions.read_text(encoding="utf-8").split("\n")
    query_texts = [" ".join(word_tokens(text)) for text in question_lines if text][:queries]
    (folder / "queries.json").write_text(json.dumps([text for text in query_texts if text]), encoding="utf-8")


def _cut_passages(paths: list[Path]) -> Iterator[str]:
    """Yield the distinct passages of text files. Sentences of a line are joined up to ``_PASSAGE_CHARS`` characters."""
    seen_passages: set[str] = set()
    for path in paths:
        open_text = gzip.open if path.suffix == ".gz" else open
        with open_text(path, "rt", encoding="utf-8", newline="\n") as file:
            for line in file:
                passage = ""
                # The empty sentence at the end yields the last passage.
                for sentence in [*re.split("(?<=[。！？])", line.strip()), ""]:
                    is_full = len(passage) + len(sentence) > _PASSAGE_CHARS or not sentence
                    if passage and is_full and passage not in seen_passages:
                        seen_passages.add(passage)
                        yield passage
                    if is_full:
                        passage = ""
                    passage += sentence


def _write_tokens(folder: Path, token_texts: Iterator[str]) -> None:
    """Write passages, with spaces between tokens, as Parquet files of ROWS rows."""
    tokens_folder = folder / "tokens"
    shutil.rmtree(tokens_folder, ignore_errors=True)  # files of an earlier call
    tokens_folder.mkdir()
    file_number = 0
    file_texts = list(islice(token_texts, ROWS))
    while file_texts:
        pq.write_table(pa.table({"text": file_texts}), tokens_folder / f"{file_number:05d}.parquet", compression="lz4")
        file_number += 1
        file_texts = list(islice(token_texts, ROWS))


def texts_of(folder: Path) -> Iterator[str]:
    """Yield the passages, with spaces between tokens."""
    for path in sorted((folder / "tokens").iterdir()):
        yield from pq.read_table(path).column("text").to_pylist()


def passages_of(folder: Path) -> int:
    """Return the number of passages."""
    return sum(pq.read_metadata(path).num_rows for path in (folder / "tokens").iterdir())


def _write_lines(path: Path) -> None:
    """Write one file of tokens as JSON lines. The file's name is its number, which determines the passage ids."""
    lines_path = path.parent.parent / "json.part" / f"{path.stem}.jsonl"
    texts = pq.read_table(path).column("text").to_pylist()
    first_row = int(path.stem) * ROWS
    with open(lines_path, "w", encoding="utf-8") as file:
        for row, text in enumerate(texts, start=first_row):
            file.write(json.dumps({"id": str(row), "contents": text}, ensure_ascii=False) + "\n")


def write_for_pyserini(folder: Path, workers: int) -> None:
    """Write the passages in Pyserini's format, unless they are already written."""
    finished_folder = folder / "json"
    if finished_folder.exists():
        return
    partial_folder = folder / "json.part"
    partial_folder.mkdir(exist_ok=True)
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(_write_lines, sorted((folder / "tokens").iterdir()), chunksize=1)
    partial_folder.rename(finished_folder)
