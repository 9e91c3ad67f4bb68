"""Read the help of a verb from its docstring: description, the lines of ``Args:``, and examples."""

import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_SECTION = re.compile(r"(Args|Returns|Raises|Examples?):")
_PARAMETER = re.compile(r"    (\w+): (.*)")


@dataclass
class VerbHelp:
    """The parts of a docstring.

    Attributes:
        summary: the first line.
        description: the paragraphs between the summary and the first section, each as one line. An indented
            paragraph, such as a drawing, keeps its lines.
        parameters: the help of each parameter by name, as one line.
        examples: the lines of the section ``Examples:``, without indentation.
    """

    summary: str
    description: list[str] = field(default_factory=list)
    parameters: dict[str, str] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)


def read_help(function: Callable[..., Any]) -> VerbHelp:
    """Return the parts of a function's docstring. Sections other than Args and Examples are for Python only."""
    text = inspect.getdoc(function) or ""
    summary, _, rest = text.partition("\n")
    sections: dict[str, list[str]] = {"": []}
    name = ""
    for line in rest.splitlines():
        heading = _SECTION.fullmatch(line)
        if heading:
            name = heading[1].rstrip("s")  # Example and Examples are the same section
            sections[name] = []
        else:
            sections[name].append(line)
    return VerbHelp(
        summary,
        description=_paragraphs(sections[""]),
        parameters=_parameters(sections.get("Arg", [])),
        examples=textwrap.dedent("\n".join(sections.get("Example", []))).strip("\n").splitlines(),
    )


def _paragraphs(lines: list[str]) -> list[str]:
    """Join the lines of each paragraph, but keep the lines of an indented paragraph, such as a drawing."""
    paragraphs: list[str] = []
    begins = True
    for line in lines:
        if not line:
            begins = True
        elif begins:
            paragraphs.append(line)
            begins = False
        elif line.startswith(" "):
            paragraphs[-1] += f"\n{line}"
        else:
            paragraphs[-1] += f" {line}"
    return paragraphs


def _parameters(lines: list[str]) -> dict[str, str]:
    parameters: dict[str, str] = {}
    name = ""
    for line in lines:
        heading = _PARAMETER.fullmatch(line)
        if heading:
            name = heading[1]
            parameters[name] = heading[2]
        elif line.strip():
            parameters[name] += f" {line.strip()}"
    return parameters
