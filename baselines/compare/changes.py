"""The queries on which two systems differ most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from baselines.compare.paired import Values
from baselines.runs.measures import LIST_DEPTH


def changed_most(
    better: tuple[pa.Table, Values], worse: tuple[pa.Table, Values], texts: Mapping[str, str], most: int
) -> list[dict[str, Any]]:
    """At most ``most`` queries, the largest change first, up or down; those without a change are left out.

    ``better``, ``worse``: a system's table of :func:`baselines.runs.evaluate.evaluate` and its values of the measure.
    Equal changes go by how far the first positive passage moved, then by the reference's order.

    Returns:
        A query's ``query_id``, ``text`` (None where ``texts`` lacks it), ``difference`` (fraction, above 0 where the
        better system is better), and the first positive's ``rank`` and ``rank_of_worse`` (None: in no list).
    """
    (table, ours), (other, theirs) = better, worse
    ids = table["query_id"].to_pylist()
    ranks, others = (each["first_positive_rank"].to_pylist() for each in (table, other))
    differences = (ours - theirs).tolist()

    def size(row: int) -> tuple[float, int]:
        place, before = (min(rank or LIST_DEPTH + 1, LIST_DEPTH + 1) for rank in (ranks[row], others[row]))
        return -abs(differences[row]), -abs(place - before)

    rows = sorted((row for row in range(len(ids)) if differences[row]), key=size)[:most]
    return [
        {
            "query_id": ids[row],
            "text": texts.get(ids[row]),
            "difference": differences[row],
            "rank": ranks[row],
            "rank_of_worse": others[row],
        }
        for row in rows
    ]
