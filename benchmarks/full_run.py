"""What the full run costs: Tables 4 and 5 on dev, from the official archives, as docs/reproduce.md prints it.

The commands are those that `reproduce --dry-run` prints; beside them, for the collection of the paper's size, what
each step takes of the disk at most, of a card's memory, and the hours of one card at 40 % of its peak, as `estimate`
counts them (baselines/cost/steps.py): on fake tensors, without weights or a card.

Example (writes the block of the page anew):

  python benchmarks/full_run.py --write
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from baselines.__main__ import VERBS  # noqa: E402
from baselines.cost.sizes import PaperSizes  # noqa: E402
from baselines.cost.steps import StepCost, step_cost, trained  # noqa: E402
from builders.common.command import main as command  # noqa: E402

PAGE = ROOT / "docs" / "reproduce.md"
BEGIN, END = "<!-- printed by benchmarks/full_run.py -->\n", "<!-- until here -->\n"
CARDS = ("A100", "H100")
_OUT = Path("build/runs")


def commands() -> list[str]:
    """Every command of Tables 4 and 5 as `reproduce --dry-run` prints it."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        command("baselines", "", VERBS, ["reproduce", "--table", "4", "5", "--release", "RELEASE", "--dry-run"])
    return printed.getvalue().splitlines()


def costs(lines: list[str]) -> list[StepCost]:
    """What each of the commands costs that write something."""
    every = [shlex.split(line)[2:] for line in lines]
    recipes = trained(every)
    return [cost for words in every if (cost := step_cost(words, PaperSizes(), recipes))]


def block() -> str:
    """The commands and the table, as Markdown."""
    lines = commands()
    steps = costs(lines)
    cache = {name: size for step in steps for name, size in step.cache}
    used = [step.hours(card) or 0 for card in CARDS for step in steps]
    hours = [sum(used[n * len(steps) : (n + 1) * len(steps)]) for n in range(len(CARDS))]
    disk = sum(step.most for step in steps) + sum(cache.values())
    head = ["under build/runs", "disk, GB", "card's memory, GB", *(f"hours on one {card}" for card in CARDS)]
    return "\n".join(
        [
            "```bash (not run: wants the whole collection, a card and a day)",
            *lines,
            "```",
            "",
            f"| {' | '.join(head)} |",
            "|---" * len(head) + "|",
            *(f"| `{step.output.relative_to(_OUT)}` | {_cells(step)} |" for step in steps),
            *(
                f"| {name}, in the cache | {_shown(size / 1e9)} |{'  |' * (len(head) - 2)}"
                for name, size in cache.items()
            ),
            f"| all | {_row(disk, max(step.memory or 0 for step in steps), hours)} |",
            "",
        ]
    )


def _cells(step: StepCost) -> str:
    return _row(step.most, step.memory, [step.hours(card) for card in CARDS])


def _row(disk: float, memory: float | None, hours: Sequence[float | None]) -> str:
    card = ["" if memory is None else f"{memory / 1e9:.1f}"]
    return " | ".join([_shown(disk / 1e9), *card, *("" if each is None else _shown(each) for each in hours)])


def _shown(number: float) -> str:
    return f"{number:.1f}" if number >= 0.05 else "< 0.1"


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
