"""The parser of a verb's command line, made by cyclopts from the verb's signature."""

import importlib
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from builders.core.docstrings import VerbHelp, read_help
from builders.core.errors import UsageError
from builders.core.help import option_help
from builders.core.options import Option, ShellDefault, Use, from_text
from builders.core.verbs import VerbSpec, load_function, shell_options, verb_spec


def verb_app(name: str, spec: VerbSpec, *, has_types: bool = False) -> App:
    """Return the parser of a verb. ``name`` is the verb's word in a program's parser.

    ``has_types`` is True for completion, which needs choices and paths. To parse words, the parser must not know the
    types: where a program has imported pydantic, cyclopts lets pydantic compare the words with the types, and refuses
    them.
    """
    verb_help = read_help(spec.function)
    verb_parser = App(name=name, help=verb_help.summary, version_flags=[], help_flags=[])
    verb_parser.default(_signature_holder(shell_options(spec), verb_help, has_types))
    return verb_parser


def parse_words(spec: VerbSpec, words: Sequence[str]) -> dict[str, Any]:
    """Return the arguments that a command line gives, checked and converted, by parameter name.

    ``quiet`` and ``format`` are among them if the words have these options. Raises :class:`UsageError`.
    """
    verb_parser = verb_app("verb", spec)
    # Let cyclopts divide the words among the options.
    try:
        _, bound, _ = verb_parser.parse_args(list(words), exit_on_error=False, print_error=False)
    except UnusedCliTokensError as error:
        raise UsageError(f"unexpected argument {' '.join(error.unused_tokens or ())!r}") from None
    except CycloptsError as error:
        raise UsageError(" ".join(str(error).split())) from None
    options = shell_options(spec)
    missing_flags = [option.flags[0] for option in options if option.required and option.name not in bound.arguments]
    if missing_flags:
        raise UsageError(f"missing {', '.join(missing_flags)}{_word_order_hint(options, bound.arguments)}")
    # Convert and check the words by the project's own rules.
    arguments: dict[str, Any] = {}
    for option in options:
        shell_default = option.marker(ShellDefault)
        if option.name in bound.arguments:
            arguments[option.name] = _convert_words(option, bound.arguments[option.name])
        elif shell_default:
            arguments[option.name] = from_text(option, shell_default.text, option.flags[0])
    return arguments


def _word_order_hint(options: Sequence[Option], given_arguments: Mapping[str, Any]) -> str:
    """Explain a missing positional argument that an option with several values has probably taken; otherwise "".

    ``given_arguments`` are by parameter name.
    """
    missing_words = [option.flags[0] for option in options if option.positional and option.name not in given_arguments]
    for option in options:
        takes_all_words = option.is_list and not option.positional and Use.REPEATED not in option.markers
        if missing_words and takes_all_words and option.name in given_arguments:
            return f"; {option.flags[0]} takes all words up to the next option, so name {missing_words[0]} before it"
    return ""


def _convert_words(option: Option, collected: Any) -> Any:
    """Convert ``collected``, the words of an option as cyclopts returns them, to the option's value.

    A switch has True or False, and any other option the list of :func:`_texts_of_tokens`. A positional list has such a
    list, of one word, for each of its words.
    """
    flag = option.flags[0]
    if option.value_type is bool:
        return collected
    if not option.is_list:
        return from_text(option, collected[0], flag)
    if option.positional:
        collected = itertools.chain.from_iterable(collected)
    return tuple(from_text(option, text, flag) for text in collected)


def _signature_holder(options: Sequence[Option], verb_help: VerbHelp, has_types: bool) -> Callable[..., Any]:
    """Return a function whose signature tells cyclopts the options. The function itself is never called.

    ``verb_help`` is the docstring of the verb. ``has_types`` is that of :func:`verb_app`: True for completion.
    """
    parameters = [_shell_parameter(option, option_help(option, verb_help), has_types) for option in options]
    # Python wants positional parameters first.
    parameters.sort(key=lambda parameter: parameter.kind)

    def signature_holder(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("the parser reads only the signature of this function")

    signature_holder.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return signature_holder


def _shell_parameter(option: Option, help_line: str, has_types: bool) -> inspect.Parameter:
    """Return the parameter that tells cyclopts about an option: with its types for completion, without for parsing."""
    settings: dict[str, Any] = {"name": option.flags, "help": help_line}
    settings["negative"] = ""  # cyclopts would add --no- and --empty- forms
    if Use.WITH_NO in option.markers:
        settings["negative"] = option.negative_flag
    # parse_words checks for missing options, and names all of them at once.
    settings["required"] = False
    if option.value_type is not bool:
        settings["converter"] = _texts_of_tokens
    if not option.is_list:
        # The last value counts, so that a script can override an earlier value.
        settings["allow_repeating"] = True
    annotation: Any = _completed_type(option) if has_types else _untyped(option)
    if option.is_list and not option.positional:
        # A repeated option takes one value at each use. Other lists take all values up to the next option.
        if Use.REPEATED in option.markers:
            settings["consume_multiple"] = False
        else:
            fewest_values = 0 if Use.MAY_BE_EMPTY in option.markers else 1
            settings["consume_multiple"] = (fewest_values, None)
    parameter_kind = _parameter_kind(option)
    # Python allows no default for *values.
    default = inspect.Parameter.empty if parameter_kind is inspect.Parameter.VAR_POSITIONAL else None
    described_type = Annotated[annotation, Parameter(**settings)]
    return inspect.Parameter(option.name, parameter_kind, default=default, annotation=described_type)


def _completed_type(option: Option) -> Any:
    """Return the type from which a shell's completion offers values: choices, or the names of files."""
    value_type: Any = option.shell_type
    if option.choices:
        value_type = Literal[option.choices]
    elif option.value_type in (bool, int, float):
        value_type = option.value_type
    # The elements of *values have the type of one value.
    if option.is_list and not option.positional:
        return list[value_type]
    return value_type


def _untyped(option: Option) -> Any:
    """Return the type of an option for parsing: a switch must be a bool, so that it takes no word as its value."""
    if option.is_list and not option.positional:
        return list[Any] | None
    if option.value_type is bool:
        return bool | None
    return Any


def _parameter_kind(option: Option) -> Any:
    """Return the kind of the Python parameter that stands for an option: ``*values`` for a positional list."""
    if not option.positional:
        return inspect.Parameter.KEYWORD_ONLY
    if option.is_list:
        return inspect.Parameter.VAR_POSITIONAL
    return inspect.Parameter.POSITIONAL_ONLY


def _texts_of_tokens(_: type, tokens: Sequence[Any]) -> list[str]:
    """Keep the words as they were typed. :func:`parse_words` converts them by the project's own rules."""
    return [token.value for token in tokens]


def program_app(name: str, verbs: Mapping[str, str]) -> App:
    """Return one parser of all verbs, from which a shell's completion is generated. All verbs' modules are imported."""
    program_parser = App(name=name, version_flags=["--version"])
    for verb_name, target in verbs.items():
        if ":" in target:
            program_parser.command(verb_app(verb_name, verb_spec(load_function(target)), has_types=True))
            continue
        # The target of a verb with steps is a package.
        steps_parser = App(name=verb_name, version_flags=[])
        for step_name, step_target in importlib.import_module(target).STEPS.items():
            steps_parser.command(verb_app(step_name, verb_spec(load_function(step_target)), has_types=True))
        program_parser.command(steps_parser)
    return program_parser
