"""Options: the parameters of verbs, read from their annotations, and the checks of values.

An option's type, range and choices stand in the annotation of a parameter, for example
``top_k: Annotated[int, Between(low=1), Shown("K")] = 50``.
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
_LONGEST_PATH, _LONGEST_NAME = 4_095, 255  # bytes, the limits of Linux


# Markers: what an annotation says besides its type, as Annotated[int, Between(low=1), Shown("K")].


@dataclass(frozen=True)
class Between:
    """Range of a number, both ends included."""

    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True)
class OneOf:
    """The texts that an option accepts, where ``Literal`` cannot name them because a table declares them."""

    choices: tuple[str, ...]


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
        place: the class, as "module:Class".
        convert: a function that makes such an object from other forms, as "module:function", or "" for none. The
            function returns None for a value of no known form.
        forms: the other forms, for an error.
    """

    place: str
    convert: str = ""
    forms: str = ""


@dataclass(frozen=True)
class Shown:
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

    def marker(self, kind: type[Marker]) -> Marker | None:
        """Return the annotation's marker of a class. An outer marker hides an inner marker of the same class."""
        return next((marker for marker in self.markers if isinstance(marker, kind)), None)

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
        flags = self.marker(Flags)
        return flags.names if flags else ("--" + self.name.replace("_", "-"),)

    @property
    def metavar(self) -> str:
        """The word for a value in the help."""
        shown = self.marker(Shown)
        if shown:
            return shown.metavar
        by_type = {int: "N", float: "X", Path: "PATH"}
        return by_type.get(self.value_type, self.name.upper().replace("_", "-"))

    @property
    def shell_type(self) -> type:
        """The type for completion on the command line: a path, or a text."""
        return Path if self.value_type is Path else str

    def plain_annotation(self) -> Any:
        """Return the type without markers, for a signature that people read."""
        annotation: Any = Literal[self.choices] if self.choices else self.value_type
        if self.value_type is Path:
            annotation = str | Path
        if self.is_list:
            annotation = collections.abc.Sequence[annotation]
        return annotation | None if self.optional else annotation

    def expected_value(self) -> str:
        """Describe a value that the option accepts, or each value of a list, for an error."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.value_type in (int, float):
            noun = "a whole number" if self.value_type is int else "a number"
            limits = self.marker(Between) or Between()
            if math.isfinite(limits.low) and math.isfinite(limits.high):
                return f"{noun} from {limits.low:g} to {limits.high:g}"
            if math.isfinite(limits.low):
                return f"{noun} of at least {limits.low:g}"
            return noun
        nouns = {bool: "True or False", str: "a text", Path: "a path", Fraction: "a number"}
        described = nouns.get(self.value_type, self.value_type.__name__)
        if other := self.marker(OrObject):
            names = ["a path", f"a {other.place.partition(':')[2]}", *([other.forms] if other.forms else [])]
            described = " or ".join(names)
        return described


def read_option(parameter: inspect.Parameter) -> Option:
    """Read the option that a parameter declares by its annotation and its default."""
    annotation, markers, optional, is_list = parameter.annotation, list[Any](), False, False
    while True:
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is Annotated:
            markers += reversed(annotation.__metadata__)  # the outermost first
            annotation = arguments[0]
        elif origin in (Union, types.UnionType):
            optional = type(None) in arguments
            (annotation,) = [each for each in arguments if each is not type(None)]
        elif origin in (list, tuple, collections.abc.Sequence):
            is_list = True
            annotation = arguments[0]
        else:
            break
    choices: tuple[str, ...] = ()
    if origin is Literal:
        choices = arguments
        annotation = str
    for marker in markers:
        if isinstance(marker, OneOf):
            choices = marker.choices
    return Option(parameter.name, annotation, parameter.default, optional, is_list, tuple(markers), choices)


def did_you_mean(word: str, known: collections.abc.Iterable[str]) -> str:
    """Return "; did you mean X?" for the known word that is most like ``word``, or "" if none is like it."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def check_combination(options: Mapping[str, Option], arguments: Mapping[str, Any], *, from_shell: bool) -> None:
    """Raise :class:`UsageError` for a given option that would be ignored, because of another option.

    Args:
        options: the options of a verb by name.
        arguments: the checked arguments of a call by name.
        from_shell: name options as on the command line.
    """

    def is_set(condition: str) -> bool:
        name, has_value, expected = condition.partition("=")
        value = arguments.get(name, options[name].default)
        if has_value:
            return expected in value if isinstance(value, tuple) else bool(value == expected)
        # An empty list is a value where the default is None: `--list` alone.
        return value is not None and value is not False and (value != () or options[name].default is None)

    def spell(condition: str) -> str:
        name, has_value, expected = condition.partition("=")
        if from_shell:
            return f"{options[name].flags[0]} {expected}".strip()
        return f"{name}={expected!r}" if has_value else name

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
    return tuple(check_one_value(option, each, label) for each in value)


