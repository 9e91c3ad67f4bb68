"""Extension of Griffe for the pages of the Python API: the types and the help of every option of a verb.

Griffe reads the source, where an option's type is an annotation with markers, and where options of several verbs have
their help in a shared alias. This extension takes the types and the help from the functions themselves.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from builders.core.docstrings import read_help
from builders.core.help import option_help
from builders.core.verbs import verb_spec

# Decorators of functions whose signature has plain types at run time.
CHECKED = re.compile(r"(verb|with_options_of)\(")
ROLE = re.compile(r":\w+:`[~.]*([\w.]+)`")  # a reference in the form of Sphinx
MODULE_NAME = re.compile(r"\b(?:[a-z_]+\.)+(?=[A-Z])")
SECTION = re.compile(r"^(Args|Examples?):\n((?: {4}.*\n|\n)+)", re.MULTILINE)


class PlainSignatures(griffe.Extension):
    """Give functions plain types, verbs the help of all options, and examples a code block."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = ROLE.sub(r"`\1`", obj.docstring.value)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        decorators = [str(decorator.value) for decorator in func.decorators]
        if not any(CHECKED.match(decorator) for decorator in decorators):
            return
        function = getattr(importlib.import_module(func.module.path), func.name)
        for name, parameter in inspect.signature(function).parameters.items():
            if name in func.parameters and parameter.annotation is not parameter.empty:
                func.parameters[name].annotation = plain_type(parameter.annotation)
        is_verb = any(decorator.startswith("verb(") for decorator in decorators)
        if is_verb and func.docstring:
            func.docstring.value = with_all_options(f"{func.docstring.value}\n", function)


def plain_type(annotation: object) -> str:
    """Return a type without the names of modules."""
    return MODULE_NAME.sub("", inspect.formatannotation(annotation).replace("typing.", "")).strip("'")


def with_all_options(docstring: str, function: Callable[..., Any]) -> str:
    """Return a verb's docstring whose ``Args:`` has every option, and whose examples are a code block."""
    verb_help = read_help(function)
    option_lines = []
    for option in verb_spec(function).options:
        option_lines.append(f"    {option.name}: {option_help(option, verb_help)}\n")

    def rewrite_section(section: re.Match[str]) -> str:
        title, lines = section.groups()
        if title == "Args":
            return "Args:\n" + "".join(option_lines) + "\n"
        return f"{title}:\n    ```bash\n{lines.rstrip()}\n    ```\n"

    return SECTION.sub(rewrite_section, docstring)
