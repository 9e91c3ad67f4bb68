"""A measure's value of every query, out of the table that :func:`baselines.runs.evaluate.evaluate` returns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as types

from baselines.runs.measures import LIST_DEPTH
from builders.core.errors import InputError


def values_of(by_query: pa.Table, measure: str) -> npt.NDArray[np.float64]:
    """One value a query, as fractions, in the table's order.

    ``measure`` is an official key (MRR@10, recall@1, recall@50; the mean of the values is the official value) or a
    column of the table. Raises :class:`InputError` for another name, and where a query has no value.
    """
    if measure not in (known := measured(by_query)):
        raise InputError(f"no measure {measure!r} of single queries; expected one of {', '.join(known)}")
    if empty := known[measure].null_count:
        raise InputError(f"{measure}: {empty} of {len(by_query)} queries have no value")
    return np.asarray(known[measure].to_numpy(), np.float64)


def measured(by_query: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Every measure of the table by its name: the official keys, then its columns."""
    ranks = by_query["first_positive_rank"].fill_null(LIST_DEPTH + 1)  # found nowhere
    official = {"MRR@10": by_query["RR@10"], "recall@1": _within(ranks, 1), "recall@50": _within(ranks, LIST_DEPTH)}
    return official | {field.name: by_query[field.name] for field in by_query.schema if types.is_floating(field.type)}


def _within(ranks: pa.ChunkedArray, depth: int) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    return pc.less_equal(ranks, depth).cast(pa.int8()).cast(pa.float64())