def check_one_value(option: Option, value: Any, label: str) -> Any:
    """Check a value, or one value of a list, as :func:`check_value` does."""
    parsed, object_class = option.marker(Parsed), option.marker(OrObject)
    _expect_usable_text(option, value, label)
    if parsed and isinstance(value, parsed.accepts) and not isinstance(value, bool):
        return _parse_own_form(parsed, value, label)
    is_path = isinstance(value, str | os.PathLike)
    if object_class and not is_path:
        if isinstance(value, load_object(object_class.place)):
            return value
        converted = load_object(object_class.convert)(value) if object_class.convert else None
        if converted is not None:
            return converted
    typed_value = _as_type(option.value_type, value)
    limits = option.marker(Between) or Between()
    is_accepted = typed_value is not None and (not option.choices or typed_value in option.choices)
    if is_accepted and option.value_type in (int, float):
        is_accepted = limits.low <= typed_value <= limits.high
    if not is_accepted:
        near = did_you_mean(value, option.choices) if isinstance(value, str) else ""
        raise UsageError(f"{label}: expected {option.expected_value()}, found {shown_value(value)}{near}")
    return typed_value


def from_text(option: Option, text: str, label: str) -> Any:
    """Return the value that a word of the command line stands for, checked as :func:`check_value` does."""
    parsed = option.marker(Parsed)
    if parsed:
        _expect_usable_text(option, text, label)
        return _parse_own_form(parsed, text, label)
    value: Any = text
    if option.value_type in (int, float):
        try:
            value = option.value_type(text)
        except ValueError:
            raise UsageError(f"{label}: expected {option.expected_value()}, found {shown_value(text)}") from None
    return check_one_value(option, value, label)


def _parse_own_form(parsed: Parsed, value: Any, label: str) -> Any:
    try:
        return parsed.parse(value)
    except ValueError as error:
        raise UsageError(f"{label}: expected {error}, found {shown_value(value)}") from None


def _as_type(value_type: type, value: Any) -> Any:
    """Return the value as ``value_type``, or None if the value has another type."""
    is_bool = type(value).__name__ == "bool"  # Python's or NumPy's; a truth value is no number here
    if value_type is bool:
        return bool(value) if is_bool else None
    if value_type is int:
        return int(value) if isinstance(value, numbers.Integral) and not is_bool else None
    if value_type is float:
        return _finite_float(value) if isinstance(value, numbers.Real) and not is_bool else None
    if value_type is Path:
        return _usable_path(value) if isinstance(value, str | os.PathLike) else None
    return value if isinstance(value, value_type) else None


def _finite_float(value: numbers.Real) -> float | None:
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
    parsed = option.marker(Parsed)
    is_path = option.value_type is Path or (parsed is not None and os.PathLike in parsed.accepts)
    expected = ""
    try:
        text: Any = os.fspath(value)
        if not isinstance(text, str):
            expected = "a path that is a text"
        elif is_path:
            encoded = os.fsencode(text)  # a file's name may have bytes that are not UTF-8
            if len(encoded) > _LONGEST_PATH or max(map(len, encoded.split(os.fsencode(os.sep)))) > _LONGEST_NAME:
                expected = f"a path of at most {_LONGEST_PATH:,} bytes, with names of at most {_LONGEST_NAME} bytes"
        else:
            text.encode()
    except UnicodeEncodeError:
        expected = "a text without surrogates"
    except TypeError:  # from an object's own __fspath__
        expected = "a path"
    if expected:
        raise UsageError(f"{label}: expected {expected}, found {shown_value(value)}")


def load_object(place: str) -> Any:
    """Import the class or function that "module:name" names."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
