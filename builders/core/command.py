"""The command line: verbs with their help, old names of verbs, and options that several verbs share."""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import inspect
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from builders.core.exit_codes import exit_code

VERSION = "0.1.0"


def add_format(parser: argparse.ArgumentParser) -> None:
    """``--format text|json``, for every command that prints a table."""
    parser.add_argument("--format", choices=["text", "json"], default="text", help="how the table is printed")


def whole_number(low: int) -> Any:
    """An argparse type: an integer of at least ``low``."""
    return _number(int, lambda value: value >= low, f"a whole number of at least {low}")


def number_between(low: float, high: float) -> Any:
    """An argparse type: a number from ``low`` to ``high``, finite."""
    return _number(float, lambda value: low <= value <= high and math.isfinite(value), f"a number {low} <= x <= {high}")


def _number(kind: type[int] | type[float], fits: Callable[[float], bool], expected: str) -> Any:
    def number(text: str) -> int | float:
        value = kind(text)
        if not fits(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, found {text}")
        return value

    return number  # its name is what argparse prints of a text that is no number


def verb_parser(program: str, verb: str, module: ModuleType) -> argparse.ArgumentParser:
    """The parser of one verb, with its help: the docstring of its module, then its arguments."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {program} {verb}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--quiet", action="store_true", help="log warnings and errors only")
    module.add_arguments(parser)
    return parser


def add_steps(
    parser: argparse.ArgumentParser,
    steps: Mapping[str, str],
    common: Callable[[str, argparse.ArgumentParser], None] = lambda name, step: None,
) -> None:
    """Add the steps of a verb as its own sub-commands.

    ``steps`` maps each name to a module as for :func:`main`, or to MODULE:FUNCTION, where FUNCTION_arguments adds the
    options if there are any. ``common`` adds the options that several steps share.
    """
    commands = parser.add_subparsers(dest="step", metavar="|".join(steps), required=True)
    for name, place in steps.items():
        place, _, function = place.partition(":")
        module = importlib.import_module(place)
        run = getattr(module, function or "run")
        text = inspect.getdoc(run if function else module) or ""
        step = commands.add_parser(
            name,
            help=text.partition("\n")[0].rstrip("."),
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        step.add_argument("--quiet", action="store_true", default=argparse.SUPPRESS, help="log warnings only")
        common(name, step)
        if add_options := getattr(module, f"{function}_arguments" if function else "add_arguments", None):
            add_options(step)
        step.set_defaults(run_step=run)


def summary(module: str) -> str:
    """The first line of a module's docstring, read from its file: importing every verb would take seconds."""
    path = Path(__file__).parents[2].joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return (ast.get_docstring(ast.parse(file.read_bytes())) or "").partition("\n")[0]


def overview(program: str, description: str, groups: Mapping[str, Mapping[str, str]]) -> str:
    """Every verb of a program with its line, in the groups of a user's way."""
    lines = [f"usage: python -m {program} VERB ...", "", description]
    for title, verbs in groups.items():
        lines += ["", f"{title}:", *(f"  {verb:<13} {summary(module)}" for verb, module in verbs.items())]
    return "\n".join([*lines, "", f"python -m {program} VERB --help shows a verb's options, with an example."])


def main(
    program: str,
    description: str,
    verbs: Mapping[str, str],
    argv: Sequence[str] | None = None,
    groups: Mapping[str, Mapping[str, str]] | None = None,
) -> int:
    """Run one verb of ``program``; returns the exit code: 2 for wrong usage, else as of :func:`exit_codes.exit_code`.

    ``verbs`` maps a verb to the module with its ``add_arguments(parser)`` and ``run(args)``; ``groups`` has the same
    verbs under titles. Only the module that is asked for is imported, so that help is quick. Its docstring is its help.
    """
    words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    return exit_code(lambda: _main(program, description, verbs, groups or {"verbs": verbs}, *words))


def _main(
    program: str,
    description: str,
    verbs: Mapping[str, str],
    groups: Mapping[str, Mapping[str, str]],
    verb: str,
    *rest: str,
) -> int:
    if verb in ("-h", "--help"):
        print(overview(program, description, groups))
        return 0
    if verb == "--version":
        print(f"dureader_retrieval {VERSION}")
        return 0
    if verb not in verbs:
        old = OLD_NAMES.get(program, {})
        if name := next((name for name in (" ".join([verb, *rest[:1]]), verb) if name in old), None):
            print(f"{name} is now: {old[name]}", file=sys.stderr)
            return 2
        if program == "baselines" and verb in REMOVED:
            print(f"{verb} was removed; use {REMOVED[verb]}", file=sys.stderr)
            return 2
        near = difflib.get_close_matches(verb, verbs, n=1)
        hint = f"did you mean {near[0]}?" if near else f"`python -m {program}` prints them all"
        print(f"error: python -m {program} has no verb {verb!r}: {hint}", file=sys.stderr)
        return 2
    module = importlib.import_module(verbs[verb])
    args = verb_parser(program, verb, module).parse_args(rest)
    logging.basicConfig(
        level=logging.WARNING if args.quiet else logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
        stream=sys.stderr,
        force=True,
    )
    for noisy in ("faiss", "fsspec", "httpx", "httpx2", "jieba", "numba", "sentence_transformers"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return int(module.run(args) or 0)


OLD_NAMES = {
    "builders": {
        "ccovid": "builders add ccovid",
        "cmedqa": "builders add cmedqa",
        "contamination": "builders similar --against",
        "crosslingual": "builders add crosslingual",
        "crosslingual export": "builders annotate translations export",
        "crosslingual import": "builders annotate translations import",
        "crosslingual review": "builders annotate translations review",
        "extrapolate": "builders add",
        "extrapolate embed": "baselines encode --queries",
        "extrapolate overlap": "builders check",
        "extrapolate restrain": "builders add restrain",
        "extrapolate resttest": "builders add resttest",
        "pool": "builders annotate pool",
        "relabel": "builders annotate relabel",
        "samples": "builders add samples",
        "sources": "builders official --list",
        "stats": "builders check",
    },
    "baselines": {
        "estimate": "baselines reproduce --dry-run",
        "leaderboard": "baselines reproduce --leaderboard",
        "predictions": "builders export --run",
        "space": "baselines show --serve",
    },
}
# Verbs that are gone, with what to use in their place.
REMOVED = {
    "artefacts": "`hf upload` and `hf download` (docs/hub.md)",
    "bundle": "RUN.manifest.json, which every run has (docs/run.md)",
    "stability": "docs/holes.md, which keeps its results",
    "verify": "RUN.manifest.json, which every run has (docs/run.md)",
}
