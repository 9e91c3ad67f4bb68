"""A release as the official files, in the layouts of both official releases.

A release that ``builders official`` made gives back the files that it was made from, byte for byte, whatever part of
the archives was there; each file's SHA-256 is held against the one that was read. Any other release is written as the
original release's files: ``train.json``, ``dev.json``, ``test1.json``, ``passage_collection.json``.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders.common.command import log
from builders.common.files import new_file, sha256_of
from builders.official.formats import TSV
from builders.official.layout import Entry, read_layout
from builders.official.rows import OfficialRows
from builders.official.style import DEFAULT, encoder, in_order
from builders.store.reader import Release

_ROOT = "dureader_retrieval-data"
_LINES = 1_024


@dataclass(frozen=True)
class Written:
    """An official file that was written.

    ``rows``: None for a document. ``equal``: whether it is the file that was read, byte for byte; None where none was.
    """

    name: str
    rows: int | None
    equal: bool | None


def export_official(release: Release, out: Path) -> list[Written]:
    """Write the official files of ``release`` under the folder ``out``.

    Raises :class:`InputError` for a release whose files are damaged.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with tempfile.TemporaryDirectory(prefix=".export.", dir=out) as work:
        source = OfficialRows(release, Path(work))
        for entry in read_layout(release) or original_files(release):
            target = out / entry.name
            with new_file(target) as beside:
                _write_file(source, entry, beside)
            equal = sha256_of(target) == entry.sha256 if entry.sha256 else None
            if entry.skipped:
                log.warning("%s lacks the %d bad lines that were skipped when it was read", entry.name, entry.skipped)
            elif equal is False:
                log.warning("%s is not the file that was read, byte for byte", entry.name)
            written.append(Written(entry.name, None if entry.role == "document" else entry.rows, equal))
        source.close()
    return written


def original_files(release: Release) -> list[Entry]:
    """The original release's files, for a release that was not made from official ones."""
    entries = []
    for config, split in release.splits():
        name = {"corpus": "passage_collection", "train": "train", "dev": "dev", "test": "test1"}.get(config)
        if name:
            role = "passages" if config == "corpus" else config
            entries.append(Entry(f"{_ROOT}/{name}.json", role, release.rows(config, split)))
    return entries


def _write_file(source: OfficialRows, entry: Entry, path: Path) -> None:
    if entry.role == "document":
        shutil.copyfile(source.release.named(str(entry.copy)), path)
        return
    with open(path, "wb") as file:
        file.writelines(portion.encode() for portion in _WRITERS[entry.role](source, entry))


# What follows writes one kind of file each, as portions of text.


def _lines(lines: Iterable[str], entry: Entry) -> Iterator[str]:
    """Lines in portions; the last one ends as the file's did."""
    lines = iter(lines)
    before: str | None = None
    while portion := list(itertools.islice(lines, _LINES)):
        if before is not None:
            yield before + "\n"
        before = "\n".join(portion)
    if before is not None:
        yield before + ("" if entry.unended else "\n")


def _write_passages(source: OfficialRows, entry: Entry) -> Iterator[str]:
    style = entry.style or DEFAULT
    encode, keys = encoder(style), in_order(style, ("paragraph_id", "paragraph_text"))
    id_first = keys[0] == "paragraph_id"
    pairs = (pair if id_first else pair[::-1] for pair in source.passages(entry))
    rows = (encode(dict(zip(keys, pair, strict=True))) for pair in pairs)
    return _wrapped(rows, style) if "head" in style else _lines(rows, entry)


def _wrapped(rows: Iterable[str], style: dict[str, Any]) -> Iterator[str]:
    """The rows of ``{"data": [...]}`` with what stands before, between and behind them."""
    before = style["head"]
    for row in rows:
        yield before + row
        before = style["gap"]
    yield style["tail"]


def _write_questions(source: OfficialRows, entry: Entry) -> Iterator[str]:
    style = entry.style or DEFAULT
    encode = encoder(style)
    names = ("question_id", "question") if entry.role == "test" else ("question_id", "question", "answer_paragraphs")
    keys, passage_keys = in_order(style, names), in_order(style, ("paragraph_id", "paragraph_text"))

    def row(question: dict[str, Any]) -> str:
        passages = [
            {"paragraph_id": passage["docid"], "paragraph_text": passage["text"]}
            for passage in question["positive_passages"]
        ]
        values = {
            "question_id": question["query_id"],
            "question": question["query"],
            "answer_paragraphs": [{key: passage[key] for key in passage_keys} for passage in passages],
        }
        return encode({key: values[key] for key in keys})

    return _lines(map(row, source.questions(entry)), entry)


def _write_part(source: OfficialRows, entry: Entry) -> Iterator[str]:
    one, two, three = entry.nothing
    return _lines((f"{one}\t{two}\t{text}\t{three}" for _, text in source.passages(entry)), entry)


def _write_map(source: OfficialRows, entry: Entry) -> Iterator[str]:
    style = entry.style or {}
    before = style["head"]
    for line, key in enumerate(source.ids(entry)):
        yield f'{before}"{line}"{style["key"]}"{key}"'
        before = style["item"]
    yield style["tail"]


def _write_ids(source: OfficialRows, entry: Entry) -> Iterator[str]:
    columns = source.columns(entry)
    texts = source.texts(columns["query"].to_numpy())
    pairs = {text: key.hex() for text, key in zip(texts, columns["id"].to_pylist(), strict=True)}
    style = entry.style or DEFAULT | {"tail": "\n"}
    yield encoder(style)(pairs) + style["tail"]


def _write_id_pairs(source: OfficialRows, entry: Entry) -> Iterator[str]:
    columns = source.columns(entry)
    queries, passages = (columns[name].to_pylist() for name in ("query", "passage"))
    return _lines((f"{q.hex()}\t{p.hex()}" for q, p in zip(queries, passages, strict=True)), entry)


def _write_tsv(source: OfficialRows, entry: Entry) -> Iterator[str]:
    """Each column as :data:`.formats.TSV` names it: a text, a label, or what it held in the first line."""
    columns = source.columns(entry)

    def lines() -> Iterator[str]:
        for batch in columns.to_batches(max_chunksize=_LINES):
            found = {name: source.texts(batch[name].to_numpy()) for name in batch.schema.names if name != "label"}
            if "label" in batch.schema.names:
                found["label"] = [str(label) for label in batch["label"].to_pylist()]
            nothing = iter(entry.nothing)
            fields = [found[name] if name in found else itertools.repeat(next(nothing)) for name in TSV[entry.role]]
            yield from map("\t".join, zip(*fields, strict=False))  # what means nothing is repeated for ever

    return _lines(lines(), entry)


_WRITERS: dict[str, Callable[[OfficialRows, Entry], Iterator[str]]] = {
    "passages": _write_passages,
    "part": _write_part,
    "map": _write_map,
    "train": _write_questions,
    "dev": _write_questions,
    "test": _write_questions,
    "queries": _write_tsv,
    "ids": _write_ids,
    "dual": _write_tsv,
    "cross": _write_tsv,
    "top50": _write_tsv,
    "top50ids": _write_id_pairs,
}
