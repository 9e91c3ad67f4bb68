"""The help of a verb as text, made from its signature and docstring."""

import inspect
import shutil
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from builders.core.docstrings import VerbHelp, read_help
from builders.core.options import Help, OneOf, Option, Use
from builders.core.verbs import shell_options, verb_spec

_WIDEST = 100  # columns; longer lines are hard to read
_INDENT = 26  # columns before the help of an option
_USAGE_INDENT = " " * len("usage: ")


def help_text(verb_command: str, function: Callable[..., Any], width: int = 0) -> str:
    """Return the help of a verb: usage, description, arguments, options and examples.

    Args:
        verb_command: the words before the options, for example "python -m baselines bm25".
        function: the verb's function.
        width: columns of a line (default: those of the terminal, at most 100).
    """
    # The usage, and the text of the docstring.
    width = width or min(_WIDEST, shutil.get_terminal_size().columns)
    verb_help = read_help(function)
    options = shell_options(verb_spec(function))
    text_blocks = [_usage_line(verb_command, options, width)]
    for paragraph in (verb_help.summary, *verb_help.description):
        text_blocks.append(_fill_paragraph(paragraph, width))

    # The lists of options.
    positional_options = [option for option in options if option.positional]
    named_options = [option for option in options if not option.positional]
    for title, group in (("arguments", positional_options), ("options", named_options)):
        if group:
            group_lines = [f"{title}:"]
            for option in group:
                group_lines += _option_lines(option, verb_help, width)
            text_blocks.append("\n".join(group_lines))

    if verb_help.examples:
        example_lines = [f"  {line}".rstrip() for line in verb_help.examples]
        text_blocks.append("examples:\n" + "\n".join(example_lines))
    return "\n\n".join(text_blocks)


def _usage_line(verb_command: str, options: Sequence[Option], width: int) -> str:
    """Return the usage: required options with names, the word [options], and the options without names (positional)."""
    usage_words = [verb_command]
    for option in options:
        if option.required and not option.positional:
            usage_words.append(_flags_and_value(option))
    usage_words.append("[options]")
    for option in options:
        if option.positional:
            placeholder = option.metavar
            if option.is_list:
                placeholder += " ..."
            if not option.required:
                placeholder = f"[{placeholder}]"
            usage_words.append(placeholder)
    usage_text = f"usage: {' '.join(usage_words)}"
    return textwrap.fill(usage_text, width, subsequent_indent=_USAGE_INDENT, break_on_hyphens=False)


def option_help(option: Option, verb_help: VerbHelp) -> str:
    """Return the help of an option: the line of the verb's docstring, or the text that several verbs share."""
    docstring_line = verb_help.parameters.get(option.name)
    if docstring_line:
        return docstring_line
    shared_help = option.marker(Help)
    return shared_help.text if shared_help else ""


def _option_lines(option: Option, verb_help: VerbHelp, width: int) -> list[str]:
    """Return the help of an option as lines: the option in the left column, its help in the right column.

    ``verb_help`` is the docstring of the verb. ``width`` is the number of columns of a line.
    """
    flags_column = f"  {_flags_and_value(option)}"

    # The help, the choices unless the placeholder lists them, and the default.
    description = option_help(option, verb_help)
    if option.choices and option.metavar not in option.choices:
        if description:
            description += ": "
        one_of = option.marker(OneOf)  # may have a shorter text than the list of all choices
        description += (one_of.summary if one_of else "") or ", ".join(option.choices)
    if option.required and not option.positional:
        description += " (required)"
    elif _has_shown_default(option):
        description += f" (default: {_default_text(option)})"

    help_lines = textwrap.wrap(description.strip(), width - _INDENT, break_on_hyphens=False)
    if len(flags_column) > _INDENT - 2:  # the help begins on a line of its own
        return [flags_column, *_indent_lines(help_lines)]
    first_line = help_lines[0] if help_lines else ""
    return [f"{flags_column:<{_INDENT}}{first_line}".rstrip(), *_indent_lines(help_lines[1:])]


def _indent_lines(help_lines: Sequence[str]) -> list[str]:
    return [" " * _INDENT + line for line in help_lines]


def _has_shown_default(option: Option) -> bool:
    """True if the help tells the default. False for an empty default (False, None, "", ()) and for no default."""
    # Tested by identity, because 0 == False, and 0 is a default to show.
    if option.default is False:
        return False
    return option.default not in (None, (), "", inspect.Parameter.empty)


def _flags_and_value(option: Option) -> str:
    """Return an option's names and the placeholder of its value, for example ``--top-k K``."""
    if option.positional:
        return option.metavar
    flag_names = list(option.flags)
    if Use.WITH_NO in option.markers:
        flag_names.append(option.negative_flag)
    if option.value_type is bool:
        return ", ".join(flag_names)
    placeholder = option.metavar
    if Use.MAY_BE_EMPTY in option.markers:
        placeholder = f"[{placeholder} ...]"
    elif option.is_list and Use.REPEATED not in option.markers:
        placeholder = f"{placeholder} [{placeholder} ...]"
    return f"{', '.join(flag_names)} {placeholder}"


def _default_text(option: Option) -> str:
    """Return a default that the help tells, as text."""
    if option.value_type is bool:
        return "on"  # only the default True is shown
    if option.is_list:
        return " ".join(map(str, option.default))
    return str(option.default)


def _fill_paragraph(paragraph: str, width: int) -> str:
    """Wrap a paragraph. A line that is indented in the docstring stays as it is."""
    if paragraph.startswith(" "):
        return paragraph
    return textwrap.fill(paragraph, width, break_on_hyphens=False, break_long_words=False)
