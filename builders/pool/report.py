"""What a pool is made of: what each run adds, what is judged already, and how deep the known positives lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from builders.pool.pairs import Pooled
from builders.pool.union import Union
from builders.store.judgments import Judged
from builders.store.table3 import round_stat

_DEPTHS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1_000)


def report(union: Union, new: Union, judged: Judged, depth: int, selected: Sequence[Pooled] | None) -> dict[str, Any]:
    """The figures of a pool, as JSON values.

    Args:
        union: all candidates of the runs.
        new: those that an earlier pool lacks; without one, all. What runs add is counted of these.
        judged: the release's qrels.
        depth: of each run.
        selected: the pool, once it is made.

    Returns ``queries``; ``candidates`` and ``selected`` (``pairs``, how many of them are ``judged``, ``positives`` or
    ``unjudged``); ``runs``, of each its ``pairs``, those that it found ``alone``, and the same of positives and of the
    selected; ``depths``: with so many passages of each run, the ``pairs`` of the union, the known ``positives`` among
    them and their ``share`` of all; ``ranks``: the positives at each rank of the pool.
    """
    found: dict[str, Any] = {
        "queries": sum(1 for passages in union.ranks.values() if passages),
        "candidates": _counts([(query, passage) for query, passage, _ in new.pairs()], judged),
        "runs": [_of_run(position, union, new, judged, selected) for position in range(len(union.names))],
        "depths": _depths(union, judged, depth),
    }
    if selected is not None:
        found["selected"] = _counts([(pair.query_id, pair.corpus_id) for pair in selected], judged)
        ranks: dict[int, list[Pooled]] = {}
        for pair in selected:
            ranks.setdefault(pair.rank, []).append(pair)
        found["ranks"] = [
            {"rank": rank, "pairs": len(pairs), "positives": sum((pair.judged or 0) > 0 for pair in pairs)}
            for rank, pairs in sorted(ranks.items())
        ]
    return found


def _is_positive(judged: Judged, query: str, passage: str) -> bool:
    return judged.get(query, {}).get(passage, 0) > 0


def _counts(pairs: Sequence[tuple[str, str]], judged: Judged) -> dict[str, int]:
    labels = [judged.get(query, {}).get(passage) for query, passage in pairs]
    known = [label for label in labels if label is not None]
    return {
        "pairs": len(pairs),
        "judged": len(known),
        "positives": sum(label > 0 for label in known),
        "unjudged": len(pairs) - len(known),
    }


def _of_run(
    position: int, union: Union, new: Union, judged: Judged, selected: Sequence[Pooled] | None
) -> dict[str, Any]:
    own = [(query, passage, ranks) for query, passage, ranks in new.pairs() if ranks[position]]
    alone = [(query, passage) for query, passage, ranks in own if _is_alone(ranks)]
    found: dict[str, Any] = {
        "run": union.names[position],
        "pairs": len(own),
        "alone": len(alone),
        "positives": sum(_is_positive(judged, query, passage) for query, passage, _ in own),
        "positives_alone": sum(_is_positive(judged, *pair) for pair in alone),
    }
    if selected is not None:
        picked = [pair.runs for pair in selected if union.names[position] in pair.runs]
        found |= {"selected": len(picked), "selected_alone": sum(len(runs) == 1 for runs in picked)}
    return found


def _is_alone(ranks: Sequence[int]) -> bool:
    return sum(rank > 0 for rank in ranks) == 1


def _depths(union: Union, judged: Judged, depth: int) -> list[dict[str, Any]]:
    every = sum(score > 0 for scores in judged.values() for score in scores.values())
    best = [(min(filter(None, ranks)), _is_positive(judged, query, passage)) for query, passage, ranks in union.pairs()]
    rows = []
    for limit in [*(each for each in _DEPTHS if each < depth), depth]:
        inside = [positive for rank, positive in best if rank <= limit]
        share = round_stat(sum(inside) / every) if every else None
        rows.append({"depth": limit, "pairs": len(inside), "positives": sum(inside), "share": share})
    return rows


def as_text(found: dict[str, Any]) -> str:
    """The report as aligned text."""
    lines = [f"{found['queries']:,} queries"]
    for what in ("candidates", "selected"):
        if counts := found.get(what):
            mean = counts["pairs"] / found["queries"] if found["queries"] else 0
            lines.append(
                f"{what}: {counts['pairs']:,} pairs ({mean:.2f} a query), {counts['unjudged']:,} unjudged,"
                f" {counts['judged']:,} judged, {counts['positives']:,} of them positive"
            )
    lines += ["", *_table(found["runs"]), "", *_table(found["depths"])]
    if "ranks" in found:
        lines += ["", *_table(found["ranks"])]
    return "\n".join(lines)


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    cells = [[key.replace("_", " ") for key in rows[0]], *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) if not column else cell.rjust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in cells)
    ]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.2%}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
