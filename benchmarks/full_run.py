"""What the full run costs: Tables 4 and 5 on dev, from the official archives, as docs/reproduce.md prints it.

The commands are those that `reproduce --dry-run` prints; beside them, for the collection of the paper's size, what each
step leaves on the disk, what it takes of a card's memory, and the hours of one card at 40 % of its peak. Operations and
memory are counted on fake tensors (baselines/cost): no weights, no card. BM25's disk is docs/bm25.md's, measured.

Example (writes the block of the page anew):

  python benchmarks/full_run.py --write
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from baselines.__main__ import VERBS  # noqa: E402
from baselines.cost.cards import hours, needed  # noqa: E402
from baselines.cost.ranking import encoding_cost, reranking_cost  # noqa: E402
from baselines.cost.training import training_cost  # noqa: E402
from baselines.train.recipe import read_recipe  # noqa: E402
from builders.common.command import main as command  # noqa: E402
from builders.stats.paper import published  # noqa: E402

PAGE = ROOT / "docs" / "reproduce.md"
BEGIN, END = "<!-- printed by benchmarks/full_run.py -->\n", "<!-- until here -->\n"
CARDS = ("A100", "H100")
_PAPER = published()
_PASSAGES, _CHARACTERS = (_PAPER["collections"]["corpus"][key] for key in ("passages", "mean_chars"))
_TOP_K = 50
_BM25 = 4.7e9  # bytes on the disk (docs/bm25.md)
_RUN_LINE = 28  # bytes of a gzipped line of a run, most of them the passage's id: 32 hexadecimal digits of chance
_STATES = 3  # of a training at once: two are kept, while the next is written


@dataclass(frozen=True)
class Step:
    """A command's output, bytes on the disk and on the card, hours by card; None: no card is used."""

    output: str
    disk: float
    memory: float | None = None
    hours: tuple[float, ...] | None = None


def commands() -> list[str]:
    """Every command of Tables 4 and 5 as `reproduce --dry-run` prints it."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        command("baselines", "", VERBS, ["reproduce", "--table", "4", "5", "--release", "RELEASE", "--dry-run"])
    return printed.getvalue().splitlines()


def step_of(line: str) -> Step | None:
    """What a command costs; None for one that only prints."""
    verb, *words = shlex.split(line)[3:]
    options = {word: value for word, value in itertools.pairwise(words) if word.startswith("--")}
    if "--out" not in options:
        return None
    output = options["--out"].removeprefix("build/runs/")
    if verb in ("bm25", "mine"):
        return Step(output, _BM25 if verb == "bm25" and options["--split"] == "dev" else _run(options["--split"]))
    recipe = read_recipe(words[0] if verb == "train" else Path(options["--model"]).name)
    if verb == "train":
        training = training_cost(recipe, _PAPER["table3"]["train"]["positive_passages"])
        disk = training.checkpoint + _STATES * training.state
        return Step(output, disk, needed(training.memory.total), tuple(map(training.hours, CARDS)))
    if verb == "search":
        queries = _queries(options["--split"])
        products = 2 * queries * _PASSAGES * encoding_cost(recipe, 1, 1).embeddings // 2  # two bytes a number
        return Step(output, _run(options["--split"]), None, tuple(hours(products, card, "fp32") for card in CARDS))
    if verb == "encode":
        cost = encoding_cost(recipe, _PASSAGES, _CHARACTERS)  # a token a character
    else:
        cost = reranking_cost(recipe, _queries(options["--split"]) * _TOP_K, recipe.data.passage_length)
    disk = cost.embeddings or _run(options["--split"])
    return Step(output, disk, needed(cost.weights + cost.activations), tuple(map(cost.hours, CARDS)))


def _queries(split: str) -> int:
    return int(_PAPER["table3"][split]["queries"])


def _run(split: str) -> int:
    return _queries(split) * _TOP_K * _RUN_LINE


def block() -> str:
    """The commands and the table, as Markdown."""
    lines = commands()
    steps = [step for line in lines if (step := step_of(line))]
    total = Step(
        "all",
        sum(step.disk for step in steps),
        max(step.memory or 0 for step in steps),
        tuple(sum(step.hours[n] for step in steps if step.hours) for n in range(len(CARDS))),
    )
    rows = [f"| `{step.output}` | {_cells(step)} |" for step in steps]
    head = ["under build/runs", "disk, GB", "card's memory, GB", *(f"hours on one {card}" for card in CARDS)]
    return "\n".join(
        [
            "```bash (not run: wants the whole collection, a card and a day)",
            *lines,
            "```",
            "",
            f"| {' | '.join(head)} |",
            "|---" * len(head) + "|",
            *rows,
            f"| all | {_cells(total)} |",
            "",
        ]
    )


def _cells(step: Step) -> str:
    card = ["" if step.memory is None else f"{step.memory / 1e9:.1f}"]
    card += [_shown(each) for each in step.hours] if step.hours else [""] * len(CARDS)
    return " | ".join([_shown(step.disk / 1e9), *card])


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
