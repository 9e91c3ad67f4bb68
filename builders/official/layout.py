"""What a release keeps of the official files besides its configs, so that they come out again byte for byte.

``official/layout.json`` lists the files: name, role, rows, bytes, SHA-256, how its JSON is written, where its rows
begin. Columns that the configs do not hold (which negative stood beside which positive) lie in ``official/NNN.arrow``,
as numbers of texts in ``official/texts.arrow``; a text itself is there only if no config holds it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from builders.common.command import InputError
from builders.common.files import write_text
from builders.official.corpus import Corpus, File
from builders.official.queries import Split
from builders.official.text_pool import TextPool
from builders.store.draft import Draft

FOLDER = "official"
LAYOUT = f"{FOLDER}/layout.json"
TEXTS = f"{FOLDER}/texts.arrow"
_IPC = pa.ipc.IpcWriteOptions(compression="zstd")
_ROWS = 65_536
_COPIES = 64 << 20  # a readme or a licence is copied; nothing larger is one


def write_layout(draft: Draft, files: list[File], splits: Iterable[Split], pool: TextPool, corpus: Corpus) -> None:
    """Add the layout and its columns to a draft."""
    (draft.folder / FOLDER).mkdir()
    numbers = _write_texts(draft, files, splits, pool, corpus)
    entries = []
    for place, file in enumerate(files):
        entry = {"name": file.name, "role": file.role, **file.layout}
        start, order = file.order()
        columns = {
            name: pa.array(numbers[column]) if name in ("query", "positive", "negative", "passage") else column
            for name, column in file.columns.items()
            if not isinstance(column, pa.Array)
        } | {name: column for name, column in file.columns.items() if isinstance(column, pa.Array)}
        if file.numbers:
            entry["start"] = start
            if order is not None:
                columns["row"] = pa.array(order)
        if columns:
            entry["columns"] = f"{FOLDER}/{place:03d}.arrow"
            table = pa.table({name: pa.array(c) if isinstance(c, np.ndarray) else c for name, c in columns.items()})
            _write(draft, entry["columns"], table.schema, table.to_batches(max_chunksize=_ROWS))
        if file.role == "document":
            if file.member.size > _COPIES:
                raise InputError("is too large for a readme or a licence", path=file.member.shown)
            entry["copy"] = f"{FOLDER}/{place:03d}.bin"
            (draft.folder / entry["copy"]).write_bytes(file.member.read())
            draft.add_file(entry["copy"])
        entries.append(entry)
    write_text(draft.folder / LAYOUT, json.dumps({"files": entries}, ensure_ascii=False, indent=1) + "\n")
    draft.add_file(LAYOUT)


def _write(draft: Draft, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    with pa.OSFile(str(draft.folder / name), "wb") as sink, pa.ipc.new_file(sink, schema, options=_IPC) as writer:
        for batch in batches:
            writer.write_batch(batch)
    draft.add_file(name)


def _write_texts(
    draft: Draft, files: list[File], splits: Iterable[Split], pool: TextPool, corpus: Corpus
) -> np.ndarray[Any, Any]:
    """The texts that the columns speak of; returns each pool number's row there."""
    columns = [
        column for file in files for column in file.columns.values() if getattr(column, "dtype", None) == np.int32
    ]
    every = np.concatenate([np.empty(0, np.int32), *columns])
    # Numbered anew, as they come in the files: the pool's numbers depend on where blocks were cut.
    values, first = np.unique(every, return_index=True)
    chosen = values[np.argsort(first)]
    rows = np.full(len(pool), -1, np.int32)
    rows[chosen] = np.arange(len(chosen), dtype=np.int32)
    if not len(chosen):
        return rows
    elsewhere = np.zeros(len(pool), np.bool_)
    for split in splits:
        elsewhere[split.texts] = True
        for held in split.positives:
            elsewhere[[text for _, text in held]] = True
        for negatives in split.negatives:
            elsewhere[negatives] = True
    digests = pool.keys()
    if corpus.present:
        elsewhere |= corpus.ids.find(corpus.id_of(digests)) >= 0
    schema = pa.schema([("md5", pa.binary(16)), ("text", pa.string())])

    def batches() -> Iterator[pa.RecordBatch]:
        for low in range(0, len(chosen), _ROWS // 16):
            part = chosen[low : low + _ROWS // 16]
            texts = iter(pool.get(part[~elsewhere[part]]))
            kept = [None if held else next(texts) for held in elsewhere[part].tolist()]
            md5 = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(16), len(part), [None, pa.py_buffer(np.ascontiguousarray(digests[part]))]
            )
            yield pa.record_batch([md5, pa.array(kept, pa.string())], schema=schema)

    _write(draft, TEXTS, schema, batches())
    return rows


def read_columns(folder: Path, name: str) -> pa.Table:
    """A file of columns of the release in ``folder``."""
    try:
        with pa.OSFile(str(folder / name)) as source:
            return pa.ipc.open_file(source).read_all()
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"is missing or damaged ({error}); build the release again", path=folder / name) from None


def copy_document(folder: Path, entry: dict[str, Any], target: Path) -> None:
    shutil.copyfile(folder / entry["copy"], target)
