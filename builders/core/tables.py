"""A verb's result on stdout: JSON, or text with aligned tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def aligned(rows: Sequence[Sequence[str]], widths: Sequence[int] = (), left: int = 1, gap: str = "") -> list[str]:
    """Return the rows as lines: the first ``left`` columns start, and the other ones end, at one place.

    ``widths``: characters of the first columns; the last one counts for all further columns. Without it, the widest
    cells decide.
    """
    found = list(widths) or [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        every = found + found[-1:] * (len(row) - len(found))
        cells = [f"{cell:{'<' if n < left else '>'}{every[n]}}" for n, cell in enumerate(row)]
        lines.append(gap.join(cells).rstrip())
    return lines


def print_result(value: Any, text: str, form: str) -> None:
    """Print the result of a verb with ``--format``: ``value`` as JSON, or ``text``."""
    print(json.dumps(value, ensure_ascii=False, indent=1) if form == "json" else text)
