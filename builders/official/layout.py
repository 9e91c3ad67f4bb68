"""What a release keeps of the official files besides its configs, so that they come out again byte for byte.

``official/layout.json`` lists the files: name, role, rows, bytes, SHA-256, how its JSON is written, where its rows
begin. Columns that the configs do not hold (which negative stood beside which positive) lie in ``official/NNN.arrow``,
as numbers of texts in ``official/texts.arrow``; a text itself is there only if no config holds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from builders.common.command import InputError
from builders.common.files import write_text
from builders.common.names import name_within
from builders.common.typed import Count, Sha256, read_json
from builders.official.formats import TSV, meaning_of, nothing_of, role_of
from builders.official.numbered import Numbers, id_column
from builders.official.questions import Split
from builders.official.style import check_style
from builders.official.work import OfficialFile, Work
from builders.store.draft import Draft
from builders.store.reader import Release

FOLDER = "official"
LAYOUT = f"{FOLDER}/layout.json"
TEXTS = f"{FOLDER}/texts.arrow"
_NUMBER, _ID = pa.int32(), pa.binary(16)
TEXTS_SCHEMA = pa.schema([("md5", _ID), ("text", pa.string())])  # no text where a config has it
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")
_ROWS = 65_536
_TEXT_ROWS = 4_096
_COPIES = 64 << 20  # a readme or a licence is copied; nothing larger is one


class Entry(msgspec.Struct):
    """A file of ``layout.json``.

    Attributes:
        rows, start: its rows, and the row of the release where they begin, unless ``columns`` have them in an order.
        style: how its JSON is written, see :mod:`.style`.
        nothing: what the columns of a TSV hold that mean nothing.
        unended: its last line has no line end.
        skipped: how many bad lines were left out of it.
        columns, copy: the file of its columns, the copy of a document: names inside the release.
    """

    name: str
    role: str
    rows: Count = 0
    start: Count = 0
    sha256: Sha256 | None = None
    style: dict[str, Any] | None = None
    nothing: list[str] = []
    unended: bool = False
    skipped: Count = 0
    columns: str | None = None
    copy: str | None = None

    def __post_init__(self) -> None:
        for name in (self.name, self.columns, self.copy):
            if name is not None:
                name_within(name)
        if role_of(self.name) != self.role:
            raise ValueError(f"expected the role {role_of(self.name)} of {self.name}, found {self.role}")
        unused = nothing_of(self.role, [b""] * len(TSV[self.role])) if self.role in TSV else []
        if len(self.nothing) != len(unused):
            raise ValueError(f"expected {len(unused)} texts in nothing, found {len(self.nothing)}")
        check_style(self.role, self.style)
        if self.columns is None and "row" not in columns_of(self.role).names and self.role not in ("map", "document"):
            raise ValueError("lacks columns")
        if self.copy is None and self.role == "document":
            raise ValueError("lacks copy")


def columns_of(role: str) -> pa.Schema:
    """What the file of columns holds of an official file, where there is one: numbers of texts or rows, labels, ids."""
    if role in TSV and role != "part":
        return pa.schema([(name, pa.int8() if name == "label" else _NUMBER) for name in meaning_of(role)])
    of_ids = {"map": [("id", _ID)], "ids": [("query", _NUMBER), ("id", _ID)]}
    of_ids["top50ids"] = [("query", _ID), ("passage", _ID)]
    return pa.schema(of_ids.get(role, [("row", _NUMBER)]))


class _Layout(msgspec.Struct):
    files: list[Entry]


def read_layout(release: Release) -> list[Entry] | None:
    """The official files of a release; None where it keeps none: it was not made from official files."""
    if LAYOUT not in {entry.path for entry in release.manifest.files}:
        return None
    return read_json(release.named(LAYOUT), _Layout, "build the release again").files


def read_columns(release: Release, name: str, expected: pa.Schema) -> pa.Table:
    """A file of columns of a release."""
    path = release.named(name)
    try:
        with pa.OSFile(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
            table.validate(full=True)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"is damaged ({error}); build the release again", path=path) from None
    if table.schema != expected or any(table[name].null_count for name in expected.names if name != "text"):
        columns = ", ".join(f"{field.name} ({field.type})" for field in expected)
        raise InputError(f"expected the columns {columns} without nulls; build the release again", path=path)
    return table


def write_layout(work: Work, files: list[OfficialFile], splits: Iterable[Split]) -> None:
    """Add the layout, the columns and the documents to the draft."""
    draft = work.draft
    (draft.folder / FOLDER).mkdir()
    rows_of = _write_texts(work, files, splits)
    entries = []
    for number, file in enumerate(files):
        entry = {"name": file.name, "role": file.role, **file.layout}
        columns = {name: pa.array(rows_of[texts]) for name, texts in file.texts.items()} | file.columns
        if file.rows:
            entry["start"], order = file.order()
            if order is not None:
                columns["row"] = pa.array(order)
        if columns:
            entry["columns"] = f"{FOLDER}/{number:03d}.arrow"
            table = pa.table(columns)
            _write_columns(draft, entry["columns"], table.schema, table.to_batches(max_chunksize=_ROWS))
        if file.role == "document":
            entry["copy"] = f"{FOLDER}/{number:03d}.bin"
            _copy(draft, file, entry["copy"])
        entries.append(entry)
    write_text(draft.folder / LAYOUT, json.dumps({"files": entries}, ensure_ascii=False, indent=1) + "\n")
    draft.add_file(LAYOUT)


def _write_columns(draft: Draft, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    with pa.OSFile(str(draft.folder / name), "wb") as sink, pa.ipc.new_file(sink, schema, options=_COMPRESSED) as out:
        for batch in batches:
            out.write_batch(batch)
    draft.add_file(name)


def _copy(draft: Draft, file: OfficialFile, name: str) -> None:
    if file.member.size > _COPIES:
        raise InputError("is too large for a readme or a licence", path=file.member.shown)
    (draft.folder / name).write_bytes(file.member.read())
    draft.add_file(name)


def _write_texts(work: Work, files: list[OfficialFile], splits: Iterable[Split]) -> Numbers:
    """Write the texts that the files' columns speak of; returns the row there of each of :attr:`Work.texts`."""
    every = np.concatenate([np.empty(0, np.int32), *(texts for file in files for texts in file.texts.values())])
    # Numbered anew, as they come in the files: the numbers so far depend on where blocks were cut.
    values, first = np.unique(every, return_index=True)
    chosen = values[np.argsort(first)]
    rows_of = np.full(len(work.texts), -1, np.int32)
    rows_of[chosen] = np.arange(len(chosen), dtype=np.int32)
    if len(chosen):
        _write_columns(work.draft, TEXTS, TEXTS_SCHEMA, _text_rows(work, chosen, _in_configs(work, splits)))
    return rows_of


def _in_configs(work: Work, splits: Iterable[Split]) -> npt.NDArray[np.bool_]:
    """Which texts a config of the release holds, by number."""
    digests = work.texts.digests()
    held = work.passages.has(work.passages.ids_of(digests))
    for question in (question for split in splits for question in split.questions):
        held[[question.text, *(positive.text for positive in question.positives), *question.negatives]] = True
    return held


def _text_rows(work: Work, chosen: Numbers, held: npt.NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
    digests = work.texts.digests()
    for start in range(0, len(chosen), _TEXT_ROWS):
        numbers = chosen[start : start + _TEXT_ROWS]
        texts = iter(work.texts.get(numbers[~held[numbers]]))
        kept = [None if elsewhere else next(texts) for elsewhere in held[numbers].tolist()]
        yield pa.record_batch([id_column(digests[numbers]), pa.array(kept, pa.string())], schema=TEXTS_SCHEMA)
