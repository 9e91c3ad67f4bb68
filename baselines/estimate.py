"""Count what rows of the tables cost, before any of it is started.

Of every step behind the rows (baselines/matrix.toml): the bytes on the disk that it keeps and that it needs at most,
the memory of a card, floating-point operations, and hours at a share of a card's peak. Operations are counted by
PyTorch's FlopCounterMode on fake tensors: no weights, no card; nothing is downloaded but a start's config.json. Without
--release, the sizes are those of the paper's collection.

Not counted: reading and tokenising texts, starting, evaluating, and all work without a model (bm25, mine). Every text
is as long as its recipe allows, but those of `encode`. docs/estimate.md has counts beside what trainings really took.

examples:
  python -m baselines estimate --table 4 5
  python -m baselines estimate --table 4 --row de-bm25-neg --card A100 --share 0.3 --processes 8
  python -m baselines estimate --table 4 --release DIR --settings baselines/settings/e5-cpu.toml --peak 0.08
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builders.common.command import InputError, add_format, number_between, whole_number

if TYPE_CHECKING:  # torch takes seconds
    from baselines.cost.cards import Card
    from baselines.cost.steps import StepCost
    from baselines.reproduce.matrix import Row, Step

_CARDS = ("A100", "H100", "H200")  # baselines.cost.cards has them, beside torch
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--table", type=int, nargs="+", metavar="N", help="of these tables of the paper (default: all)")
    parser.add_argument("--figure", type=int, nargs="+", metavar="N", help="of these figures of the paper")
    parser.add_argument("--row", metavar="NAME", help="the rows of this name (default: all)")
    parser.add_argument(
        "--release", type=Path, metavar="DIR", help="default: the paper's collection, which need not be"
    )
    parser.add_argument("--split", default="dev", help="the split to measure on, where a row has none (default: dev)")
    parser.add_argument("--scratch", action="store_true", help="recipes without pretrained weights")
    parser.add_argument("--settings", type=Path, metavar="FILE", help="other values for recipes (TOML)")
    parser.add_argument("--out", type=Path, default=Path("build/runs"), metavar="DIR", help="where all output is put")
    parser.add_argument("--card", choices=_CARDS, default="H100", help="whose peak and memory (default: H100)")
    parser.add_argument(
        "--peak", type=number_between(1e-6, 1e6), metavar="TFLOPS", help="of another device, in the place of --card"
    )
    parser.add_argument(
        "--share", type=number_between(0.001, 1), metavar="X", help="of the peak that is reached (default: 0.4)"
    )
    parser.add_argument(
        "--processes", type=whole_number(1), default=1, metavar="N", help="of a training, a card each (default: 1)"
    )
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    report = estimate(args)
    print(json.dumps(report, ensure_ascii=False, indent=1) if args.format == "json" else text(report))


def estimate(args: argparse.Namespace) -> dict[str, Any]:
    """The costs of the chosen rows: bytes, operations, hours. :class:`InputError` for rows that cannot be run."""
    from baselines.cost.cards import CARDS, SHARE, Card
    from baselines.cost.steps import step_cost, trained
    from baselines.retrieve.hub_models import quiet_libraries
    from builders.store.layout import set_of

    quiet_libraries()
    rows, plan, sizes = _planned(args)
    recipes = trained(step.command for step in plan.values())
    costs = {
        name: cost
        for name, step in plan.items()
        if (cost := step_cost(step.command, sizes, recipes, args.processes if step.command[1] == "train" else 1))
    }
    card, share = CARDS[args.card], SHARE if args.share is None else args.share
    if args.peak:
        peak = args.peak * 1e12
        card = Card(f"device of {args.peak:g} TFLOPS", peak, peak, peak, float("inf"))
    behind = {row.step: [name for name in _behind(plan, row.step) if name in costs] for row in rows}
    return {
        "of": sizes.name,
        "passages": {set_of(row.set).corpus: sizes.passages(row.set).count for row in rows},
        "card": card.name,
        "share": share,
        "processes": args.processes,
        "steps": [_step(args.out, name, plan[name], cost, card, share) for name, cost in costs.items()],
        "rows": [
            {
                "place": "{} {}".format(*row.place),
                "row": row.name,
                **_sum([costs[n] for n in behind[row.step]], card, share),
            }
            for row in rows
        ],
        "all": _sum(list(costs.values()), card, share),
        "cache": {name: round(size) for cost in costs.values() for name, size in cost.cache},
        "not_counted": [step.command[1] for name, step in plan.items() if name not in costs],
    }


def _planned(args: argparse.Namespace) -> tuple[list[Row], dict[str, Step], Any]:
    """(the rows, the steps behind them in their order, the sizes of what they read)."""
    from baselines.cost.sizes import PaperSizes, ReleaseSizes
    from baselines.reproduce.matrix import SCRATCH, read_matrix
    from baselines.reproduce.rows import runnable
    from baselines.reproduce.settings import Settings, read_settings
    from builders.store.reader import open_release

    matrix = read_matrix()
    rows: Sequence[Row] = matrix.select(args.table, args.row, args.figure)
    sizes: Any = PaperSizes()
    if args.release:
        release = open_release(args.release)
        asked = bool(args.table or args.figure or args.row)
        rows = runnable(rows, release, args.split, scratch=args.scratch, asked=asked, named=args.row is not None)
        sizes = ReleaseSizes(release)
    elif args.split not in ("dev", "test"):
        raise InputError(f"--split {args.split}: the paper measures on dev and test; --release DIR has others")
    elif args.scratch:
        rows = [row for row in rows if not row.official_negatives]
    if not rows:
        raise InputError("nothing is run for these: they are counted in a release, or start from pretrained weights")
    settings = read_settings(args.settings) if args.settings else Settings()
    where = {"release": str(args.release or "RELEASE"), "split": args.split, "out": str(args.out)}
    plan = matrix.plan(rows, {**where, "variant": SCRATCH if args.scratch else ""}, settings)
    return list(rows), plan, sizes


def _behind(plan: Mapping[str, Step], step: str) -> list[str]:
    """A step and all those whose output it depends on, each once."""
    found = [name for other in plan[step].needs for name in _behind(plan, other)]
    return list(dict.fromkeys([*found, step]))


def _step(out: Path, name: str, step: Step, cost: StepCost, card: Card, share: float) -> dict[str, Any]:
    output = cost.output.relative_to(out) if cost.output.is_relative_to(out) else cost.output
    hours = cost.hours(card, share)
    return {
        "step": name,
        "output": output.as_posix(),
        "command": step.command,
        "kept": round(cost.kept),
        "most": round(cost.most),
        "memory": None if cost.memory is None else round(cost.memory),
        "fits": cost.memory is None or cost.memory <= card.memory,
        "operations": round(cost.operations * cost.cards),
        "hours": hours,
    }


def _sum(costs: Sequence[StepCost], card: Card, share: float) -> dict[str, Any]:
    """Of steps one after the other: what all of them keep, the cache included, and the one that needs most on top."""
    memory = [cost.memory for cost in costs if cost.memory is not None]
    kept = sum(cost.kept for cost in costs) + sum({name: size for cost in costs for name, size in cost.cache}.values())
    return {
        "kept": round(kept),
        "most": round(kept + max((cost.most - cost.kept for cost in costs), default=0)),
        "memory": round(max(memory)) if memory else None,
        "fits": all(each <= card.memory for each in memory),
        "operations": round(sum(cost.operations * cost.cards for cost in costs)),
        "hours": sum(cost.hours(card, share) or 0 for cost in costs),
    }


def text(report: Mapping[str, Any]) -> str:
    """The report as tables."""
    from baselines.runs.tables import text_table

    head = ["disk: kept", "at most", "card's memory", "operations", "hours"]
    passages = "".join(
        f", {count:,} passages" + f" of {config}" * (config != "corpus") for config, count in report["passages"].items()
    )
    of = f"one {report['card']}" if report["processes"] == 1 else f"{report['processes']} x {report['card']}"
    lines = [
        f"{report['of']}{passages}; {of} at {100 * report['share']:g} % of its peak; counted, nothing was run",
        "",
        text_table(["step", *head], [[each["output"], *_cells(each)] for each in report["steps"]]),
        "",
        "in the user's cache, shared by the steps:",
        text_table(["", "disk"], [[name, _bytes(size)] for name, size in report["cache"].items()]),
        "",
        "each row with all steps behind it, from nothing, the cache included:",
    ]
    rows = [[f"{each['place'].capitalize()}, {each['row']}", *_cells(each)] for each in report["rows"]]
    if len(rows) > 1:
        rows.append(["all, shared steps once", *_cells(report["all"])])
    lines.append(text_table(["row", *head], rows))
    if not report["all"]["fits"]:
        lines.append("!: more than the card has")
    if missed := report["not_counted"]:
        lines.append(f"not counted: {', '.join(dict.fromkeys(missed))}")
    return "\n".join(lines)


def _cells(cost: Mapping[str, Any]) -> list[str]:
    memory = "" if cost["memory"] is None else _bytes(cost["memory"]) + "!" * (not cost["fits"])
    operations, hours = cost["operations"], cost["hours"]
    return [
        *(_bytes(cost["kept"]), _bytes(cost["most"]), memory),
        *(f"{operations:.1e}" if operations else "", _hours(hours) if operations else ""),
    ]


def _bytes(size: float) -> str:
    return next((f"{size / unit:.1f} {name}" for unit, name in _UNITS if size >= unit), f"{size:.0f} B")


def _hours(hours: float) -> str:
    return f"{hours:.1f}" if hours >= 1 else f"{hours:.2f}" if hours >= 0.005 else "< 0.01"
