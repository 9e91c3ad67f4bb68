"""Describe every option of every verb as JSON values.

python tests/command_lines.py   # write command_lines.json anew, where an option changes on purpose
"""

import importlib
import inspect
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))  # where this file is the program

from builders.core.options import Between, Option, Parsed, Use
from builders.core.verbs import load_function, shell_options, verb_spec

PROGRAMS = ("builders", "baselines")
Described = list[dict[str, Any]]


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield (words of the command, function) of every verb, and of every step of a verb with steps."""
    for program in PROGRAMS:
        targets = importlib.import_module(f"{program}.__main__").VERBS
        for verb, target in targets.items():
            if ":" in target:
                yield f"{program} {verb}", load_function(target)
                continue
            for step, step_target in importlib.import_module(target).STEPS.items():
                yield f"{program} {verb} {step}", load_function(step_target)


def describe_nargs(option: Option) -> str | None:
    """Return how many values an option takes: repeated, * or +; None for one value."""
    if not option.is_list:
        return None
    if Use.REPEATED in option.markers:
        return "repeated"
    return "*" if Use.MAY_BE_EMPTY in option.markers else "+"


def describe_type(option: Option) -> str:
    """Return the name of an option's type on the command line."""
    parsed = option.marker(Parsed)
    if parsed and os.PathLike not in parsed.accepts:  # names are text on the command line
        return parsed.parse.__name__
    shell_names = {bool: "switch", str: "text"}
    return shell_names.get(option.value_type, option.value_type.__name__)


def describe_default(option: Option) -> Any:
    """Return the default as text, a list of texts for several values, or None.

    None stands for no default, and for the defaults False, () and "".
    """
    # By identity, because 0 equals False.
    is_absent = option.default is None or option.default is False or option.default is inspect.Parameter.empty
    if is_absent or option.default in ((), ""):
        return None
    if isinstance(option.default, tuple):
        return [str(value) for value in option.default]
    return str(option.default)


def describe_range(limits: Between | None) -> list[float | None] | None:
    """Return the lowest and the highest value of an option. None stands for no limit."""
    if limits is None:
        return None
    lowest = limits.low if math.isfinite(limits.low) else None
    highest = limits.high if math.isfinite(limits.high) else None
    return [lowest, highest]


def describe_option(option: Option) -> dict[str, Any]:
    """Return all properties of an option as JSON values."""
    flags = list(option.flags)
    if Use.WITH_NO in option.markers:
        flags += [f"--no-{flag[2:]}" for flag in option.flags]
    return {
        "flags": flags,
        "type": describe_type(option),
        "default": describe_default(option),
        "nargs": describe_nargs(option),
        "choices": list(option.choices) or None,
        "required": option.required,
        "range": describe_range(option.marker(Between)),
    }


def describe_verbs() -> dict[str, Described]:
    """Return the sorted options of every verb."""
    options_by_verb = {}
    for name, function in functions():
        options = [describe_option(option) for option in shell_options(verb_spec(function))]
        options_by_verb[name] = sorted(options, key=lambda option: option["flags"])
    return options_by_verb


if __name__ == "__main__":
    blocks = []
    for name, options in describe_verbs().items():
        option_lines = [f"  {json.dumps(option, ensure_ascii=False)}" for option in options]
        block_text = ",\n".join(option_lines)
        blocks.append(f" {json.dumps(name)}: [\n{block_text}\n ]")
    Path(__file__).with_suffix(".json").write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")
