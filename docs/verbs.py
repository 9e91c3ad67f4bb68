"""Write docs/verbs/, a page a verb out of its ``--help``, and the table of them in README.md.

    python docs/verbs.py

Lines are 100 characters wide. Run it on Python 3.11: each version of Python words and breaks options in its own way,
and the test that holds the pages equal compares them on that one.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from builders.core.command import summary, verb_parser  # noqa: E402

PROGRAMS = ("builders", "baselines")
INDEX = re.compile(r"(?<=<!-- verbs -->\n).*?(?=<!-- end of verbs -->)", re.DOTALL)


def verbs() -> Iterator[tuple[str, str, str, str]]:
    """(program, title of the group, verb, module) of every verb, in the order of the overviews."""
    for program in PROGRAMS:
        for title, group in importlib.import_module(f"{program}.__main__").GROUPS.items():
            yield from ((program, title, verb, module) for verb, module in group.items())


def helps(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The help of a parser, then of each of its sub-commands."""
    yield parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from helps(command)


def pages() -> dict[str, str]:
    """The text of every page, by its path below docs/verbs."""
    found = {}
    with mock.patch.dict(os.environ, COLUMNS="100", NO_COLOR="1"):
        for program, _, verb, module in verbs():
            parser = verb_parser(program, verb, importlib.import_module(module))
            blocks = "\n".join(f"```text\n{text}```\n" for text in helps(parser))
            found[f"{program}-{verb}.md"] = f"# python -m {program} {verb}\n\n{blocks}"
    return found


def index() -> str:
    """The table of the pages, for README.md."""
    rows = [
        f"| [`{program} {verb}`](docs/verbs/{program}-{verb}.md) | {summary(module)} |\n"
        for program, _, verb, module in verbs()
    ]
    return "".join(["| verb | what it does |\n|---|---|\n", *rows])


def main() -> None:
    folder = DOCS / "verbs"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.md"):
        old.unlink()
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
    readme = DOCS.parent / "README.md"
    readme.write_text(INDEX.sub(lambda _: index(), readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
