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
    docstring = inspect.getdoc(function) or ""
    summary, _, further_text = docstring.partition("\n")
    # Divide the lines into sections.
    lines_by_section: dict[str, list[str]] = {"": []}  # the description is before the first heading
    section_name = ""
    for line in further_text.splitlines():
        heading = _SECTION.fullmatch(line)
        if heading:
            # Example and Examples are the same section; Args becomes Arg.
            section_name = heading[1].rstrip("s")
            lines_by_section[section_name] = []
        else:
            lines_by_section[section_name].append(line)
    example_text = textwrap.dedent("\n".join(lines_by_section.get("Example", [])))
    return VerbHelp(
        summary,
        description=_join_paragraphs(lines_by_section[""]),
        parameters=_read_parameters(lines_by_section.get("Arg", [])),
        examples=example_text.strip("\n").splitlines(),
    )


def _join_paragraphs(lines: list[str]) -> list[str]:
    """Return each paragraph as one line, but keep the line ends before indented lines, such as those of a drawing."""
    paragraphs: list[str] = []
    begins_paragraph = True
    for line in lines:
        if not line:
            begins_paragraph = True
        elif begins_paragraph:
            paragraphs.append(line)
            begins_paragraph = False
        elif line.startswith(" "):
            paragraphs[-1] += f"\n{line}"
        else:
            paragraphs[-1] += f" {line}"
    return paragraphs


def _read_parameters(lines: list[str]) -> dict[str, str]:
    """Return the help of each parameter as one line, from the lines of the section ``Args:``.

    A line that does not begin a parameter continues the help of the parameter before it.
    """
    help_by_name: dict[str, str] = {}
    parameter_name = ""
    for line in lines:
        parameter_start = _PARAMETER.fullmatch(line)
        if parameter_start:
            parameter_name = parameter_start[1]
            help_by_name[parameter_name] = parameter_start[2]
        elif line.strip():
            help_by_name[parameter_name] += f" {line.strip()}"
    return help_by_name
