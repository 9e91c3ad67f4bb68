"""A release as the official files, in the layouts of both official releases.

A release that ``builders official`` made gives back the files that it was made from, byte for byte, whatever part of
the archives was there; each file's SHA-256 is held against the one that was read. Any other release is written as the
original release's files: ``train.json``, ``dev.json``, ``test1.json``, ``passage_collection.json``.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from json.encoder import encode_basestring, encode_basestring_ascii  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

from builders.common.command import InputError, log
from builders.common.files import new_file, sha256_of
from builders.official.layout import LAYOUT, copy_document
from builders.official.rows import OfficialRows
from builders.official.style import DEFAULT, dumps
from builders.store.reader import Release

_ROOT = "dureader_retrieval-data"
_ORDER = ["question_id", "question", "answer_paragraphs", "paragraph_id", "paragraph_text"]


def export_official(release: Release, out: Path) -> list[dict[str, Any]]:
    """Write the official files of ``release`` under the folder ``out``.

    Returns:
        For every file its ``name``, ``rows``, and ``equal``: whether it is, byte for byte, the file that the release
        was made from (None where there was none).

    Raises:
        InputError: for a release whose files are damaged.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    entries = _layout(release)
    written = []
    with tempfile.TemporaryDirectory(prefix=".export.", dir=out) as work:
        source = OfficialRows(release, Path(work))
        for entry in entries:
            target = out / entry["name"]
            if os.path.isabs(entry["name"]) or ".." in Path(entry["name"]).parts:
                raise InputError(f"names the file {entry['name']!r} outside of the export", path=release.path / LAYOUT)
            with new_file(target) as beside:
                if entry["role"] == "document":
                    copy_document(release.path, entry, beside)
                else:
                    with open(beside, "wb") as file:
                        file.writelines(part.encode() for part in _WRITERS[entry["role"]](source, entry))
            equal = sha256_of(target) == entry["sha256"] if "sha256" in entry else None
            if equal is False:
                log.warning("%s is not the file that was read, byte for byte", entry["name"])
            written.append({"name": entry["name"], "rows": entry.get("rows"), "equal": equal})
        source.close()
    return written


def _layout(release: Release) -> list[dict[str, Any]]:
    path = release.path / LAYOUT
    if path.is_file():
        try:
            return json.loads(path.read_text(encoding="utf-8"))["files"]  # type: ignore[no-any-return]
        except (ValueError, KeyError, TypeError):
            raise InputError("is damaged; build the release again", path=path) from None
    style = DEFAULT | {"order": _ORDER}
    entries = []
    for config, split in release.splits():
        name = {"corpus": "passage_collection", "train": "train", "dev": "dev", "test": "test1"}.get(config)
        if name:
            role = "passages" if config == "corpus" else config
            rows = release.rows(config, split)
            entries.append({"name": f"{_ROOT}/{name}.json", "role": role, "rows": rows, "start": 0, "style": style})
    return entries


def _end(entry: dict[str, Any]) -> str:
    return "" if entry.get("unended") else "\n"


def _lines(lines: Iterator[str], entry: dict[str, Any]) -> Iterator[str]:
    """Lines in portions; the last one ends as the file's did."""
    last = None
    while portion := list(itertools.islice(lines, 1_024)):
        if last is not None:
            yield last + "\n"
        last = "\n".join(portion)
    if last is not None:
        yield last + _end(entry)


def _style(entry: dict[str, Any]) -> dict[str, Any]:
    return entry.get("style") or DEFAULT | {"order": _ORDER}


