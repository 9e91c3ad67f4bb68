"""Command line: verbs with their help, and options that several verbs share."""

import ast
import importlib
import inspect
import itertools
import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from builders.core.errors import RedactedFormatter, RedactedRecord, UsageError
from builders.core.exit_codes import exit_code, set_resumable
from builders.core.help import help_text
from builders.core.options import did_you_mean
from builders.core.results import Report
from builders.core.verbs import load_function, shell_call, verb_spec
from builders.core.version import VERSION

SHELLS = ("bash", "zsh", "fish")  # shells with completion
CONSOLE = "dureader-retrieval"  # the console script, which has the verbs of builders and baselines


def as_typed(program: str, text: str) -> str:
    """Replace ``python -m PROGRAM`` by the console script's name if ``program`` is the console script."""
    return re.sub(rf"python -m (builders|baselines|{CONSOLE})\b", CONSOLE, text) if program == CONSOLE else text


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
    return _run_step(program, verb, package, rest)


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
        # With --again or --no-resume, the same command begins anew.
        set_resumable(spec.resumes and not arguments.get("again", False) and arguments.get("resume", True))
        with shell_call():
            result = function(**arguments)
        report = result if isinstance(result, Report) else getattr(result, "report", None)
        if report is None:
            return 0
        print(report.render(shown_format or "text"))
    except UsageError as error:
        raise UsageError(f"{as_typed(program, command)}: {error}") from error
    return int(report.failed)


def start_logging(quiet: bool) -> None:
    """Log to stderr: everything from INFO on, or only warnings and errors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactedFormatter("%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING if quiet else logging.INFO, handlers=[handler], force=True)
    # Some libraries have handlers of their own.
    logging.setLogRecordFactory(RedactedRecord)
    for noisy in ("faiss", "fsspec", "httpx", "httpx2", "jieba", "numba", "sentence_transformers"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _print_completion(program: str, verbs: Mapping[str, str], shell: str = "", *_: str) -> int:
    """Print the script that lets a shell complete the verbs and options of the console script."""
    if shell not in SHELLS or program != CONSOLE:
        raise UsageError(f"expected {CONSOLE} --completion with one of {', '.join(SHELLS)}")
    from builders.core.parser import program_app

    print(program_app(CONSOLE, verbs).generate_completion(shell=shell))  # type: ignore[arg-type]
    if shell == "zsh":  # registers the function where the script is read by `source` and not from a folder of $fpath
        print(f"compdef _cyclopts_{CONSOLE} {CONSOLE}")
    return 0
