"""Options: the parameters of verbs, read from their annotations, and the checks of values.

An option's type, range and choices stand in the annotation of a parameter, for example
``top_k: Annotated[int, Between(low=1), Placeholder("K")] = 50``.
"""

import collections.abc
import difflib
import enum
import importlib
import inspect
import math
import numbers
import os
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union

from builders.core.errors import UsageError, shown_value

Marker = TypeVar("Marker")
# Limits of Linux, in bytes.
_LONGEST_PATH = 4_095
_LONGEST_NAME = 255


# Markers: what an annotation says besides its type, as Annotated[int, Between(low=1), Placeholder("K")].


@dataclass(frozen=True)
class Between:
    """Range of a number, both ends included."""

    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True)
class OneOf:
    """The texts that an option accepts, where ``Literal`` cannot name them because a table declares them.

    ``summary`` stands for the texts in the help, if they are many.
    """

    choices: tuple[str, ...]
    summary: str = ""


@dataclass(frozen=True)
class Parsed:
    """A value with a form of its own, for example a fraction or ORG/NAME.

    ``parse`` gets the text of the shell, or the value of a call if it is an instance of ``accepts`` (default: a text).
    ``parse`` returns the value for the verb, and raises ValueError with the expected form as its message.
    """

    parse: Callable[[Any], Any]
    accepts: tuple[type, ...] = (str,)


@dataclass(frozen=True)
class OrObject:
    """A class whose objects a call from Python may pass in place of a path.

    The class is imported only when a call passes an object, so that ``--help`` stays quick.

    Attributes:
        class_target: the class, as "module:Class".
        convert: a function that makes such an object from other forms, as "module:function", or "" for none. The
            function returns None for a value of no known form.
        forms: the other forms, for an error.
    """

    class_target: str
    convert: str = ""
    forms: str = ""


@dataclass(frozen=True)
class Placeholder:
    """The word for an option's value in the help, for example K or DIR."""

    metavar: str


@dataclass(frozen=True)
class Help:
    """The help of an option that several verbs share. Other options have their help in the verb's docstring."""

    text: str


