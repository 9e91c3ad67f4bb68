"""Names from outside: what a manifest, an archive or the hub calls a file, before anything is done under that name.

Releases, embeddings, checkpoints and archives may come from anybody. A name that one of them gives to a file is joined
to a folder only where :func:`problem_of` finds nothing wrong with it; so no file is read or written elsewhere.
"""

from __future__ import annotations

import re

LONGEST = 1_000  # characters; no file of ours has a tenth, and no system takes five times as many
_NEVER = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # ends or breaks a line, or is no text
_DRIVE = re.compile(r"[A-Za-z]:")


def problem_of(name: str) -> str:
    """Why ``name`` names nothing within a folder, as the end of an error; empty where it does.

    A name has parts between forward slashes, and is the same on every system and written in one way alone: none is
    empty, ``.`` or ``..``, and there is no slash before the first or behind the last, no drive and no backslash.
    """
    if not name:
        problem = "is empty"
    elif len(name) > LONGEST:
        return f"a name of {len(name):,} characters; expected at most {LONGEST:,}"
    elif found := _NEVER.search(name):
        problem = f"holds the character {found[0]!r}"
    elif name[0] == "/" or _DRIVE.match(name):
        problem = "is absolute"
    elif "\\" in name:
        problem = "holds a backslash"
    elif odd := {"", ".", ".."} & {*name.split("/")}:
        problem = f"has the part {min(odd)!r}"
    else:
        return ""
    return f"the name {name!r} {problem}; expected a plain one, within its folder"


def name_within(name: str) -> str:
    """``name`` itself; ValueError, with what :func:`problem_of` finds, for one that names nothing within a folder."""
    if problem := problem_of(name):
        raise ValueError(problem)
    return name
