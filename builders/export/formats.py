"""The formats of :mod:`builders.export`: which files each has, and what a line of them holds.

A format is a function that writes one set of a release into an output, and its line in :data:`FORMATS`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from builders.core.errors import InputError
from builders.export.negatives import joined_with
from builders.export.output import Output
from builders.export.runs import write_runs
from builders.export.sets import ReleaseSet
from builders.export.training import flagembedding, pylate, sentence_transformers, triplets
from builders.store.layout import JOINED
from builders.store.reader import Release

PASSAGES_PER_FILE = 500_000  # Pyserini's indexer gives each of its threads a file


def beir(data: ReleaseSet, output: Output) -> None:
    """BEIR: the corpus, the queries of all splits in one file, judgments with a header."""
    output.json("corpus.jsonl", (batch.to_pylist() for batch in data.corpus()))

    def queries() -> Iterator[list[dict[str, Any]]]:
        seen: set[str] = set()
        for split in data.query_splits():
            for batch in data.queries(split):
                # A question of two splits is one query.
                rows = {row["_id"]: row for row in batch.to_pylist() if row["_id"] not in seen}
                seen.update(rows)
                yield list(rows.values())

    output.json("queries.jsonl", queries())
    for split in data.qrels_splits():
        columns = ["query-id", "corpus-id", "score"]
        output.qrels(f"qrels/{split}.tsv", data.qrels(split), columns, "\t", header=True)
    write_runs(output, output.options.runs, RUN_FORMS["beir"], data)


def trec(data: ReleaseSet, output: Output) -> None:
    """TREC, as Pyserini reads it: a collection of JSON files, topics, judgments, and the runs of the release."""
    width = len(str(max(0, data.passages - 1) // PASSAGES_PER_FILE).rjust(2))
    for number, batches in enumerate(_files(data.contents(), PASSAGES_PER_FILE)):
        documents = (pa.table({"id": ids, "contents": texts}).to_pylist() for ids, texts in batches)
        output.json(f"corpus/docs-{number:0{width}d}.jsonl", documents)
    for split in data.query_splits():
        output.texts(f"topics.{split}.tsv", data.query_texts(split))
    for split in data.qrels_splits():
        output.qrels(f"qrels.{split}.txt", data.qrels(split), ["query-id", "0", "corpus-id", "score"], " ")
    write_runs(output, [*map(data.release.named, data.runs()), *output.options.runs], RUN_FORMS["trec"], data)


def msmarco(data: ReleaseSet, output: Output) -> None:
    """MS MARCO: everything in lines of fields with tabs between them."""
    output.texts("collection.tsv", data.contents())
    for split in data.query_splits():
        output.texts(f"queries.{split}.tsv", data.query_texts(split))
    for split in data.qrels_splits():
        output.qrels(f"qrels.{split}.tsv", data.qrels(split), ["query-id", "0", "corpus-id", "score"], "\t")


def tevatron(data: ReleaseSet, output: Output) -> None:
    """Tevatron: a line a query with all its passages, and the corpus."""
    columns = ["docid", "title", "text"]
    output.json("corpus.jsonl", (batch.rename_columns(columns).to_pylist() for batch in data.corpus()))
    with joined_with(data, output.options.negatives) as joined:
        for split in data.query_splits():
            output.json(f"{split}.jsonl", (batch.select(JOINED.names).to_pylist() for batch in joined(split)))


def official(data: ReleaseSet, output: Output) -> None:
    """The original release's files, and the baseline's training files where train has negatives."""
    release = data.release
    if data.name != "main":
        raise InputError(f"the official files hold the main set only, not {data.name}", path=release.path)
    for config, split in release.splits():
        if config in _ORIGINAL:
            name, columns = _ORIGINAL[config]
            batches = release.batches(config, split, columns, 1_024)
            if "positive_passages" in columns and not _has(release, split, "positive_passages"):
                pairs = {row["query"]: row["query_id"] for batch in batches for row in batch.to_pylist()}
                content = json.dumps(pairs, ensure_ascii=False).encode()
                output.blocks(f"{_BASELINE}/{split}/q2qid.{split}.json", [(len(pairs), content)])
            else:
                output.blocks(f"dureader_retrieval-data/{name}.json", map(_official_json, batches))
    if ("train", "train") in release.splits() and _has(release, "train", "negative_passages"):
        output.tsv(f"{_BASELINE}/train/dual.train.tsv", _dual_rows(release))
        output.tsv(f"{_BASELINE}/train/cross.train.tsv", _cross_rows(release))
    write_runs(output, output.options.runs, RUN_FORMS["official"], data)


_BASELINE = "dureader-retrieval-baseline-dataset"
_QUESTION = ["query_id", "query"]
_ORIGINAL = {
    "corpus": ("passage_collection", ["_id", "text"]),
    "train": ("train", [*_QUESTION, "positive_passages"]),
    "dev": ("dev", [*_QUESTION, "positive_passages"]),
    "test": ("test1", _QUESTION),
}
_NAMES = {"_id": "paragraph_id", "docid": "paragraph_id", "text": "paragraph_text"}
_NAMES |= {"query_id": "question_id", "query": "question", "positive_passages": "answer_paragraphs"}


def _has(release: Release, split: str, column: str) -> bool:
    """True if any joined row of a split has a passage in this column."""
    return any(len(batch[column].flatten()) for batch in release.batches(split, split, [column], 1_024))


def _official_json(batch: pa.RecordBatch) -> tuple[int, bytes]:
    """How many rows a batch has, and the rows as JSON lines with the official names and Python's separators."""

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {_NAMES[name]: renamed(each) for name, each in value.items() if name != "title"}
        return [renamed(each) for each in value] if isinstance(value, list) else value

    lines = [json.dumps(renamed(row), ensure_ascii=False) + "\n" for row in batch.to_pylist()]
    return len(lines), "".join(lines).encode()


