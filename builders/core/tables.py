"""Tables as text and as Markdown, and the texts of others in Markdown.

Such a text is shown as it is. It is never read as markup, as HTML or as the end of a table's cell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from builders.core.errors import visible

_MARKUP = re.compile(r"[\\`*<>&|\[\]]")


def percent(fraction: float) -> str:
    """A fraction as the paper prints it: percent, two decimals, no sign."""
    return f"{100 * fraction:.2f}"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns: the first to the left, the others to the right. Ends without a line end."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column_number else cell.ljust(width)
            for column_number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (header, *rows)
    )


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
