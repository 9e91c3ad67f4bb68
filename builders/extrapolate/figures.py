"""The figures of new sets as a table."""

from __future__ import annotations

from typing import Any


def table(rows: list[dict[str, Any]]) -> str:
    """The figures as an aligned table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[name.replace("_", " ") for name in names]]
    for row in rows:
        cells.append(["-" if row.get(name) is None else _cell(name, row[name]) for name in names])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for line in cells:
        padded = (
            f"{cell:<{w}}" if i < 2 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _cell(name: str, value: Any) -> str:
    if name.endswith("share"):
        return f"{100 * value:.2f}%"
    return f"{value:,}" if isinstance(value, int) else str(value)
