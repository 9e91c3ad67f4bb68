"""Mined negatives among the rows of an export: from files that ``baselines mine`` wrote, by the passages' ids."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from builders.core.errors import InputError
from builders.core.files import temporary_folder
from builders.export.sets import ReleaseSet
from builders.store.layout import JOINED
from builders.store.negatives import read_negative_ids

_MEMORY = 512  # MB

# The mined passages of each query with their texts, in the order of the files.
_FIND = """
CREATE TEMP TABLE found AS
SELECT query, list({'docid': c._id, 'title': title, 'text': c.text} ORDER BY line) AS mined
FROM ids JOIN read_parquet($corpus) AS c ON c._id = ids.docid GROUP BY query
"""
_OF = "SELECT query, mined FROM found WHERE query IN (SELECT unnest($queries))"


@contextlib.contextmanager
def joined_with(data: ReleaseSet, paths: Sequence[Path]) -> Iterator[Callable[[str], Iterator[pa.RecordBatch]]]:
    """The joined rows by split, for the block; the mined negatives before a row's own, each once, no positive.

    Raises :class:`InputError` for a file that is none of `mine`'s, for a passage that the collection lacks, and where
    no query is one of the set's.
    """
    if not paths:
        yield data.joined
        return
    from builders.core.database import database

    ids = _ids(data, paths)
    with (
        temporary_folder() as spill,
        database(spill, _MEMORY) as con,
        data.release.files(data.configs.corpus, "corpus") as corpus,
    ):
        con.register("ids", ids)
        con.execute(_FIND, {"corpus": corpus})

        def joined(split: str) -> Iterator[pa.RecordBatch]:
            for batch in data.joined(split):
                mined = dict(con.execute(_OF, {"queries": batch["query_id"].to_pylist()}).fetchall())
                rows = batch.select(JOINED.names).to_pylist()
                for row in rows:
                    row["negative_passages"] = _merged(row, mined.get(row["query_id"], []))
                yield pa.RecordBatch.from_pylist(rows, JOINED)

        yield joined


def _merged(row: dict[str, Any], mined: list[dict[str, str]]) -> list[dict[str, str]]:
    positive = {passage["docid"] for passage in row["positive_passages"]}
    every = {passage["docid"]: passage for passage in [*mined, *row["negative_passages"]]}
    return [passage for docid, passage in every.items() if docid not in positive]


def _ids(data: ReleaseSet, paths: Sequence[Path]) -> pa.Table:
    """A row a query and a passage that the files name for it, in their order; checked against the release."""
    found: dict[str, dict[str, None]] = {}
    named: dict[str, tuple[Path, int]] = {}  # where a passage comes first
    for path in paths:
        for query, ids, line in read_negative_ids(path):
            found.setdefault(query, {}).update(dict.fromkeys(ids))
            for docid in ids:
                named.setdefault(docid, (path, line))
    if missing := {*data.release.missing(data.configs.corpus, "corpus", named)}:
        docid, (path, line) = next((docid, place) for docid, place in named.items() if docid in missing)
        lacking = f"{data.configs.corpus!r} of {data.release.path}"
        raise InputError(f"has {len(missing):,} passages that {lacking} lacks, such as {docid}", path=path, line=line)
    known = {query for split in data.query_splits() for ids, _ in data.query_texts(split) for query in ids.to_pylist()}
    if known.isdisjoint(found):
        raise InputError(f"has no query that {data.release.path} has", path=paths[0])
    pairs = [(query, docid) for query, ids in found.items() for docid in ids]
    columns = [pa.array([pair[n] for pair in pairs], pa.string()) for n in (0, 1)]
    return pa.table([*columns, pa.array(range(len(pairs)), pa.int64())], ["query", "docid", "line"])