def _write_passages(source: OfficialRows, entry: dict[str, Any]) -> Iterator[str]:
    style = _style(entry)
    order = [name for name in style.get("order", _ORDER) if name.startswith("paragraph_")] or _ORDER[3:]
    quoted = encode_basestring_ascii if style["ascii"] else encode_basestring
    if style["indent"] is None:
        first = "paragraph_id" if order[0] == "paragraph_id" else "paragraph_text"
        second = "paragraph_text" if first == "paragraph_id" else "paragraph_id"
        opening, middle = f'{{"{first}"{style["key"]}', f'{style["item"]}"{second}"{style["key"]}'
        if first == "paragraph_id":
            rows = (f'{opening}"{key}"{middle}{quoted(text)}}}' for key, text in source.passages(entry))
        else:
            rows = (f'{opening}{quoted(text)}{middle}"{key}"}}' for key, text in source.passages(entry))
    else:
        pairs = source.passages(entry)
        rows = (dumps(_ordered(order, paragraph_id=key, paragraph_text=text), style) for key, text in pairs)
    if "head" not in style:
        yield from _lines(rows, entry)
        return
    gap = style["head"]
    for row in rows:
        yield gap + row
        gap = style["gap"]
    yield style["tail"]


def _ordered(order: list[str], **values: Any) -> dict[str, Any]:
    return {name: values[name] for name in order if name in values}


def _write_questions(source: OfficialRows, entry: dict[str, Any]) -> Iterator[str]:
    style = _style(entry)
    order = style.get("order", _ORDER)

    def rows() -> Iterator[str]:
        for row in source.questions(entry):
            values = {"question_id": row["query_id"], "question": row["query"]}
            if entry["role"] != "test":
                values["answer_paragraphs"] = [
                    _ordered(order, paragraph_id=passage["docid"], paragraph_text=passage["text"])
                    for passage in row["positive_passages"]
                ]
            yield dumps(_ordered(order, **values), style)

    return _lines(rows(), entry)


def _write_part(source: OfficialRows, entry: dict[str, Any]) -> Iterator[str]:
    one, two, three = entry["nothing"]
    return _lines((f"{one}\t{two}\t{text}\t{three}" for _, text in source.passages(entry)), entry)


def _write_map(source: OfficialRows, entry: dict[str, Any]) -> Iterator[str]:
    style = entry["style"]
    lead = style["head"]
    for number, key in enumerate(source.ids(entry)):
        yield f'{lead}"{number}"{style["key"]}"{key}"'
        lead = style["item"]
    yield style["tail"]


def _write_ids(source: OfficialRows, entry: dict[str, Any]) -> Iterator[str]:
    columns = source.columns(entry)
    assert columns is not None
    texts = source.texts(columns["query"].to_numpy())
    pairs = {text: key.hex() for text, key in zip(texts, columns["id"].to_pylist(), strict=True)}
    style = entry.get("style") or DEFAULT | {"tail": "\n"}
    yield dumps(pairs, style) + style["tail"]


def _write_id_pairs(source: OfficialRows, entry: dict[str, Any]) -> Iterator[str]:
    columns = source.columns(entry)
    assert columns is not None
    queries, passages = (columns[name].to_pylist() for name in ("query", "passage"))
    return _lines((f"{q.hex()}\t{p.hex()}" for q, p in zip(queries, passages, strict=True)), entry)


def _write_tsv(source: OfficialRows, entry: dict[str, Any]) -> Iterator[str]:
    columns = source.columns(entry)
    assert columns is not None
    names = [name for name in ("query", "positive", "passage", "negative") if name in columns.column_names]
    nothing = entry["nothing"]

    def rows() -> Iterator[str]:
        for batch in columns.to_batches(max_chunksize=2_048):
            texts = [source.texts(batch[name].to_numpy()) for name in names]
            labels = batch["label"].to_pylist() if "label" in columns.column_names else None
            for place, row in enumerate(zip(*texts, strict=True)):
                if entry["role"] == "queries":
                    yield "\t".join([row[0], *nothing])
                elif labels is not None:
                    yield f"{row[0]}\t{nothing[0]}\t{row[1]}\t{labels[place]}"
                else:  # text, nothing, text, nothing ...
                    yield "\t".join(itertools.chain.from_iterable(zip(row, nothing, strict=True)))

    return _lines(rows(), entry)


_WRITERS: dict[str, Callable[[OfficialRows, dict[str, Any]], Iterator[str]]] = {
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
