"""The layouts of :mod:`builders.export`: which files, and what a line of each holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from builders.common.command import InputError, progress
from builders.export.sets import SETS, ReleaseSet
from builders.store.layout import JOINED

# What one reader or another takes for the end of a field or of a line: str.splitlines() ends lines at all but the tab.
_BREAKS = r"[\t\n\v\f\r\x1c\x1d\x1e\x{85}\x{2028}\x{2029}]"
PASSAGES_PER_FILE = 500_000  # Pyserini's indexer gives each of its threads a file
_ENCODER = msgspec.json.Encoder()


class Output:
    """The files of one export, on their way.

    Attributes:
        rows: rows of each file written, by its name below the folder.
        changed: of each TSV file in which tabs and line ends had to be replaced, the number of such texts.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: dict[str, int] = {}
        self.changed: dict[str, int] = {}

    def write(self, name: str, blocks: Iterable[tuple[int, bytes]], head: bytes = b"") -> None:
        """Write one file from blocks of (rows, bytes)."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows[name] = 0
        with open(path, "wb") as file, progress(unit="row", label=name) as bar:
            file.write(head)
            for rows, block in blocks:
                file.write(block)
                self.rows[name] += rows
                bar.update(rows)

    def texts(self, name: str, batches: Iterable[tuple[pa.Array, pa.Array]]) -> None:
        """Write (ids, texts) as a TSV file of two columns."""

        def blocks() -> Iterator[tuple[int, bytes]]:
            for ids, texts in batches:
                _check_ids(ids, name)
                broken = pc.sum(pc.match_substring_regex(texts, _BREAKS)).as_py()
                if broken:
                    self.changed[name] = self.changed.get(name, 0) + broken
                    texts = pc.replace_substring_regex(texts, _BREAKS, " ")
                yield _lines(pc.binary_join_element_wise(ids, texts, "\t"))

        self.write(name, blocks())

    def qrels(self, name: str, batches: Iterable[pa.RecordBatch], columns: list[str], gap: str, head: str = "") -> None:
        """Write judgments; ``columns`` are names of qrels columns, or a text that stands in every line."""

        def blocks() -> Iterator[tuple[int, bytes]]:
            for batch in batches:
                _check_ids(batch["query-id"], name)
                _check_ids(batch["corpus-id"], name)
                parts = [
                    batch[column].cast(pa.string()) if column in batch.schema.names else pa.scalar(column)
                    for column in columns
                ]
                yield _lines(pc.binary_join_element_wise(*parts, gap))

        self.write(name, blocks(), head.encode())


def beir(data: ReleaseSet, output: Output) -> None:
    output.write("corpus.jsonl", _json(batch.to_pylist() for batch in data.corpus()))

    def queries() -> Iterator[list[dict[str, Any]]]:
        seen: set[str] = set()
        for split in data.query_splits():
            for batch in data.queries(split):
                # A question of two splits is one query.
                rows = {row["_id"]: row for row in batch.to_pylist() if row["_id"] not in seen}
                seen.update(rows)
                yield list(rows.values())

    output.write("queries.jsonl", _json(queries()))
    columns = ["query-id", "corpus-id", "score"]
    for split in data.qrels_splits():
        output.qrels(f"qrels/{split}.tsv", data.qrels(split), columns, "\t", "\t".join(columns) + "\n")


def trec(data: ReleaseSet, output: Output) -> None:
    def documents(ids: pa.Array, texts: pa.Array) -> list[dict[str, Any]]:
        return pa.table({"id": ids, "contents": texts}).to_pylist()  # type: ignore[no-any-return]

    width = len(str(max(0, data.passages - 1) // PASSAGES_PER_FILE).rjust(2))
    for number, batches in enumerate(_files(_contents(data), PASSAGES_PER_FILE)):
        name = f"corpus/docs-{number:0{width}d}.jsonl"
        output.write(name, _json(documents(ids, texts) for ids, texts in batches))
    for split in data.query_splits():
        output.texts(f"topics.{split}.tsv", _queries(data, split))
    for split in data.qrels_splits():
        output.qrels(f"qrels.{split}.txt", data.qrels(split), ["query-id", "0", "corpus-id", "score"], " ")
    if data.configs is SETS["main"]:
        for entry in data.release.manifest["files"]:
            if entry["path"].startswith("runs/"):  # TREC runs already
                output.write(entry["path"], _blocks(data.release.path / entry["path"]))


def msmarco(data: ReleaseSet, output: Output) -> None:
    output.texts("collection.tsv", _contents(data))
    for split in data.query_splits():
        output.texts(f"queries.{split}.tsv", _queries(data, split))
    for split in data.qrels_splits():
        output.qrels(f"qrels.{split}.tsv", data.qrels(split), ["query-id", "0", "corpus-id", "score"], "\t")


def tevatron(data: ReleaseSet, output: Output) -> None:
    output.write("corpus.jsonl", _json(b.rename_columns(["docid", "title", "text"]).to_pylist() for b in data.corpus()))
    for split in data.query_splits():
        output.write(f"{split}.jsonl", _json(batch.select(JOINED.names).to_pylist() for batch in data.joined(split)))


FORMATS: dict[str, Callable[[ReleaseSet, Output], None]] = {
    "beir": beir,
    "trec": trec,
    "msmarco": msmarco,
    "tevatron": tevatron,
}


def _contents(data: ReleaseSet) -> Iterator[tuple[pa.Array, pa.Array]]:
    """(ids, texts) of the corpus for a layout without titles: a title, where there is one, opens the text."""
    for batch in data.corpus():
        titled = pc.binary_join_element_wise(batch["title"], batch["text"], " ")
        yield batch["_id"], pc.if_else(pc.equal(batch["title"], ""), batch["text"], titled)


def _queries(data: ReleaseSet, split: str) -> Iterator[tuple[pa.Array, pa.Array]]:
    return ((batch["_id"], batch["text"]) for batch in data.queries(split))


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


def _json(batches: Iterable[list[dict[str, Any]]]) -> Iterator[tuple[int, bytes]]:
    for rows in batches:
        block = _ENCODER.encode_lines(rows)
        # Line ends to str.splitlines() that JSON allows within a string: escaped, every reader of lines agrees.
        for mark in ("\x85", "\u2028", "\u2029"):
            block = block.replace(mark.encode(), f"\\u{ord(mark):04x}".encode())
        yield len(rows), block


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            yield block.count(b"\n"), block


def _lines(column: pa.Array) -> tuple[int, bytes]:
    return len(column), "".join(f"{line}\n" for line in column.to_pylist()).encode()


def _check_ids(ids: pa.Array, name: str) -> None:
    """Columns are told apart by blanks: an id must not hold one, nor be empty."""
    bad = pc.invert(pc.match_substring_regex(ids, r"^[^\s\v\x1c-\x1f\x{85}\p{Z}]+$"))
    if pc.any(bad).as_py():
        found = ids.filter(bad)[0].as_py()
        raise InputError(f"the id {found!r} is empty or holds blanks; expected ids without", path=name)
