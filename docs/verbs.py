"""Write a page in docs/verbs/ for each verb from its ``--help``, and the table of verbs in README.md.

    python docs/verbs.py

Lines are 100 characters wide. Run this script on Python 3.11, because each version of Python formats options
differently. A test compares the pages on Python 3.11.
"""

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
    """Yield (program, title of the group, verb, module) of every verb, in the order of the programs' help."""
    for program in PROGRAMS:
        for title, group in importlib.import_module(f"{program}.__main__").GROUPS.items():
            yield from ((program, title, verb, module) for verb, module in group.items())


def helps(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the help of a parser, and then the help of each sub-command."""
    yield parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from helps(command)


def pages() -> dict[str, str]:
    """Return the text of every page, by file name in docs/verbs."""
    texts = {}
    with mock.patch.dict(os.environ, COLUMNS="100", NO_COLOR="1"):
        for program, _, verb, module in verbs():
            parser = verb_parser(program, verb, importlib.import_module(module))
            blocks = "\n".join(f"```text\n{text}```\n" for text in helps(parser))
            texts[f"{program}-{verb}.md"] = f"# python -m {program} {verb}\n\n{blocks}"
    return texts


def index() -> str:
    """Return the table of verbs for README.md, with a link to each page."""
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
