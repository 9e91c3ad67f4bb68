"""The formats of :mod:`builders.export`: which files each has, and what a line of them holds.

A format is a function that writes one set of a release into an output, and its line in :data:`FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from builders.common.command import InputError
from builders.export.negatives import joined_with
from builders.export.output import Output
from builders.export.runs import write_runs
from builders.export.sets import ReleaseSet
from builders.export.training import flagembedding, pylate, sentence_transformers, triplets
from builders.store.layout import JOINED

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
    """The files of the official archives; see :mod:`builders.official.export`."""
    from builders.official.export import export_official

    if data.name != "main":
        raise InputError(f"the official files hold the main set only, not {data.name}", path=data.release.path)
    written = export_official(data.release, output.folder)
    output.rows = {file.name: file.rows for file in written}
    output.notes = {"equal_to_the_file_that_was_read": {file.name: file.equal for file in written}}
    write_runs(output, output.options.runs, RUN_FORMS["official"], data)


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
