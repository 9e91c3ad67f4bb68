"""Tables as text and as Markdown, a verb's result on stdout, and the texts of others in Markdown.

Such a text is shown as it is. It is never read as markup, as HTML or as the end of a table's cell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from builders.core.errors import visible

_MARKUP = re.compile(r"[\\`*<>&|\[\]]")


def percent(fraction: float) -> str:
    """A fraction as the paper prints it: percent, two decimals, no sign."""
    return f"{100 * fraction:.2f}"


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


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns: the first to the left, the others to the right. Ends without a line end."""
    return "\n".join(aligned([header, *rows], gap="  "))


def print_result(value: Any, text: str, form: str) -> None:
    """Print the result of a verb with ``--format``: ``value`` as JSON, or ``text``."""
    print(json.dumps(value, ensure_ascii=False, indent=1) if form == "json" else text)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """The first ``left`` columns to the left, the others to the right. Cells are Markdown already (:func:`as_text`)."""
    rule = ["---" if column < left else "---:" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def as_text(text: object) -> str:
    """A text in a line of Markdown."""
    return _MARKUP.sub(r"\\\g<0>", visible(str(text)))


def as_code(text: object) -> str:
    """A text as a code span: between more backticks than it has itself, one after the other."""
    shown = visible(str(text)).replace("|", r"\|")
    ticks = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    space = " " * shown.startswith("`") or " " * shown.endswith("`")
    return f"{ticks}{space}{shown}{space}{ticks}"