@dataclass(frozen=True)
class Flags:
    """All names of an option on the command line, where one is not enough."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Needs:
    """Another option without which an option would be ignored, for example "tune", or "engine=elasticsearch".

    With ``=``, the other option needs this value, or a list with this value. ``or_option`` is an alternative.
    """

    option: str
    or_option: str = ""


@dataclass(frozen=True)
class Excludes:
    """Another option with which an option would be ignored, in the form of :class:`Needs`."""

    option: str


@dataclass(frozen=True)
class ShellDefault:
    """The text that the command line gives to the verb if the words lack the option.

    A call from Python has the parameter's default instead. The option's help names both.
    """

    text: str


class Use(enum.Enum):
    """Special forms of a parameter on the command line."""

    POSITIONAL = "an argument without a name"
    REQUIRED = "required on the command line, although a call from Python may omit it"
    REPEATED = "a list with one value for each use of the option"
    MAY_BE_EMPTY = "a list that may have no values after its option"
    WITH_NO = "a switch that also has a --no- form"


AtLeastOne = Annotated[int, Between(low=1)]
NotNegativeInt = Annotated[int, Between(low=0)]
NotNegative = Annotated[float, Between(low=0)]
Share = Annotated[float, Between(low=0, high=1)]
# Parameter of every verb that :mod:`.finished_outputs` makes idempotent.
Again = Annotated[bool, Help("run again, even if the output of the same call is there (default: no)")]


@dataclass(frozen=True)
class Option:
    """A parameter of a verb.

    Attributes:
        name: the parameter's name in Python.
        value_type: type of the value, or of each value of a list.
        default: the default, or ``inspect.Parameter.empty`` for a parameter without default.
        optional: True if the value may be None.
        is_list: True if the parameter takes several values.
        markers: the markers of the annotation.
        choices: the accepted texts, or () if any text is accepted.
    """

    name: str
    value_type: type
    default: Any
    optional: bool
    is_list: bool
    markers: tuple[Any, ...]
    choices: tuple[str, ...] = ()

    def marker(self, marker_class: type[Marker]) -> Marker | None:
        """Return the annotation's marker of a class. An outer marker hides an inner marker of the same class."""
        for marker in self.markers:
            if isinstance(marker, marker_class):
                return marker
        return None

    @property
    def positional(self) -> bool:
        return Use.POSITIONAL in self.markers

    @property
    def required(self) -> bool:
        """True if the command line must give the option."""
        return self.default is inspect.Parameter.empty or Use.REQUIRED in self.markers

    @property
    def flags(self) -> tuple[str, ...]:
        """Names on the command line. A positional parameter has its placeholder as its only name."""
        if self.positional:
            return (self.metavar,)
        declared_flags = self.marker(Flags)
        if declared_flags:
            return declared_flags.names
        return ("--" + self.name.replace("_", "-"),)

    @property
    def negative_flag(self) -> str:
        """The name on the command line that turns a switch off."""
        return f"--no-{self.flags[0].removeprefix('--')}"

    @property
    def metavar(self) -> str:
        """The word for a value in the help."""
        declared_word = self.marker(Placeholder)
        if declared_word:
            return declared_word.metavar
        word_by_type = {int: "N", float: "X", Path: "PATH"}
        return word_by_type.get(self.value_type, self.name.upper().replace("_", "-"))

    @property
    def shell_type(self) -> type:
        """The type for completion on the command line: a path, or a text."""
        return Path if self.value_type is Path else str

    def plain_annotation(self) -> Any:
        """Return the type without markers, for a signature that people read."""
        annotation: Any = self.value_type
        if self.value_type is Path:
            annotation = str | Path
        elif self.choices:
            annotation = Literal[self.choices]
        if self.is_list:
            annotation = collections.abc.Sequence[annotation]
        return annotation | None if self.optional else annotation

    def expected_value(self) -> str:
        """Describe a value that the option accepts, or each value of a list, for an error."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.value_type in (int, float):
            return self._expected_number()
        object_marker = self.marker(OrObject)
        if object_marker:
            accepted_forms = ["a path", f"a {object_marker.class_target.partition(':')[2]}"]
            if object_marker.forms:
                accepted_forms.append(object_marker.forms)
            return " or ".join(accepted_forms)
        noun_by_type = {bool: "True or False", str: "a text", Path: "a path", Fraction: "a number"}
        return noun_by_type.get(self.value_type, self.value_type.__name__)

    def _expected_number(self) -> str:
        """Describe the numbers that the option accepts. No option has a highest value without a lowest one."""
        noun = "a whole number" if self.value_type is int else "a number"
        number_range = self.marker(Between) or Between()
        if not math.isfinite(number_range.low):
            return noun
        if not math.isfinite(number_range.high):
            return f"{noun} of at least {number_range.low:g}"
        return f"{noun} from {number_range.low:g} to {number_range.high:g}"


def read_option(parameter: inspect.Parameter) -> Option:
    """Return the option that a verb's parameter declares by its annotation and its default."""
    annotation = parameter.annotation
    markers: list[Any] = []
    is_optional = False
    is_list = False
    # Unwrap the annotation from the outside in, for example Annotated[Sequence[Annotated[str, ...]], ...] | None.
    while True:
        origin = typing.get_origin(annotation)
        type_arguments = typing.get_args(annotation)
        if origin is Annotated:
            markers += reversed(annotation.__metadata__)  # the outermost first
            annotation = type_arguments[0]
        elif origin in (Union, types.UnionType):
            is_optional = type(None) in type_arguments
            (annotation,) = [argument for argument in type_arguments if argument is not type(None)]
        elif origin in (list, tuple, collections.abc.Sequence):
            is_list = True
            annotation = type_arguments[0]
        else:
            break
    # Choices are either in the type, or in a marker.
    choices: tuple[str, ...] = ()
    if origin is Literal:
        choices = type_arguments
        annotation = str
    for marker in markers:
        if isinstance(marker, OneOf):
            choices = marker.choices
    return Option(parameter.name, annotation, parameter.default, is_optional, is_list, tuple(markers), choices)


