"""Verbs of both programs by their names on the command line: the words of a call, and the call in this process."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from builders.core.command import main
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


def find_function(verb: str) -> Callable[..., Any] | None:
    """Return the function of a verb, or None for a verb that is not yet a function."""
    name, _, step = verb.partition(" ")
    target = verbs_of(find_program(verb))[name]
    if step and not hasattr(package := importlib.import_module(target), "add_arguments"):
        target = package.STEPS[step]
    return load_function(target) if ":" in target else None


def words_of(verb: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return the words after ``python -m`` that stand for a call. Arguments with their default are also written."""
    program_and_verb = [find_program(verb), *verb.split()]
    if function := find_function(verb):
        return program_and_verb + verb_spec(function).words(arguments, with_defaults=True)
    return program_and_verb + _plain_words(verb, arguments)


_POSITIONAL = {"train": "recipe", "annotate pool": "action", "evaluate": "runs"}  # of verbs that are not yet functions


def _plain_words(verb: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return the words of the arguments of a verb that is not yet a function."""
    positionals: list[str] = []
    words: list[str] = []
    for name, value in arguments.items():
        flag = "--" + name.replace("_", "-")
        texts = [str(each) for each in value] if isinstance(value, list) else [str(value)]
        if name == _POSITIONAL.get(verb):
            positionals += texts
        elif value is True:
            words.append(flag)
        elif verb == "train":  # its lists are options that are repeated
            for text in texts:
                words += [flag, text]
        else:
            words += [flag, *texts]
    return positionals + words


def call_verb(verb: str, arguments: Mapping[str, Any], *, quiet: bool = False) -> int:
    """Call a verb in this process and return the exit code. Errors are reported on stderr as one line."""
    function = find_function(verb)
    if function is None:
        program, *words = words_of(verb, arguments)
        return main(program, "", verbs_of(program), [*words, *(["--quiet"] if quiet else [])])

    def call() -> int:
        result = function(**arguments)
        return int(isinstance(result, Report) and result.failed)

    return exit_code(call)
