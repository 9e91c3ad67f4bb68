"""The queries that are resampled, and their vectors: from files or from a model."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.common.command import InputError, log
from builders.extrapolate.embeddings import Block, Blocks, read_embeddings
from builders.extrapolate.model import encode
from builders.extrapolate.similarity import Floats, Ints, fixed_point
from builders.store.draft import describe_files
from builders.store.reader import Release


def judgments_of(qrels: pa.Table, queries: list[str]) -> pa.Table:
    """The rows of ``qrels`` of these queries."""
    return qrels.filter(pc.is_in(qrels["query-id"], pa.array(queries, pa.string())))


def ids(release: Release, split: str) -> list[str]:
    """The ids of a split's queries."""
    found: list[str] = release.table("queries", split, ["_id"])["_id"].to_pylist()
    return found


def texts(release: Release, splits: Iterable[str]) -> list[tuple[str, str]]:
    """(id, text) of the queries of the splits, each id once."""
    found: dict[str, str] = {}
    for split in splits:
        table = release.table("queries", split, ["_id", "text"])
        found.update(zip(table["_id"].to_pylist(), table["text"].to_pylist(), strict=True))
    return list(found.items())


def drawn(ids: Sequence[str], seed: int) -> Ints:
    """The rows of ``ids`` in an order drawn by ``seed``: by a hash of seed and id, the same in every numpy version."""
    keys = [hashlib.sha256(f"{seed}:{query}".encode()).digest() for query in ids]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)


def check_some(release: Release, groups: Mapping[str, Sequence[str]]) -> None:
    """:class:`InputError` where there are no queries in one of the groups, named by where they are from."""
    for name, found in groups.items():
        if not found:
            raise InputError(f"has no queries in {name}; expected some", path=release.path)


def vectors_of(
    release: Release, splits: Sequence[str], groups: Sequence[Sequence[str]], args: argparse.Namespace
) -> tuple[list[Floats], dict[str, Any]]:
    """The vectors of the groups of queries, which are of these splits, and what the manifest says of them."""
    blocks: Blocks
    if args.embeddings:
        blocks = read_embeddings(args.embeddings, args.ids)
        files = [*args.embeddings, *(args.ids or [])]
        found = directions(blocks, groups)
        return found, {"options": {}, "sources": describe_files((path.name, path) for path in files)}
    if args.ids:
        raise InputError("--ids goes with --embeddings, not with --model")
    found = directions(encode(args.model, texts(release, splits), args.batch_size, args.prompt), groups)
    # What a model gives depends on its version and machine: the manifest pins the vectors themselves.
    digest = hashlib.sha256()
    for vectors in found:
        digest.update(vectors.data)
    return found, {
        "options": {"model": args.model, "prompt": args.prompt, "vectors": digest.hexdigest()},
        "sources": [],
    }


def described_build(command: str, options: dict[str, Any], described: dict[str, Any]) -> dict[str, Any]:
    """What the manifest says of a build; ``described``: of its vectors, see :func:`vectors_of`."""
    return {
        "verb": f"extrapolate {command}",
        "options": options | described["options"],
        "sources": described["sources"],
    }


def directions(blocks: Blocks, groups: Sequence[Sequence[str]]) -> list[Floats]:
    """The vectors of the queries of every group, in its order, as rows of ``similarity.fixed_point``.

    Args:
        blocks: the vectors. Those of queries of no group are passed over; where two sources have a query, the first
            counts.
        groups: the ids of each group; an id may be in several.

    Raises:
        InputError: a query without a vector or with two in one source, vectors of different dimensions, or one that is
            not finite or all zero.
    """
    rows: dict[str, int] = {}
    copies: list[tuple[int, int]] = []
    for row, query in enumerate(query for group in groups for query in group):
        if rows.setdefault(query, row) != row:
            copies.append((rows[query], row))
    result: Floats | None = None
    sources: dict[str, int] = {}
    owner = np.zeros(sum(map(len, groups)), np.int32)  # the source of each row's vector, from 1
    other = again = 0
    for block in blocks:
        source = sources.setdefault(block.source, len(sources) + 1)
        if result is None:
            result = np.empty((len(owner), block.vectors.shape[1]), np.float32)
        _check(block, result.shape[1])
        taken, targets = [], []
        for offset, query in enumerate(block.ids):
            target = rows.get(query)
            if target is None:
                other += 1
            elif owner[target] == source:
                raise InputError(f"has query {query!r} twice; expected each once", path=block.source)
            elif owner[target]:
                again += 1
            else:
                owner[target] = source
                taken.append(offset)
                targets.append(target)
        if taken:
            result[targets] = fixed_point(np.asarray(block.vectors)[taken])
    missing = [query for query, row in rows.items() if not owner[row]]
    if missing or result is None:
        example = f", {missing[0]!r} for one" if missing else ""
        found = ", ".join(sources) or "the embeddings"
        raise InputError(f"has no vector for {len(missing):,} of {len(rows):,} queries{example}", path=found)
    for first, row in copies:
        result[row] = result[first]
    if other:
        log.info("%d vectors of other queries passed over", other)
    if again:
        log.warning("%d queries have a vector in more than one source; the first one counts", again)
    ends = np.cumsum([len(group) for group in groups])
    return [result[end - len(group) : end] for group, end in zip(groups, ends, strict=True)]


def _check(block: Block, dimensions: int) -> None:
    """:class:`InputError` naming the row, from 1, where a vector has no direction in ``dimensions`` dimensions."""
    if not dimensions or block.vectors.shape[1] != dimensions:
        raise InputError(
            f"has vectors of {block.vectors.shape[1]} dimensions; expected {dimensions or 'at least 1'}",
            path=block.source,
        )
    for good, problem in (
        (np.isfinite(block.vectors).all(axis=1), "is not finite"),
        (block.vectors.any(axis=1), "is all zeros, which is no direction"),
    ):
        if not good.all():
            row = int(good.argmin())
            raise InputError(
                f"the vector of query {block.ids[row]!r} (row {block.row + row + 1:,}) {problem}", path=block.source
            )


def mean(cosines: npt.NDArray[Any]) -> float | None:
    """The mean cosine as the figures have it; None of none."""
    return round(float(cosines.mean()), 4) if len(cosines) else None
