"""Runs that a call from Python passes as dictionaries or data frames."""

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from builders.core.errors import InputError, shown_value
from builders.core.read_files import is_unicode
from builders.store.run_formats import PASSAGE_COLUMNS, QUERY_COLUMNS
from builders.store.runs import Hit, Run, warn_of_contradictions

_EXPECTED = (
    "expected query id -> passage id -> score, query id -> list of passage ids or of (passage id, score), or a data "
    f"frame with the columns {QUERY_COLUMNS[0]}, {PASSAGE_COLUMNS[0]} and score"
)
_NAME = "run"  # the name of a run from Python in messages and tables


def is_run_object(value: Any) -> bool:
    """True for a run in memory: a :class:`Run`, a dictionary or a data frame."""
    return isinstance(value, Run | Mapping) or _is_data_frame(value)


def convert_run(value: Any) -> Run | None:
    """Return the run that an argument of a verb holds, or None if the argument is no run. Raises as :func:`run_of`."""
    return run_of(value) if is_run_object(value) else None


def run_of(value: Any, run_name: str = _NAME) -> Run:
    """Return a run in memory from a dictionary or a data frame. A :class:`Run` is returned as it is.

    Hits are sorted by falling score. Equal scores keep their order in the dictionary or the data frame, as equal scores
    in a file keep the order of their ranks. A warning counts the queries whose column ``rank`` contradicts the scores.
    A list of passage ids is best first, and gets the scores 1, 1/2, 1/3 ...

    Args:
        value: query id -> passage id -> score, query id -> passage ids, query id -> (passage id, score) pairs, or a
            data frame with a row per hit.
        run_name: the run's name in messages and tables.

    Raises:
        InputError: the value has another form, an id is not a text, or a score is not a finite number.
    """
    if isinstance(value, Run):
        return value
    if isinstance(value, Mapping):
        hits_by_query = {}
        for query_id, hits in value.items():
            checked_id = _check_id(query_id, run_name)
            hits_by_query[checked_id] = _convert_hits(hits, query_id, run_name)
    elif _is_data_frame(value):
        hits_by_query = _convert_frame(value, run_name)
    else:
        raise InputError(f"{_EXPECTED}, found {type(value).__name__}", path=run_name)
    sorted_hits = {}
    for query_id, hits in hits_by_query.items():
        # Stable: equal scores keep their order.
        sorted_hits[query_id] = sorted(hits, key=lambda hit: -hit[1])
    return Run.in_memory(run_name, sorted_hits)


def _convert_hits(hits: Any, query_id: str, run_name: str) -> list[Hit]:
    """Return the hits of one query of a dictionary, in their order. A list of ids gets the scores 1, 1/2, 1/3 ..."""
    if isinstance(hits, Mapping):
        return _check_hits(hits.items(), query_id, run_name)
    if not isinstance(hits, list | tuple):
        raise InputError(f"query {query_id!r}: {_EXPECTED}, found {type(hits).__name__}", path=run_name)
    if all(isinstance(hit, str) for hit in hits):
        return [(_check_id(passage_id, run_name), 1 / rank) for rank, passage_id in enumerate(hits, start=1)]
    # A list of texts is handled above, so a mixed list is an error.
    for hit in hits:
        if not (isinstance(hit, list | tuple) and len(hit) == 2):
            raise InputError(f"query {query_id!r}: {_EXPECTED}, found {shown_value(hit)} in a list", path=run_name)
    return _check_hits(hits, query_id, run_name)


def _check_hits(hits: Iterable[Sequence[Any]], query_id: str, run_name: str) -> list[Hit]:
    """Return (passage id, score) pairs with a text and a float each. Raise :class:`InputError` for other values."""
    checked_hits = []
    for passage_id, score in hits:
        # True and False are numbers of Python, but no scores. NumPy's type has the same name.
        is_number = isinstance(score, numbers.Real) and type(score).__name__ != "bool"
        if not is_number or not _is_finite(score):
            message = f"query {query_id!r}, passage {shown_value(passage_id)}: expected a finite number as the score"
            raise InputError(f"{message}, found {shown_value(score)}", path=run_name)
        checked_hits.append((_check_id(passage_id, run_name), float(score)))
    return checked_hits


