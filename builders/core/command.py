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
_VERB_COLUMN = 13  # characters of the column of verbs in the overview
# Libraries whose INFO messages would hide this project's own messages.
_NOISY_LOGGERS = ("faiss", "fsspec", "httpx", "httpx2", "jieba", "numba", "sentence_transformers")


def as_typed(program: str, shown_text: str) -> str:
    """Return ``shown_text`` as a user of ``program`` types its commands.

    For the console script, ``python -m PROGRAM`` is replaced by the console script's name.
    """
    if program != CONSOLE:
        return shown_text
    return re.sub(rf"python -m (builders|baselines|{CONSOLE})\b", CONSOLE, shown_text)


def verb_summary(target: str) -> str:
    """Return the first line of a verb's docstring without importing its module, which may take seconds.

    ``target`` is "module:function", or a package whose docstring describes a verb with steps.
    """
    module_name, _, function_name = target.partition(":")
    module_path = Path(__file__).parents[2].joinpath(*module_name.split("."))
    source_file = module_path / "__init__.py" if module_path.is_dir() else module_path.with_suffix(".py")
    module_tree = ast.parse(source_file.read_bytes())
    documented: ast.Module | ast.FunctionDef = module_tree
    for definition in module_tree.body:
        if isinstance(definition, ast.FunctionDef) and definition.name == function_name:
            documented = definition
    docstring = ast.get_docstring(documented) or ""
    return docstring.partition("\n")[0]


def program_overview(program: str, description: str, groups: Mapping[str, Mapping[str, str]]) -> str:
    """Return the help of a program: a line for each verb, in groups.

    ``description`` is the first paragraph. ``groups`` has, for each title, the verbs of the group with their targets
    (:func:`verb_summary`).
    """
    help_lines = [f"usage: python -m {program} VERB ...", "", description]
    for title, group_verbs in groups.items():
        help_lines += ["", f"{title}:"]
        for verb_name, target in group_verbs.items():
            help_lines.append(f"  {verb_name:<{_VERB_COLUMN}} {verb_summary(target)}")
    help_lines += ["", f"python -m {program} VERB --help shows the options of a verb, and an example."]
    return as_typed(program, "\n".join(help_lines))


def steps_overview(program: str, verb_name: str, package: ModuleType) -> str:
    """Return the help of a verb with steps: its description, and a line for each step.

    The docstring of ``package`` is the description, and ``package.STEPS`` has the target of each step's name.
    """
    step_column = max(map(len, package.STEPS))
    help_lines = [f"usage: python -m {program} {verb_name} STEP ...", "", inspect.getdoc(package) or "", "", "steps:"]
    for step_name, target in package.STEPS.items():
        help_lines.append(f"  {step_name:<{step_column}}  {verb_summary(target)}")
    return as_typed(program, "\n".join(help_lines))


def main(
    program: str,
    description: str,
    verb_targets: Mapping[str, str],
    argv: Sequence[str] | None = None,
    groups: Mapping[str, Mapping[str, str]] | None = None,
) -> int:
    """Run one verb of a program and return its exit code.

    Args:
        program: builders, baselines or the console script.
        description: the first paragraph of the program's help.
        verb_targets: the target of each verb: "module:function", or a package with ``STEPS``, a mapping of the same
            kind.
        argv: the words after the program's name (default: those of this process).
        groups: titles of the overview, with subsets of ``verb_targets``.

    Only the chosen verb's module is imported. The exit code is 2 for wrong usage, otherwise the code of
    :func:`builders.core.exit_codes.exit_code`.
    """
    if argv is None:
        argv = sys.argv[1:]
    command_words = list(argv) or ["--help"]
    shown_groups = groups or {"verbs": verb_targets}
    return exit_code(lambda: _run_words(program, description, verb_targets, shown_groups, command_words))


def _run_words(
    program: str,
    description: str,
    verb_targets: Mapping[str, str],
    groups: Mapping[str, Mapping[str, str]],
    command_words: list[str],
) -> int:
    """Run what the words after the program's name ask for: a verb, a step, the help, the version or the completion.

    ``command_words`` has at least one word. ``verb_targets`` has the target of each verb: "module:function", or the
    package of a verb with steps. ``description`` and ``groups`` are for the help (:func:`program_overview`). Returns
    the exit code.
    """
    first_word, *further_words = command_words
    if first_word in ("-h", "--help"):
        print(program_overview(program, description, groups))
        return 0
    if first_word == "--version":
        print(f"dureader_retrieval {VERSION}")
        return 0
    if first_word == "--completion":
        return _print_completion(program, verb_targets, further_words)
    if first_word not in verb_targets:
        hint = did_you_mean(first_word, verb_targets) or f"; `python -m {program}` lists all verbs"
        raise UsageError(as_typed(program, f"python -m {program} has no verb {first_word!r}{hint}"))
    target = verb_targets[first_word]
    if ":" in target:
        return run_verb(program, f"python -m {program} {first_word}", load_function(target), further_words)
    package = importlib.import_module(target)
    return _run_step(program, first_word, package, further_words)


