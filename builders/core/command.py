"""Command line: verbs with their help, and options that several verbs share."""

import argparse
import ast
import difflib
import importlib
import inspect
import logging
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from builders.core.exit_codes import exit_code

VERSION = "0.1.0"
CONSOLE = "dureader-retrieval"  # the console script, which has the verbs of builders and baselines


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add ``--format text|json``, for commands that print a table."""
    parser.add_argument("--format", choices=["text", "json"], default="text", help="output format (default: text)")


def whole_number(low: int) -> Any:
    """Return an argparse type: an integer of at least ``low``."""
    return _number(int, lambda value: value >= low, f"a whole number of at least {low}")


def number_between(low: float, high: float) -> Any:
    """Return an argparse type: a finite number from ``low`` to ``high``."""
    return _number(float, lambda value: low <= value <= high and math.isfinite(value), f"a number {low} <= x <= {high}")


def _number(kind: type[int] | type[float], fits: Callable[[float], bool], expected: str) -> Any:
    def number(text: str) -> int | float:
        value = kind(text)
        if not fits(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, found {text}")
        return value

    return number  # the name of this function appears in argparse's error "invalid number value: 'x'"


def verb_parser(program: str, verb: str, module: ModuleType) -> argparse.ArgumentParser:
    """Return the parser of a verb. The help is the docstring of the verb's module, followed by the arguments."""
    parser = argparse.ArgumentParser(
        prog=as_typed(program, f"python -m {program} {verb}"),
        description=as_typed(program, module.__doc__ or ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--quiet", action="store_true", help="log only warnings or errors")
    module.add_arguments(parser)
    return parser


def as_typed(program: str, text: str) -> str:
    """Replace ``python -m PROGRAM`` by the console script's name if ``program`` is the console script."""
    return re.sub(rf"python -m (builders|baselines|{CONSOLE})\b", CONSOLE, text) if program == CONSOLE else text


def add_steps(
    parser: argparse.ArgumentParser,
    steps: Mapping[str, str],
    common: Callable[[str, argparse.ArgumentParser], None] = lambda name, step: None,
) -> None:
    """Add the steps of a verb as sub-commands.

    ``steps`` maps each name to a module as in :func:`main`, or to MODULE:FUNCTION. The module's ``FUNCTION_arguments``,
    if it exists, adds the options of FUNCTION. ``common(name, parser)`` adds the options that several steps share.
    """
    commands = parser.add_subparsers(dest="step", metavar="|".join(steps), required=True)
    for name, place in steps.items():
        place, _, function = place.partition(":")
        module = importlib.import_module(place)
        run = getattr(module, function or "run")
        text = as_typed(parser.prog.partition(" ")[0], inspect.getdoc(run if function else module) or "")
        step = commands.add_parser(
            name,
            help=text.partition("\n")[0].rstrip("."),
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        step.add_argument("--quiet", action="store_true", default=argparse.SUPPRESS, help="log only warnings or errors")
        common(name, step)
        if add_options := getattr(module, f"{function}_arguments" if function else "add_arguments", None):
            add_options(step)
        step.set_defaults(run_step=run)


def summary(module: str) -> str:
    """Return the first line of a module's docstring without importing the module, which may take seconds."""
    path = Path(__file__).parents[2].joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return (ast.get_docstring(ast.parse(file.read_bytes())) or "").partition("\n")[0]


def overview(program: str, description: str, groups: Mapping[str, Mapping[str, str]]) -> str:
    """Return the help of a program: a line for each verb, in groups."""
    lines = [f"usage: python -m {program} VERB ...", "", description]
    for title, verbs in groups.items():
        lines += ["", f"{title}:", *(f"  {verb:<13} {summary(module)}" for verb, module in verbs.items())]
    lines += ["", f"python -m {program} VERB --help shows the options of a verb, and an example."]
    return as_typed(program, "\n".join(lines))


def main(
    program: str,
    description: str,
    verbs: Mapping[str, str],
    argv: Sequence[str] | None = None,
    groups: Mapping[str, Mapping[str, str]] | None = None,
) -> int:
    """Run one verb of a program and return its exit code.

    ``verbs`` maps a verb to its module, which has ``add_arguments(parser)``, ``run(args)``, and a docstring as help.
    ``groups`` maps the titles of the overview to subsets of ``verbs``. Only the chosen verb's module is imported. The
    exit code is 2 for wrong usage, otherwise the code of :func:`builders.core.exit_codes.exit_code`.
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
        message = f"error: python -m {program} has no verb {verb!r}; `python -m {program}` lists all verbs"
        if near := difflib.get_close_matches(verb, verbs, n=1):
            message = f"error: python -m {program} has no verb {verb!r}; did you mean {near[0]}?"
        print(as_typed(program, message), file=sys.stderr)
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