def _training(release: Release) -> Iterator[tuple[str, list[str], list[str]]]:
    """Every training question with the texts of its positives and of its negatives."""
    columns = ["query", "positive_passages", "negative_passages"]
    for batch in release.batches("train", "train", columns, 1_024):
        for row in batch.to_pylist():
            yield row["query"], *([passage["text"] for passage in row[column]] for column in columns[1:])


def _dual_rows(release: Release) -> Iterator[list[str]]:
    """A row a negative; the positives of its question take turns."""
    for query, positives, negatives in _training(release):
        for positive, negative in zip(itertools.cycle(positives), negatives, strict=False):
            yield [query, "", positive, "", negative, "0"]


def _cross_rows(release: Release) -> Iterator[list[str]]:
    """A row a passage: 1 for a positive, 0 for a negative."""
    for query, *both in _training(release):
        for label, texts in zip("10", both, strict=True):
            yield from ([query, "", text, label] for text in texts)


FORMATS: dict[str, Callable[[ReleaseSet, Output], None]] = {
    "beir": beir,
    "trec": trec,
    "msmarco": msmarco,
    "tevatron": tevatron,
    "flagembedding": flagembedding,
    "triplets": triplets,
    "pylate": pylate,
    "sentence-transformers": sentence_transformers,
    "official": official,
}
# Which of them take what beside the release.
WITH_NEGATIVES = ("tevatron", "flagembedding", "triplets", "pylate", "sentence-transformers")
RUN_FORMS = {"beir": "json", "trec": "trec", "official": "predictions"}  # of .runs.write_runs


def _files(batches: Iterator[tuple[pa.Array, pa.Array]], rows: int) -> Iterator[Iterator[tuple[pa.Array, pa.Array]]]:
    """Cut a stream into streams of ``rows`` rows; each must be read before the next is asked for."""
    waiting = next(batches, None)

    def one() -> Iterator[tuple[pa.Array, pa.Array]]:
        nonlocal waiting
        room = rows
        while waiting is not None and room:
            ids, texts = waiting
            yield ids[:room], texts[:room]
            taken = min(room, len(ids))
            room -= taken
            waiting = (ids[taken:], texts[taken:]) if taken < len(ids) else next(batches, None)

    while waiting is not None:
        yield one()
