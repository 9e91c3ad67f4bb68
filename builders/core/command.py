"""Command line: verbs with their help, and options that several verbs share."""

import argparse
import ast
import importlib
import inspect
import itertools
import logging
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from builders.core.errors import UsageError
from builders.core.exit_codes import exit_code
from builders.core.help import help_text
from builders.core.options import did_you_mean
from builders.core.results import Report
from builders.core.verbs import load_function, verb_spec

VERSION = "0.1.0"
SHELLS = ("bash", "zsh", "fish")  # shells with completion
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


def summary(target: str) -> str:
    """Return the first line of a verb's docstring without importing its module, which may take seconds.

    ``target`` is "module:function", or a package whose docstring describes a verb with steps.
    """
    module, _, function = target.partition(":")
    path = Path(__file__).parents[2].joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(file.read_bytes())
    node: ast.Module | ast.FunctionDef = tree
    for definition in tree.body:
        if isinstance(definition, ast.FunctionDef) and definition.name == function:
            node = definition
    return (ast.get_docstring(node) or "").partition("\n")[0]


def overview(program: str, description: str, groups: Mapping[str, Mapping[str, str]]) -> str:
    """Return the help of a program: a line for each verb, in groups."""
    lines = [f"usage: python -m {program} VERB ...", "", description]
    for title, verbs in groups.items():
        lines += ["", f"{title}:", *(f"  {verb:<13} {summary(target)}" for verb, target in verbs.items())]
    lines += ["", f"python -m {program} VERB --help shows the options of a verb, and an example."]
    return as_typed(program, "\n".join(lines))


def steps_overview(program: str, verb: str, package: ModuleType) -> str:
    """Return the help of a verb with steps: its description, and a line for each step."""
    width = max(map(len, package.STEPS))
    lines = [f"usage: python -m {program} {verb} STEP ...", "", inspect.getdoc(package) or "", "", "steps:"]
    lines += [f"  {step:<{width}}  {summary(target)}" for step, target in package.STEPS.items()]
    return as_typed(program, "\n".join(lines))


def main(
    program: str,
    description: str,
    verbs: Mapping[str, str],
    argv: Sequence[str] | None = None,
    groups: Mapping[str, Mapping[str, str]] | None = None,
) -> int:
    """Run one verb of a program and return its exit code.

    Args:
        program: builders, baselines or the console script.
        description: the first paragraph of the program's help.
        verbs: the target of each verb: "module:function", or a package with ``STEPS``, a mapping of the same kind.
        argv: the words after the program's name (default: those of this process).
        groups: titles of the overview, with subsets of ``verbs``.

    Only the chosen verb's module is imported. The exit code is 2 for wrong usage, otherwise the code of
    :func:`builders.core.exit_codes.exit_code`.
    """
    words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    return exit_code(lambda: _run_words(program, description, verbs, groups or {"verbs": verbs}, words))


def _run_words(
    program: str,
    description: str,
    verbs: Mapping[str, str],
    groups: Mapping[str, Mapping[str, str]],
    words: list[str],
) -> int:
    verb, *rest = words
    if verb in ("-h", "--help"):
        print(overview(program, description, groups))
        return 0
    if verb == "--version":
        print(f"dureader_retrieval {VERSION}")
        return 0
    if verb == "--completion":
        return _print_completion(program, verbs, *rest)
    if verb not in verbs:
        near = did_you_mean(verb, verbs) or f"; `python -m {program}` lists all verbs"
        raise UsageError(as_typed(program, f"python -m {program} has no verb {verb!r}{near}"))
    target = verbs[verb]
    if ":" in target:
        return run_verb(program, f"python -m {program} {verb}", load_function(target), rest)
    package = importlib.import_module(target)
    if hasattr(package, "add_arguments"):  # a verb that is not yet a function
        return _run_module(program, verb, package, rest)
    return _run_step(program, verb, package, rest)


def _run_module(program: str, verb: str, module: ModuleType, words: list[str]) -> int:
    args = verb_parser(program, verb, module).parse_args(words)
    start_logging(args.quiet)
    return int(module.run(args) or 0)


def _run_step(program: str, verb: str, package: ModuleType, words: list[str]) -> int:
    """Run a step of a verb, for example ``annotate pool``."""
    before = list(itertools.takewhile(lambda word: word == "--quiet", words))  # --quiet may stand before the step
    step, *rest = words[len(before) :] or [""]
    if step in ("-h", "--help"):
        print(steps_overview(program, verb, package))
        return 0
    if step not in package.STEPS:
        expected = f"expected one of {', '.join(package.STEPS)}{did_you_mean(step, package.STEPS)}"
        problem = f"no step {step!r}" if step else "no step"
        raise UsageError(as_typed(program, f"python -m {program} {verb}: {problem}; {expected}"))
    command = f"python -m {program} {verb} {step}"
    return run_verb(program, command, load_function(package.STEPS[step]), [*before, *rest])


def run_verb(program: str, command: str, function: Callable[..., Any], words: Sequence[str]) -> int:
    """Call a verb's function with the words of a command line, print its report, and return the exit code.

    ``command`` is the verb as the help shows it, for example "python -m baselines bm25".
    """
    # After --, every word is a value.
    options = itertools.takewhile(lambda word: word != "--", words)
    if not {"-h", "--help"}.isdisjoint(options):
        print(as_typed(program, help_text(command, function)))
        return 0
    from builders.core.parser import parse_words

    spec = verb_spec(function)
    try:
        arguments = parse_words(spec, words)
        start_logging(quiet=arguments.pop("quiet", False))
        shown_format = arguments.get("format", spec.default_format) if spec.formats else ""
        if spec.formats and not spec.writes_formats:
            arguments.pop("format", None)
        result = function(**arguments)
    except UsageError as error:
        raise UsageError(f"{as_typed(program, command)}: {error}") from error
    report = result if isinstance(result, Report) else getattr(result, "report", None)
    if report is None:
        return 0
    print(report.render(shown_format or "text"))
    return int(report.failed)


def start_logging(quiet: bool) -> None:
    """Log to stderr: everything from INFO on, or only warnings and errors."""
    logging.basicConfig(
        level=logging.WARNING if quiet else logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
        stream=sys.stderr,
        force=True,
    )
    for noisy in ("faiss", "fsspec", "httpx", "httpx2", "jieba", "numba", "sentence_transformers"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _print_completion(program: str, verbs: Mapping[str, str], shell: str = "", *_: str) -> int:
    """Print the script that lets a shell complete the verbs and options of the console script."""
    if shell not in SHELLS or program != CONSOLE:
        raise UsageError(f"expected {CONSOLE} --completion with one of {', '.join(SHELLS)}")
    from builders.core.parser import program_app

    script = program_app(CONSOLE, verbs).generate_completion(shell=shell)  # type: ignore[arg-type]
    print(script)
    return 0
