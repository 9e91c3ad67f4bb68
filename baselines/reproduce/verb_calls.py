"""Verbs of both programs by their names on the command line: the words of a call, and the call in this process."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from builders.core.exit_codes import exit_code
from builders.core.results import Report
from builders.core.verbs import load_function, verb_spec

PROGRAMS = ("baselines", "builders")


def verbs_of(program: str) -> Mapping[str, str]:
    """Return the target of each verb of a program, by verb."""
    verbs: Mapping[str, str] = importlib.import_module(f"{program}.__main__").VERBS
    return verbs


def find_program(verb: str) -> str:
    """Return the program that has a verb. ``verb`` may have a step, as in "annotate pool"."""
    return next(program for program in PROGRAMS if verb.split()[0] in verbs_of(program))


def find_function(verb: str) -> Callable[..., Any]:
    """Return the function of a verb, or of a step of a verb."""
    name, _, step = verb.partition(" ")
    target = verbs_of(find_program(verb))[name]
    if step:
        target = importlib.import_module(target).STEPS[step]
    return load_function(target)


def words_of(verb: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return the words after ``python -m`` that stand for a call. Arguments with their default are also written."""
    words = verb_spec(find_function(verb)).words(arguments, with_defaults=True)
    return [find_program(verb), *verb.split(), *words]


def call_verb(verb: str, arguments: Mapping[str, Any]) -> int:
    """Call a verb in this process and return the exit code. Errors are reported on stderr as one line."""

    def call() -> int:
        result = find_function(verb)(**arguments)
        return int(isinstance(result, Report) and result.failed)

    return exit_code(call)
