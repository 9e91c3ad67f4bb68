"""The help of a verb as text, made from its signature and docstring."""

import inspect
import shutil
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from builders.core.docstrings import VerbHelp, read_help
from builders.core.options import Help, Option, Use
from builders.core.verbs import shell_options, verb_spec

_WIDEST = 100  # columns; longer lines are hard to read
_INDENT = 26  # columns before the help of an option


def help_text(command: str, function: Callable[..., Any], width: int = 0) -> str:
    """Return the help of a verb: usage, description, arguments, options and examples.

    Args:
        command: the words before the options, for example "python -m baselines bm25".
        function: the verb's function.
        width: columns of a line (default: those of the terminal, at most 100).
    """
    width = width or min(_WIDEST, shutil.get_terminal_size().columns)
    verb_help = read_help(function)
    options = shell_options(verb_spec(function))
    arguments = [option for option in options if option.positional]
    named = [option for option in options if not option.positional]
    blocks = [_usage(command, options, width)]
    blocks += [_fill(paragraph, width) for paragraph in (verb_help.summary, *verb_help.description)]
    for title, group in (("arguments", arguments), ("options", named)):
        if group:
            lines = [line for option in group for line in _option_lines(option, verb_help, width)]
            blocks.append("\n".join([f"{title}:", *lines]))
    if verb_help.examples:
        blocks.append("\n".join(["examples:", *(f"  {line}".rstrip() for line in verb_help.examples)]))
    return "\n\n".join(blocks)


def _usage(command: str, options: Sequence[Option], width: int) -> str:
    """Return the usage line: required options, and arguments without a name."""
    words = [command]
    for option in options:
        if option.required and not option.positional:
            words.append(_flags_and_value(option))
    words.append("[options]")
    for option in options:
        if option.positional:
            shown = option.metavar + (" ..." if option.is_list else "")
            words.append(shown if option.required else f"[{shown}]")
    return textwrap.fill(f"usage: {' '.join(words)}", width, subsequent_indent=" " * 7, break_on_hyphens=False)


def option_help(option: Option, verb_help: VerbHelp) -> str:
    """Return the help of an option: the line of the verb's docstring, or the text that several verbs share."""
    shared_help = option.marker(Help)
    return verb_help.parameters.get(option.name) or (shared_help.text if shared_help else "")


def _option_lines(option: Option, verb_help: VerbHelp, width: int) -> list[str]:
    head = f"  {_flags_and_value(option)}"
    text = option_help(option, verb_help)
    if option.choices and option.metavar not in option.choices:
        text += f"{': ' if text else ''}{', '.join(option.choices)}"
    if option.required and not option.positional:
        text += " (required)"
    elif option.default is not False and option.default not in (None, (), "", inspect.Parameter.empty):  # 0 == False
        text += f" (default: {_shown_default(option)})"
    lines = textwrap.wrap(text.strip(), width - _INDENT, break_on_hyphens=False)
    if len(head) > _INDENT - 2:  # the help begins on a line of its own
        return [head, *(" " * _INDENT + line for line in lines)]
    first, *rest = lines or [""]
    return [f"{head:<{_INDENT}}{first}".rstrip(), *(" " * _INDENT + line for line in rest)]


def _flags_and_value(option: Option) -> str:
    if option.positional:
        return option.metavar
    names = list(option.flags)
    if Use.WITH_NO in option.markers:
        names.append(f"--no-{option.flags[0].removeprefix('--')}")
    if option.value_type is bool:
        return ", ".join(names)
    value = option.metavar
    if Use.MAY_BE_EMPTY in option.markers:
        value = f"[{value} ...]"
    elif option.is_list and Use.REPEATED not in option.markers:
        value = f"{value} [{value} ...]"
    return f"{', '.join(names)} {value}"


def _shown_default(option: Option) -> str:
    if option.value_type is bool:
        return "on"
    if option.is_list:
        return " ".join(map(str, option.default))
    return str(option.default)


def _fill(paragraph: str, width: int) -> str:
    """Wrap a paragraph. A line that is indented in the docstring stays as it is."""
    if paragraph.startswith(" "):
        return paragraph
    return textwrap.fill(paragraph, width, break_on_hyphens=False, break_long_words=False)