def _run_step(program: str, verb_name: str, package: ModuleType, command_words: list[str]) -> int:
    """Run a step of a verb, for example ``annotate pool``, and return the exit code.

    ``command_words`` are the words after the verb. ``package.STEPS`` has the target of each step's name.
    """
    # --quiet may stand before the step. Words without a step become the step "", which is refused below.
    quiet_words = list(itertools.takewhile(lambda word: word == "--quiet", command_words))
    step_name, *step_words = command_words[len(quiet_words) :] or [""]
    if step_name in ("-h", "--help"):
        print(steps_overview(program, verb_name, package))
        return 0
    if step_name not in package.STEPS:
        expected = f"expected one of {', '.join(package.STEPS)}{did_you_mean(step_name, package.STEPS)}"
        problem = f"no step {step_name!r}" if step_name else "no step"
        raise UsageError(as_typed(program, f"python -m {program} {verb_name}: {problem}; {expected}"))
    verb_command = f"python -m {program} {verb_name} {step_name}"
    return run_verb(program, verb_command, load_function(package.STEPS[step_name]), [*quiet_words, *step_words])


def run_verb(program: str, verb_command: str, function: Callable[..., Any], words: Sequence[str]) -> int:
    """Call a verb's function with the words after its name, print its report, and return the exit code.

    The code is 1 if the report has found faults, otherwise 0. ``verb_command`` is the verb as the help shows it, for
    example "python -m baselines bm25".
    """
    # After --, every word is a value.
    option_words = itertools.takewhile(lambda word: word != "--", words)
    if not {"-h", "--help"}.isdisjoint(option_words):
        print(as_typed(program, help_text(verb_command, function)))
        return 0
    # Imported late, because cyclopts takes longer to import than --help and the overview take to print.
    from builders.core.parser import parse_words

    spec = verb_spec(function)
    try:
        arguments = parse_words(spec, words)
        start_logging(quiet=arguments.pop("quiet", False))
        report_format = ""
        if spec.formats:
            report_format = arguments.get("format", spec.default_format)
            # Then --format is an option of the command line only, and the function has no such parameter.
            if not spec.writes_formats:
                arguments.pop("format", None)
        # With --again or --no-resume, the same command begins anew.
        begins_anew = arguments.get("again", False) or not arguments.get("resume", True)
        set_resumable(spec.resumes and not begins_anew)
        with shell_call():
            result = function(**arguments)
        report = result
        # The result may be a release or a model, which has its report as an attribute.
        if not isinstance(result, Report):
            report = getattr(result, "report", None)
        if report is None:
            return 0
        print(report.render(report_format or "text"))
    except UsageError as error:
        raise UsageError(f"{as_typed(program, verb_command)}: {error}") from error
    return int(report.failed)


def start_logging(quiet: bool) -> None:
    """Log to stderr: everything from INFO on, or only warnings and errors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactedFormatter("%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING if quiet else logging.INFO, handlers=[handler], force=True)
    # Some libraries have handlers of their own.
    logging.setLogRecordFactory(RedactedRecord)
    for logger_name in _NOISY_LOGGERS:
        logging.getLogger(logger_name).setLevel(logging.WARNING)


def _print_completion(program: str, verb_targets: Mapping[str, str], completion_words: Sequence[str]) -> int:
    """Print the script that lets a shell complete the verbs and options of the console script.

    The first of ``completion_words`` is the shell. Further words are ignored.
    """
    shell = completion_words[0] if completion_words else ""
    if shell not in SHELLS or program != CONSOLE:
        raise UsageError(f"expected {CONSOLE} --completion with one of {', '.join(SHELLS)}")
    from builders.core.parser import program_app

    print(program_app(CONSOLE, verb_targets).generate_completion(shell=shell))  # type: ignore[arg-type]
    # Registers the function where the script is read by `source` and not from a folder of $fpath.
    if shell == "zsh":
        print(f"compdef _cyclopts_{CONSOLE} {CONSOLE}")
    return 0
