"""A comparison as Markdown: the same tables as in text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baselines.compare import cells
from baselines.runs.tables import percent
from builders.core.markdown import as_code, as_text


def as_markdown(result: dict[str, Any]) -> str:
    """Everything; names and queries are shown as they are, never read as markup."""
    measures = result["measures"]
    systems = [
        [system["label"], as_text(system["name"])]
        + [_value(system["means"][name], found["better_than"][system["label"]]) for name, found in measures.items()]
        for system in result["systems"]
    ]
    parts = [
        f"Reference: {as_text(result['reference'])}, {result['queries']} queries; {cells.explanation(result)}.",
        _table(["", "system", *map(cells.title, measures)], systems, left=2),
    ]
    for name, found in measures.items():
        rows = [cells.pair_cells(row) for row in found["pairs"]]
        parts += [f"{cells.title(name)}:", _table(cells.pair_header(result), rows)]
    parts += ["\n".join(cells.PAIRS_ARE), "Groups of systems that cannot be told apart, the best first:"]
    parts += ["\n".join(f"- {cells.title(name)}: {cells.groups(found)}" for name, found in measures.items())]
    rows = [[cells.title(name), *cells.detectable_cells(found)] for name, found in measures.items()]
    parts += [f"{_sentence(cells.detectable_is(result))}:", _table(cells.detectable_header(result), rows)]
    for pair in result["changed"]:
        parts += [f"{cells.changed_title(result, pair)}{':' * bool(pair['queries'])}"]
        if pair["queries"]:
            changed = [
                [
                    cells.points(query["difference"]),
                    f"{cells.rank(query['rank_of_worse'])} → {cells.rank(query['rank'])}",
                    as_code(query["query_id"]),
                    as_text(query["text"] or ""),
                ]
                for query in pair["queries"]
            ]
            parts += [_table(["change", "rank", "query", "text"], changed, left=4)]
    return "\n\n".join(parts)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _value(mean: float, better: str) -> str:
    return percent(mean) + f"<sup>{better}</sup>" * bool(better)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """The first ``left`` columns to the left, the others to the right."""
    rule = ["---" if column < left else "---:" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))
