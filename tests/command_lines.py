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
        for verb, target in importlib.import_module(f"{program}.__main__").VERBS.items():
            if ":" in target:
                yield f"{program} {verb}", load_function(target)
            else:
                for step, step_target in importlib.import_module(target).STEPS.items():
                    yield f"{program} {verb} {step}", load_function(step_target)


def describe_option(option: Option) -> dict[str, Any]:
    names = {bool: "switch", str: "text"}
    default = None if option.default in (None, (), False, "", inspect.Parameter.empty) else option.default
    nargs = None
    if option.is_list:
        nargs = "repeated" if Use.REPEATED in option.markers else "*" if Use.MAY_BE_EMPTY in option.markers else "+"
    parsed, limits = option.marker(Parsed), option.marker(Between)
    type_name = names.get(option.value_type, option.value_type.__name__)
    if parsed and os.PathLike not in parsed.accepts:  # names are text on the command line
        type_name = parsed.parse.__name__
    flags = [*option.flags, *(f"--no-{flag[2:]}" for flag in option.flags if Use.WITH_NO in option.markers)]
    return {
        "flags": flags,
        "type": type_name,
        "default": [str(value) for value in default] if isinstance(default, tuple) else default and str(default),
        "nargs": nargs,
        "choices": list(option.choices) or None,
        "required": option.required,
        "range": limits
        and [limits.low if math.isfinite(limits.low) else None, limits.high if math.isfinite(limits.high) else None],
    }


def describe_verbs() -> dict[str, Described]:
    found = {}
    for name, function in functions():
        options = [describe_option(option) for option in shell_options(verb_spec(function))]
        found[name] = sorted(options, key=lambda option: option["flags"])
    return found


if __name__ == "__main__":
    blocks = []
    for name, options in describe_verbs().items():
        lines = ",\n".join(f"  {json.dumps(option, ensure_ascii=False)}" for option in options)
        blocks.append(f" {json.dumps(name)}: [\n{lines}\n ]")
    Path(__file__).with_suffix(".json").write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")
