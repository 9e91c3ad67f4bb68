"""A set as configs of a release: alone, or added to a copy of a release."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from builders.collection.merge import ORDER, Collection, Queries, draw_test_questions
from builders.common.command import progress
from builders.sources.files import Source
from builders.store.draft import Draft, describe_files, draft_release
from builders.store.layout import CORPUS, QRELS, QUERIES, text_id
from builders.store.reader import Release, open_release
from builders.store.table3 import LengthCounter, table3_column, table3_text

_BATCH = 4_096


def write_release(
    collection: Collection, args: argparse.Namespace, sources: Sequence[Source], options: dict[str, Any]
) -> dict[str, Any]:
    """Write the release ``args.out`` and print the set's figures; returns its part of ``stats.json``.

    ``options`` are the set's own; the shared ones (test size, seed, encoding) join them in the manifest.
    """
    base = open_base(args.release, collection.name) if args.release else None
    if args.test_size is not None:
        draw_test_questions(collection, args.test_size, args.seed)
    description = {
        "verb": collection.name,
        "options": options | {"test_size": args.test_size, "seed": args.seed, "encoding": args.encoding},
        "sources": described(sources),
    }
    with draft_release(args.out, description, base) as draft:
        rows = write(collection, draft)
    result: dict[str, Any] = draft.stats[collection.name]
    corpus = {f"{collection.name}-corpus": draft.stats["collections"][f"{collection.name}-corpus"]}
    if args.format == "json":
        print(json.dumps(result | {"collections": corpus}, ensure_ascii=False, indent=1))
    else:
        print(table3_text({"table3": rows, "collections": corpus}))
        print(f"release: {args.out}")
    return result


def described(sources: Iterable[Source]) -> list[dict[str, Any]]:
    """The files of the sources as the manifest lists them; an archive once, whatever of it was read."""
    return describe_files((source.name.split("!")[0], source.path) for source in sources)


def open_base(path: Path, verb: str) -> Release:
    """The release to extend, as if ``verb`` had not been run on it: its build is replaced, not listed twice."""
    base = open_release(path)
    builds = [build for build in base.manifest.builds if build.verb != verb]
    return dataclasses.replace(base, manifest=msgspec.structs.replace(base.manifest, builds=builds))


def write(collection: Collection, draft: Draft) -> dict[str, dict[str, Any]]:
    """Put the set into ``draft``, in the place of an earlier one; returns its columns of Table 3, by split."""
    name = collection.name
    prefix = "" if name == "main" else f"{name}-"
    for config in ("corpus", "queries", "qrels"):
        draft.drop(f"{prefix}{config}")
    draft.stats["collections"][f"{prefix}corpus"] = _write_corpus(collection, draft, f"{prefix}corpus")
    columns = {
        split: _write_split(collection.passages, queries, draft, prefix, split)
        for split, queries in sorted(collection.queries.items(), key=lambda item: ORDER.index(item[0]), reverse=True)
        if queries
    }
    draft.stats["table3"].pop(name, None)
    if name == "main":
        draft.stats["table3"] |= columns
    elif "test" in columns:
        draft.stats["table3"][name] = columns["test"]
    draft.stats[name] = {"read": collection.read, "table3": columns}
    return columns


def _write_corpus(collection: Collection, draft: Draft, config: str) -> dict[str, Any]:
    """Write the passages; returns what ``stats.json`` says of their lengths."""
    lengths, corpus = LengthCounter(), draft.writer(config, "corpus")
    for batch in _batches(progress(collection.passages.items(), unit="passage", label=collection.name)):
        ids, texts = zip(*batch, strict=True)
        lengths.add(np.fromiter(map(len, texts), np.int64))
        corpus.write(pa.table([pa.array(ids), pa.array([""] * len(ids)), pa.array(texts)], schema=CORPUS))
    return lengths.summary()


def _batches(items: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    iterator = iter(items)
    while batch := list(islice(iterator, _BATCH)):
        yield batch


def _write_split(passages: dict[str, str], queries: Queries, draft: Draft, prefix: str, split: str) -> dict[str, Any]:
    """Write the queries and judgments of one split; returns its column of Table 3."""
    ids = [text_id(text) for text in queries]
    draft.write(f"{prefix}queries", split, [pa.table([pa.array(ids), pa.array(list(queries))], schema=QUERIES)])
    positives = [positive for found in queries.values() for positive in found]
    asked = [query for query, found in zip(ids, queries.values(), strict=True) for _ in found]
    qrels = pa.table([pa.array(asked), pa.array(positives), pa.array([1] * len(positives))], schema=QRELS)
    draft.write(f"{prefix}qrels", split, [qrels])
    chars = LengthCounter()
    chars.add(np.array([len(passages[positive]) for positive in positives], np.int64))
    return table3_column(len(queries), sum(map(len, queries)), len(positives), chars)
