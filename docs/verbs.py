"""Write a page in docs/verbs/ for each verb from its ``--help``, and the table of verbs in README.md and docs/verbs.md.

    python docs/verbs.py

Lines are 100 characters wide. A test compares the pages with the help.
"""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from builders.core.command import steps_overview, verb_summary  # noqa: E402
from builders.core.help import help_text  # noqa: E402
from builders.core.verbs import load_function  # noqa: E402

PROGRAMS = ("builders", "baselines")
INDEX = re.compile(r"(?<=<!-- verbs -->\n).*?(?=<!-- end of verbs -->)", re.DOTALL)
WIDTH = 100  # characters of a line


def verbs() -> Iterator[tuple[str, str, str]]:
    """Yield (program, verb, target) of every verb, in the order of the programs' help."""
    for program in PROGRAMS:
        for group in importlib.import_module(f"{program}.__main__").GROUPS.values():
            for verb, target in group.items():
                yield program, verb, target


def helps(program: str, verb: str, target: str) -> Iterator[str]:
    """Yield the help of a verb, and then the help of each step."""
    command = f"python -m {program} {verb}"
    if ":" in target:
        yield help_text(command, load_function(target), WIDTH)
        return
    package = importlib.import_module(target)
    yield steps_overview(program, verb, package)
    for step, step_target in package.STEPS.items():
        yield help_text(f"{command} {step}", load_function(step_target), WIDTH)


def pages() -> dict[str, str]:
    """Return the text of every page, by file name in docs/verbs."""
    texts = {}
    for program, verb, target in verbs():
        blocks = [f"```text\n{text}\n```\n" for text in helps(program, verb, target)]
        texts[f"{program}-{verb}.md"] = "\n".join([f"# python -m {program} {verb}\n", *blocks])
    return texts


def index(folder: str = "docs/verbs") -> str:
    """Return the table of verbs, with a link to each page. ``folder``: the pages' folder, as README.md sees it."""
    lines = ["| verb | what it does |", "|---|---|"]
    for program, verb, target in verbs():
        lines.append(f"| [`{program} {verb}`]({folder}/{program}-{verb}.md) | {verb_summary(target)} |")
    return "".join(f"{line}\n" for line in lines)


def index_page() -> str:
    """Return docs/verbs.md, the list of verbs on the documentation site."""
    introduction = (
        "A verb is called as `python -m builders release` or `dureader-retrieval release`. `--help` prints its page.\n"
        "`add`, `annotate` and `errors` have steps (`dureader-retrieval add stress`). Each verb, or each of its\n"
        "steps, is also a Python function with the same options: [baselines](api/baselines.md) and\n"
        "[builders](api/builders.md).\n"
    )
    return f"# Verbs\n\n{introduction}\n{index('verbs')}"


def main() -> None:
    folder = DOCS / "verbs"
    folder.mkdir(exist_ok=True)
    for old_page in folder.glob("*.md"):
        old_page.unlink()
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
    (DOCS / "verbs.md").write_text(index_page(), encoding="utf-8")
    readme = DOCS.parent / "README.md"
    readme.write_text(INDEX.sub(lambda _: index(), readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
