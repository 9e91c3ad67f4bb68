"""Format tables as text and Markdown, and escape untrusted texts for Markdown.

An escaped text is displayed literally. The text cannot act as markup or HTML, and cannot end a table's cell.
"""

import re
from collections.abc import Sequence

from builders.core.errors import make_visible

_MARKUP = re.compile(r"[\\`*<>&|\[\]]")


def format_percent(fraction: float) -> str:
    """Format a fraction as in the paper: percent with two decimals, without the percent sign."""
    return f"{100 * fraction:.2f}"


def round_stat(value: float | None) -> float | None:
    """Round to four decimals; None stays. Table 3 prints two."""
    return None if value is None else round(float(value), 4)


def align_rows(rows: Sequence[Sequence[str]], widths: Sequence[int] = (), left: int = 1, gap: str = "") -> list[str]:
    """Return the rows as lines. The first ``left`` columns are left-aligned. Further columns are right-aligned.

    ``widths`` are the columns' widths in characters, and the last width applies to all further columns. Without
    ``widths``, a column is as wide as its widest cell. ``gap`` is the text between two columns.
    """
    # Without ``widths``, measure the columns.
    column_widths = list(widths)
    if not widths:
        for column_cells in zip(*rows, strict=True):
            column_widths.append(max(map(len, column_cells)))
    lines = []
    for row in rows:
        padded_cells = []
        for column_number, cell in enumerate(row):
            cell_width = column_widths[min(column_number, len(column_widths) - 1)]
            alignment = "<" if column_number < left else ">"
            padded_cells.append(f"{cell:{alignment}{cell_width}}")
        lines.append(gap.join(padded_cells).rstrip())
    return lines


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table without a final line end. Only the first column is left-aligned."""
    return "\n".join(align_rows([header, *rows], gap="  "))


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Format a Markdown table with ``left`` left-aligned columns. Cells must already be Markdown (:func:`as_text`)."""
    # Markdown aligns a column right if its dashes end with a colon.
    alignment_row = ["---" if column_number < left else "---:" for column_number in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, alignment_row, *rows))


def as_text(text: object) -> str:
    """Escape a text for a line of Markdown."""
    return _MARKUP.sub(r"\\\g<0>", make_visible(str(text)))


def as_code(text: object) -> str:
    """Format a text as a Markdown code span. The fence is one backtick longer than any run of backticks in the text."""
    code_text = make_visible(str(text)).replace("|", r"\|")
    longest_run = max(map(len, re.findall("`+", code_text)), default=0)
    fence = "`" * (longest_run + 1)
    # Markdown removes one space at each side. Without it, a backtick of the text would belong to the fence.
    padding = " " if code_text.startswith("`") or code_text.endswith("`") else ""
    return f"{fence}{padding}{code_text}{padding}{fence}"
