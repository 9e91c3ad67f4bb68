"""Verbs: functions whose parameters are the options of a command and the arguments of a call from Python.

A verb's signature declares the name, type, range, choices and default of each option once. The command line
(:mod:`builders.core.command`) is made from the signature, and :func:`verb` checks every call by the same signature.
"""

import contextlib
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from builders.core.errors import InputError, UsageError
from builders.core.options import (
    Help,
    Option,
    Use,
    check_combination,
    check_value,
    did_you_mean,
    load_object,
    read_option,
)
from builders.core.quiet import quiet_call

Params = ParamSpec("Params")
Result = TypeVar("Result")
TABLE_FORMATS = ("text", "json", "markdown", "csv")
_from_shell: ContextVar[bool] = ContextVar("from_shell", default=False)
_NOT_UTF8 = re.compile("[\udc80-\udcff]")  # bytes of a path that are not UTF-8
_SHOWN_PATH = 300  # characters
QUIET = Option(
    "quiet",
    value_type=bool,
    default=False,
    optional=False,
    is_list=False,
    markers=(Help("log only warnings and errors"),),
)
QUIET_PARAMETER = inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=bool)


@dataclass(frozen=True)
class VerbSpec:
    """A verb: its function, options, and the formats of its result (empty if the verb prints no table).

    ``resumes`` is True if an interrupted call resumes when it is made again.
    """

    function: Callable[..., Any]
    options: tuple[Option, ...]
    formats: tuple[str, ...]
    default_format: str
    resumes: bool = False

    @property
    def writes_formats(self) -> bool:
        """True if the verb has a parameter ``format``, because the verb itself may write its report to a file."""
        return any(option.name == "format" for option in self.options)

    def words(self, arguments: Mapping[str, Any], *, with_defaults: bool = False) -> list[str]:
        """Return the words of the command line that stand for a call with these arguments.

        Paths and numbers become text. Arguments without an option come first, because an option with several values
        would take them. Raises KeyError for a missing argument without a default.

        Args:
            arguments: the arguments of the call, by name.
            with_defaults: also write the arguments that equal the default of their option, so that the command stays
                the same if a default changes.
        """
        option_words: list[str] = []
        positional_words: list[str] = []
        for option in self.options:
            value = arguments.get(option.name, option.default)
            if value is inspect.Parameter.empty:
                raise KeyError(option.name)
            writes_default = with_defaults and option.name in arguments
            if value is None or (value == option.default and not writes_default):
                continue
            if option.value_type is bool and not value and Use.WITH_NO not in option.markers:
                continue  # a switch that is off has no word
            values = value if option.is_list else [value]
            texts = [str(element) for element in values]
            # Write the words in the form that the command line reads.
            if option.positional:
                positional_words += texts
            elif option.value_type is bool:
                option_words.append(option.flags[0] if value else option.negative_flag)
            elif Use.REPEATED in option.markers:
                for text in texts:
                    option_words += [option.flags[0], text]
            else:
                option_words += [option.flags[0], *texts]
        return positional_words + option_words


def verb(
    formats: Sequence[str] = (), default_format: str = "text", *, resumes: bool = False
) -> Callable[[Callable[Params, Result]], Callable[Params, Result]]:
    """Return a decorator that makes a function a verb, whose arguments are checked at every call.

    Values are not converted, except that a path may be a str, an int may stand for a float, and numbers may be NumPy's.
    A call from Python may also have ``quiet=True``, which is ``--quiet`` on the command line. The function raises
    :class:`.errors.UsageError` for a wrong argument, with its name and what was expected.

    Args:
        formats: values of ``--format`` on the command line, if the verb returns a :class:`.results.Report`.
        default_format: default of ``--format``.
        resumes: True if an interrupted call resumes when it is made again. A verb that begins anew does not resume,
            even if its libraries' caches make the second call faster.
    """

    def decorate(function: Callable[Params, Result]) -> Callable[Params, Result]:
        signature = inspect.signature(function)
        options = {name: read_option(parameter) for name, parameter in signature.parameters.items()}

        @functools.wraps(function)
        def checked_function(*args: Params.args, **kwargs: Params.kwargs) -> Result:
            is_quiet, bound = check_arguments(function.__name__, signature, options, args, kwargs)
            check_combination(options, bound.arguments, from_shell=_from_shell.get())
            with quiet_call(is_quiet), clear_path_errors():
                return function(*bound.args, **bound.kwargs)

        # Notebooks show this signature. The markers of the annotations would fill the screen.
        parameters = plain_parameters(signature)
        # typing.get_type_hints cannot evaluate a result's class that only type checkers import.
        checked_function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        if not isinstance(signature.return_annotation, str):
            checked_function.__annotations__["return"] = signature.return_annotation
        shown_signature = signature.replace(parameters=[*parameters, QUIET_PARAMETER])
        checked_function.__signature__ = shown_signature  # type: ignore[attr-defined]
        spec = VerbSpec(checked_function, tuple(options.values()), tuple(formats), default_format, resumes)
        checked_function.verb = spec  # type: ignore[attr-defined]
        return checked_function

    return decorate


