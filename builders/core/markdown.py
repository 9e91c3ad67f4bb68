"""Texts of others in Markdown: shown as they are, never read as markup, HTML or the end of a table's cell."""

from __future__ import annotations

import re

from builders.core.errors import visible

_MARKUP = re.compile(r"[\\`*<>&|\[\]]")


def as_text(text: object) -> str:
    """A text in a line of Markdown."""
    return _MARKUP.sub(r"\\\g<0>", visible(str(text)))


def as_code(text: object) -> str:
    """A text as a code span: between more backticks than it has itself, one after the other."""
    shown = visible(str(text)).replace("|", r"\|")
    ticks = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    space = " " * shown.startswith("`") or " " * shown.endswith("`")
    return f"{ticks}{space}{shown}{space}{ticks}"
