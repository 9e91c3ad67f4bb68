"""The full run: Tables 4 and 5 on dev, from the official archives, as docs/reproduce.md prints it.

The commands, and what their steps cost in a collection of the paper's size, are those that `reproduce --dry-run` prints
(baselines/reproduce/plan.py).

Example (writes the block of the page anew):

  python benchmarks/full_run.py --write
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from baselines.__main__ import VERBS  # noqa: E402
from builders.core.command import main as command  # noqa: E402

PAGE = ROOT / "docs" / "reproduce.md"
BEGIN, END = "<!-- printed by benchmarks/full_run.py -->\n", "<!-- until here -->\n"


def block() -> str:
    """The commands and the table, as Markdown."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        command("baselines", "", VERBS, ["reproduce", "--table", "4", "5", "--release", "RELEASE", "--dry-run"])
    lines = printed.getvalue().splitlines()
    table = [line.removeprefix("# ") for line in lines if line.startswith("# ")]
    fenced = ["```bash (not run: wants the whole collection, a card and a day)", *lines[len(table) :], "```", ""]
    return "\n".join([*fenced, "```text", *table, "```", ""])


def written(page: str, text: str) -> str:
    """The page with its block replaced."""
    return re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: BEGIN + text + END, page, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"put it into {PAGE.relative_to(ROOT)}")
    args = parser.parse_args()
    text = block()
    if args.write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