@contextlib.contextmanager
def clear_path_errors() -> Iterator[None]:
    """Raise :class:`InputError` if a library in the block cannot encode a path, because its name is not UTF-8.

    Python represents other bytes of a path as surrogates. Many libraries and file formats do not allow such texts.
    """
    try:
        yield
    except UnicodeEncodeError as error:
        if not _NOT_UTF8.search(str(error.object)):
            raise
        problem = "a path is not UTF-8, which a library or file format needs; rename the file or folder"
        raise InputError(problem, path=str(error.object)[:_SHOWN_PATH]) from error


def check_arguments(
    function_name: str,
    signature: inspect.Signature,
    options: Mapping[str, Option],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    further_names: Collection[str] = (),
) -> tuple[bool, inspect.BoundArguments]:
    """Return (the value of ``quiet``, the checked arguments of a call from Python with ``args`` and ``kwargs``).

    ``options`` are the function's parameters by name, and ``signature`` is its signature. ``further_names`` are options
    that the function accepts without a check, because it passes them to a verb. Raises :class:`UsageError` for an
    unknown option, a missing argument or a wrong value.
    """
    # Take ``quiet`` out, because the function itself has no such parameter.
    call_options = dict(kwargs)
    is_quiet: bool = check_value(QUIET, call_options.pop(QUIET.name, False), label=QUIET.name)
    known_names = list(options) + list(further_names)
    for name in call_options:
        if name not in known_names:
            raise UsageError(f"{function_name} has no option {name!r}{did_you_mean(name, known_names)}")
    try:
        bound = signature.bind(*args, **call_options)
    except TypeError as error:  # a missing argument, or too many
        raise UsageError(f"{function_name}: {error}") from error
    # Check the values, and replace them by their checked forms.
    for name, value in bound.arguments.items():
        if name in options:  # otherwise the dictionary of further options
            bound.arguments[name] = check_value(options[name], value, label=name)
    return is_quiet, bound


@contextlib.contextmanager
def shell_call() -> Iterator[None]:
    """Let errors name options as on the command line, inside the block."""
    reset_token = _from_shell.set(True)
    try:
        yield
    finally:
        _from_shell.reset(reset_token)


def plain_parameters(signature: inspect.Signature) -> list[inspect.Parameter]:
    """Return the parameters of a verb's function, with plain types instead of the option types and their markers.

    For example, a path is ``str | Path``, and an option with choices is ``Literal[choices]``.
    """
    plain = []
    for parameter in signature.parameters.values():
        plain_annotation = read_option(parameter).plain_annotation()
        plain.append(parameter.replace(annotation=plain_annotation))
    return plain


def verb_spec(function: Callable[..., Any]) -> VerbSpec:
    """Return the declaration of a verb's function."""
    spec: VerbSpec = function.verb  # type: ignore[attr-defined]
    return spec


def shell_options(spec: VerbSpec) -> list[Option]:
    """Return the options of a verb on the command line: its own, --quiet, and --format, which only a shell needs.

    A verb that writes its report to a file has a parameter ``format`` of its own.
    """
    options = [*spec.options, QUIET]
    if spec.formats and not spec.writes_formats:
        format_option = Option(
            "format",
            value_type=str,
            default=spec.default_format,
            optional=False,
            is_list=False,
            markers=(Help("output format"),),
            choices=spec.formats,
        )
        options.append(format_option)
    return options


def load_function(target: str) -> Callable[..., Any]:
    """Import the function that "module:function" names."""
    function: Callable[..., Any] = load_object(target)
    return function


def load_named_function(name: str, verbs: Mapping[str, str]) -> Callable[..., Any]:
    """Import the function of a verb, or of a step, by the function's name.

    ``verbs`` has the target of each verb of a program: "module:function", or a package with ``STEPS``.
    """
    targets = list(verbs.values())
    # The target of a verb with steps is a package.
    package_names = [target for target in targets if ":" not in target]
    for package_name in package_names:
        targets += importlib.import_module(package_name).STEPS.values()
    (named_target,) = [target for target in targets if target.endswith(f":{name}")]
    return load_function(named_target)