def _is_finite(number: numbers.Real) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer beyond the largest float
        return False


def _check_id(value: Any, run_name: str) -> str:
    """Return an id as Python's text. Raise :class:`InputError` if it cannot be an id."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise InputError(f"expected ids that are texts, found {shown_value(value)}", path=run_name)
    if not is_unicode(value):
        raise InputError(f"expected ids without surrogates, found {shown_value(value)}", path=run_name)
    return str(value)  # NumPy's texts become Python's


def _is_data_frame(value: Any) -> bool:
    return type(value).__name__ == "DataFrame" and hasattr(value, "columns") and hasattr(value, "to_dict")


def _convert_frame(frame: Any, run_name: str) -> dict[str, list[Hit]]:
    """Return the hits of a data frame by query, in the order of the column ``rank``, or else of the rows.

    The caller sorts the hits by score, so that the ranks order only equal scores.
    """
    if not hasattr(frame, "itertuples"):  # a frame of Polars
        frame = frame.to_pandas()
    columns = [str(column) for column in frame.columns]
    query_column = _first_present(QUERY_COLUMNS, columns)
    passage_column = _first_present(PASSAGE_COLUMNS, columns)
    if query_column is None or passage_column is None or "score" not in columns:
        raise InputError(f"{_EXPECTED}, found the columns {', '.join(columns) or 'of nothing'}", path=run_name)
    # Queries stay in the order of the frame, although its rows are sorted by rank below.
    rows_by_query: dict[str, list[Any]] = {
        _check_id(query_id, run_name): [] for query_id in frame[query_column].tolist()
    }
    ranks_by_query: dict[str, list[float]] = {query_id: [] for query_id in rows_by_query}
    has_ranks = "rank" in columns
    if has_ranks:
        frame = _sort_by_rank(frame)
        for query_id, rank in frame[[query_column, "rank"]].itertuples(index=False, name=None):
            ranks_by_query[query_id].append(rank)
    hit_rows = frame[[query_column, passage_column, "score"]].itertuples(index=False, name=None)
    for query_id, passage_id, score in hit_rows:
        rows_by_query[query_id].append((passage_id, score))
    hits_by_query = {query_id: _check_hits(rows, query_id, run_name) for query_id, rows in rows_by_query.items()}
    if has_ranks:
        _compare_ranks(hits_by_query, ranks_by_query, run_name)
    return hits_by_query


def _first_present(names: Iterable[str], columns: Sequence[str]) -> str | None:
    """Return the first of ``names`` that is a column; None if no name is a column."""
    for name in names:
        if name in columns:
            return name
    return None


def _sort_by_rank(frame: Any) -> Any:
    """Return the data frame sorted by rank. Ranks may be texts, which would be sorted as 1, 10, 2."""
    import pandas as pd

    ranks = pd.to_numeric(frame["rank"], errors="coerce")  # rows without a rank come last
    return frame.assign(rank=ranks).sort_values("rank", kind="stable")


def _compare_ranks(
    hits_by_query: Mapping[str, Sequence[Hit]], ranks_by_query: Mapping[str, Sequence[float]], run_name: str
) -> None:
    """Warn about queries whose ranks contradict their scores.

    A query's hits and its ranks belong together one by one, and are in the order of the ranks.
    """
    query_numbers: list[int] = []
    ranks: list[float] = []
    for query_number, (query_id, hits) in enumerate(hits_by_query.items()):
        hits_with_rank = zip(hits, ranks_by_query[query_id], strict=True)
        by_falling_score = sorted(hits_with_rank, key=lambda hit_and_rank: -hit_and_rank[0][1])
        query_numbers += [query_number] * len(by_falling_score)
        ranks += [rank for _, rank in by_falling_score]
    warn_of_contradictions(
        run_name, list(hits_by_query), np.array(query_numbers, np.int64), np.array(ranks, np.float64)
    )
