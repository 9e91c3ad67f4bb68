"""Plain text tables."""

from __future__ import annotations

from collections.abc import Sequence


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