def did_you_mean(word: str, known_words: collections.abc.Iterable[str]) -> str:
    """Return "; did you mean X?" for the known word that is most like ``word``, or "" if none is like it."""
    for similar_word in difflib.get_close_matches(word, list(known_words), n=1):
        return f"; did you mean {similar_word}?"
    return ""


def check_combination(options: Mapping[str, Option], arguments: Mapping[str, Any], *, from_shell: bool) -> None:
    """Raise :class:`UsageError` for a given option that would be ignored, because of another option.

    Args:
        options: the options of a verb by name.
        arguments: the checked arguments of a call by name.
        from_shell: name options as on the command line.
    """

    def is_set(condition: str) -> bool:
        """True if the call meets a condition: "NAME" (the option is given) or "NAME=TEXT" (it has this value)."""
        name, equals_sign, expected_text = condition.partition("=")
        value = arguments.get(name, options[name].default)
        if equals_sign:
            if isinstance(value, tuple):
                return expected_text in value
            return bool(value == expected_text)
        if value == ():
            # If the default is None, an empty list means that the option was given without words: `--list` alone.
            return options[name].default is None
        return value is not None and value is not False

    def spell(condition: str) -> str:
        """Return a condition as a user writes it."""
        name, equals_sign, expected_text = condition.partition("=")
        if from_shell:
            return f"{options[name].flags[0]} {expected_text}".strip()
        if equals_sign:
            return f"{name}={expected_text!r}"
        return name

    # An option with its default value asks for nothing, so nothing is ignored.
    for name, value in arguments.items():
        option = options[name]
        if not is_set(name) or value == option.default:
            continue
        for marker in option.markers:
            if isinstance(marker, Excludes) and is_set(marker.option):
                raise UsageError(f"{spell(name)} and {spell(marker.option)} exclude each other")
            if isinstance(marker, Needs):
                conditions = [condition for condition in (marker.option, marker.or_option) if condition]
                if not any(map(is_set, conditions)):
                    raise UsageError(f"{spell(name)} needs {' or '.join(map(spell, conditions))}")


def check_value(option: Option, value: Any, label: str) -> Any:
    """Return an argument in the form that the verb's body expects: paths as ``Path``, lists as tuples.

    Raises :class:`UsageError`, in which ``label`` names the option.
    """
    if value is None and option.optional:
        return None
    if not option.is_list:
        return check_one_value(option, value, label)
    if not isinstance(value, list | tuple):
        raise UsageError(f"{label}: expected a list, each {option.expected_value()}, found {shown_value(value)}")
    may_be_empty = option.default == () or Use.MAY_BE_EMPTY in option.markers
    if not value and not may_be_empty:
        raise UsageError(f"{label}: expected a list with at least one value, found {value!r}")
    return tuple(check_one_value(option, element, label) for element in value)


def check_one_value(option: Option, value: Any, label: str) -> Any:
    """Return a value, or one value of a list, in the form that the verb's body expects.

    Raises :class:`UsageError`, in which ``label`` names the option.
    """
    _expect_usable_text(option, value, label)
    # A value with a form of its own. True counts as an int in Python, but is no number here.
    parsed_form = option.marker(Parsed)
    if parsed_form and isinstance(value, parsed_form.accepts) and not isinstance(value, bool):
        return _parse_own_form(parsed_form, value, label)

    # An object in place of a path.
    object_marker = option.marker(OrObject)
    is_path = isinstance(value, str | os.PathLike)
    if object_marker and not is_path:
        if isinstance(value, load_object(object_marker.class_target)):
            return value
        if object_marker.convert:
            converted = load_object(object_marker.convert)(value)
            if converted is not None:
                return converted

    # A value of the option's type, within its choices or range.
    typed_value = _as_type(option.value_type, value)
    number_range = option.marker(Between) or Between()
    is_accepted = typed_value is not None and (not option.choices or typed_value in option.choices)
    if is_accepted and option.value_type in (int, float):
        is_accepted = number_range.low <= typed_value <= number_range.high
    if not is_accepted:
        hint = ""
        if isinstance(value, str):
            hint = did_you_mean(value, option.choices)
        raise UsageError(f"{label}: expected {option.expected_value()}, found {shown_value(value)}{hint}")
    return typed_value


