"""Which split a file's name says."""

from __future__ import annotations

import re

_SPLIT_WORD = re.compile(r"(?<![a-z])(train|dev|test)(?:set)?\d*(?![a-z])")


def split_of(name: str) -> str | None:
    """The split that a path names: a word of the file's own name, else the nearest folder (``dev/``, ``devset/``)."""
    *folders, file = name.lower().split("/")
    found = {match.group(1) for match in _SPLIT_WORD.finditer(file)}
    if found:
        return found.pop() if len(found) == 1 else None
    for folder in reversed(folders):
        if match := _SPLIT_WORD.fullmatch(folder):
            return match.group(1)
    return None
