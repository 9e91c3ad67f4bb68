"""A comparison as plain text."""

from __future__ import annotations

from typing import Any

from baselines.compare import cells
from baselines.runs.tables import percent, text_table
from builders.core.errors import visible

_SUPERSCRIPTS = str.maketrans("abcdefghijklmnoprstuvwxyz", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ")
_CHARS = 60  # of a query's text


def as_text(result: dict[str, Any]) -> str:
    """Everything, for a terminal: percent and percentage points."""
    measures = result["measures"]
    lines = [
        f"reference: {visible(result['reference'])}, {result['queries']} queries",
        cells.explanation(result),
        "",
        _systems(result),
    ]
    for name, found in measures.items():
        rows = [cells.pair_cells(row) for row in found["pairs"]]
        lines += ["", f"{cells.title(name)}: pairs", text_table(cells.pair_header(result), rows)]
    lines += ["", *cells.PAIRS_ARE]
    lines += ["", "groups of systems that cannot be told apart, the best first"]
    lines += [f"{cells.title(name)}: {cells.groups(found)}" for name, found in measures.items()]
    lines += ["", cells.detectable_is(result)]
    rows = [[cells.title(name), *cells.detectable_cells(found)] for name, found in measures.items()]
    lines += [text_table(cells.detectable_header(result), rows)]
    for pair in result["changed"]:
        lines += ["", cells.changed_title(result, pair), *map(_changed, pair["queries"])]
    return "\n".join(lines)


def _systems(result: dict[str, Any]) -> str:
    longest = {name: max(map(len, found["better_than"].values())) for name, found in result["measures"].items()}
    rows = []
    for system in result["systems"]:
        row = [f"{system['label']}  {visible(system['name'])}"]
        for name, found in result["measures"].items():
            better = found["better_than"][system["label"]].translate(_SUPERSCRIPTS)
            row.append(percent(system["means"][name]) + better.ljust(longest[name]))  # figures stand below each other
        rows.append(row)
    return text_table(["   system", *map(cells.title, result["measures"])], rows)


def _changed(query: dict[str, Any]) -> str:
    moved = f"{cells.rank(query['rank_of_worse']):>4} -> {cells.rank(query['rank']):<4}"
    text = visible(query["text"] or "")
    shown = text if len(text) <= _CHARS else f"{text[:_CHARS]}…"
    return f"{cells.points(query['difference']):>8}  {moved} {visible(query['query_id'])}  {shown}".rstrip()