def from_text(option: Option, text: str, label: str) -> Any:
    """Return the value that ``text``, a word of the command line, stands for, checked as :func:`check_one_value` does.

    Raises :class:`UsageError`, in which ``label`` names the option.
    """
    parsed_form = option.marker(Parsed)
    if parsed_form:
        _expect_usable_text(option, text, label)
        return _parse_own_form(parsed_form, text, label)
    # Python's own int and float read numbers, for example 1_000 and 1e-3.
    value: Any = text
    if option.value_type in (int, float):
        try:
            value = option.value_type(text)
        except ValueError:
            raise UsageError(f"{label}: expected {option.expected_value()}, found {shown_value(text)}") from None
    return check_one_value(option, value, label)


def _parse_own_form(parsed_form: Parsed, value: Any, label: str) -> Any:
    """Return the parsed value. Raises :class:`UsageError` with ``label`` (the option) and the expected form."""
    try:
        return parsed_form.parse(value)
    except ValueError as error:
        raise UsageError(f"{label}: expected {error}, found {shown_value(value)}") from None


def _as_type(value_type: type, value: Any) -> Any:
    """Return the value as ``value_type``, or None if the value has another type."""
    is_bool = type(value).__name__ == "bool"  # Python's or NumPy's
    if is_bool and value_type in (int, float):  # a truth value is no number here
        return None
    if value_type is bool and is_bool:
        return bool(value)
    if value_type is int and isinstance(value, numbers.Integral):
        return int(value)
    if value_type is float and isinstance(value, numbers.Real):
        return _finite_float(value)
    if value_type is Path and isinstance(value, str | os.PathLike):
        return _usable_path(value)
    if value_type not in (bool, int, float, Path) and isinstance(value, value_type):
        return value
    return None


def _finite_float(value: numbers.Real) -> float | None:
    """Return a number as a float; None if it is infinite, NaN or too large."""
    try:
        number = float(value)
    except OverflowError:  # an integer beyond the largest float
        return None
    return number if math.isfinite(number) else None


def _usable_path(value: str | os.PathLike[str]) -> Path | None:
    """Return the path, or None for an empty text, which would mean the current folder, and for a null character."""
    text = os.fspath(value)
    return Path(text) if text and "\0" not in text else None


def _expect_usable_text(option: Option, value: Any, label: str) -> None:
    """Raise :class:`UsageError` for a text or a path that later functions could not encode, or not open."""
    if not isinstance(value, str | os.PathLike):
        return
    parsed_form = option.marker(Parsed)
    is_path = option.value_type is Path or (parsed_form is not None and os.PathLike in parsed_form.accepts)
    expected = ""
    # Find out whether Python can encode the value: for the file system if it is a path, otherwise as UTF-8.
    try:
        text: Any = os.fspath(value)
        if not isinstance(text, str):
            expected = "a path that is a text"
        elif is_path:
            if not _has_path_length(text):
                expected = f"a path of at most {_LONGEST_PATH:,} bytes, with names of at most {_LONGEST_NAME} bytes"
        else:
            text.encode()
    except UnicodeEncodeError:
        expected = "a text without surrogates"
    except TypeError:  # from an object's own __fspath__
        expected = "a path"
    if expected:
        raise UsageError(f"{label}: expected {expected}, found {shown_value(value)}")


def _has_path_length(path_text: str) -> bool:
    """True if the system accepts a path of this length. Raise UnicodeEncodeError for a path without an encoding."""
    path_bytes = os.fsencode(path_text)  # a file's name may have bytes that are not UTF-8
    file_names = path_bytes.split(os.fsencode(os.sep))
    return len(path_bytes) <= _LONGEST_PATH and max(map(len, file_names)) <= _LONGEST_NAME


def load_object(target: str) -> Any:
    """Import the class or function that "module:name" names."""
    module_name, _, object_name = target.partition(":")
    return getattr(importlib.import_module(module_name), object_name)
