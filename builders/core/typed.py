"""Read JSON and TOML as typed values. A msgspec type declares a file's content, and the content is validated.

An error names the field, the value that was found, and the expected value.

This module reads all untrusted JSON. Content that some JSON readers reject is an error: NaN, half a surrogate pair,
invalid UTF-8, and counts that do not fit into 64 bits."""

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct, inspect

from builders.core.errors import UNSAFE, InputError, shown_value
from builders.core.file_formats import HEAD_BYTES, describe_encoding, is_utf16
from builders.core.paths import kind_of
from builders.core.read_files import BOM, raw_lines, read_all

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
NotNegativeNumber = Annotated[float, Meta(ge=0)]
Proportion = Annotated[float, Meta(ge=0, le=1)]
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
# A key that is safe in a table of a card, for example the name of a config, a split or a set.
PlainName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9+_.-]{0,99}\Z")]
T = TypeVar("T")

_HALF_PAIR = re.compile(rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])")
ANY_KEY = "[...]"  # msgspec's words for any key of a dictionary
# The field at the end of msgspec's messages.
_FIELD = re.compile(r" - at (?:`key` in )?`\$([^`]*)`\Z")
# A part of such a field: a name, a position, or ANY_KEY.
_KEY = re.compile(r"[^.\[\]]+|\[(?:\d+|\.\.\.)\]")
LONGEST = 1_000  # characters of a file name; the project's own names have fewer than 100
# msgspec's names of types, in the words of this project.
_JSON_NAMES = {"object": "a JSON object", "array": "a JSON list", "str": "a text", "int": "a number"}
_DRIVE = re.compile(r"[A-Za-z]:")
# A key of an object (group 1, without its colon), another text, or a bracket.
_JSON_TOKEN = re.compile(rb'("[^"\\]*(?:\\.[^"\\]*)*")\s*:|"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)


def read_json(file_path: Path, value_type: type[T], remedy: str = "") -> T:
    """Read a JSON file as ``value_type``, a msgspec type. Fields that the type does not declare are ignored.

    Raises:
        InputError: names the file, the line or field, and the expected content. For wrong content, the message ends
            with ``remedy``.
        FileNotFoundError, NotADirectoryError: the file does not exist. The caller reports the missing file.
    """
    return json_of(_read_file(file_path), value_type, file_path, remedy=remedy)


def read_object(file_path: Path, value_type: type[Struct]) -> dict[str, Any]:
    """Read a JSON object completely, and validate the fields that ``value_type`` declares.

    Undeclared fields, for example of later versions, are returned as well. Errors are those of :func:`read_json`.
    """
    content = _read_file(file_path)
    json_of(content, value_type, file_path)
    return json_of(content, dict[str, Any], file_path)


def _read_file(file_path: Path) -> bytes:
    """Return the bytes of a regular file.

    Raises FileNotFoundError or NotADirectoryError for a missing file, and :class:`InputError` for one that cannot be
    read.
    """
    # Reading a pipe could block; reading a directory fails below.
    if kind_of(file_path) not in ("", "directory"):
        raise InputError("is a device or a pipe; expected a regular file", path=file_path)
    try:
        with open(file_path, "rb") as file:
            return read_all(file, file_path)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=file_path) from error


def json_of(content: bytes, value_type: type[T], file_path: Path | str, line: int | None = None, remedy: str = "") -> T:
    """Decode the JSON of a file, or of the line number ``line`` of a file of JSON lines.

    ``value_type`` is the msgspec type of the returned value. Raises :class:`InputError` with the file, the line or
    field, the expected content, and ``remedy`` at its end.
    """
    ending = _remedy_ending(remedy)
    # The positions in msgspec's messages do not count it either.
    content = content.removeprefix(BOM)
    try:
        if not content.isascii():
            content.decode()  # msgspec does not validate the UTF-8 of ignored fields
        return msgspec.json.decode(content, type=value_type)
    except msgspec.ValidationError as error:
        problem = _describe_json_fault(content, value_type, str(error))
        if line is not None and problem.endswith("found a JSON list"):
            problem += "; write one value a line, without a list around the lines"
        raise InputError(f"{problem}{ending}", path=file_path, line=line) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        line_in_content, problem = _locate_json_error(content, str(error), is_line=line is not None)
        raise InputError(f"{problem}{ending}", path=file_path, line=line or line_in_content) from None
    except RecursionError:
        raise InputError(f"lists and objects are nested too deeply{ending}", path=file_path, line=line) from None


def json_lines(file_path: Path, value_type: type[T], remedy: str = "") -> Iterator[tuple[int, T]]:
    """Yield (line number, value of the type ``value_type``) of every line that is not blank.

    Gzipped files are decompressed. Raises :class:`InputError` with the line, and ``remedy`` at its end.
    """
    for number, line in raw_lines(file_path):
        if line.strip():
            yield number, json_of(line, value_type, file_path, number, remedy)


def unique_json_of(line_content: bytes, value_type: type[T], file_path: Path, line: int, remedy: str = "") -> T:
    """Decode a line of JSON lines as :func:`json_of` does. Raise :class:`InputError` also for a repeated key."""
    row = json_of(line_content, dict[str, Any], file_path, line, remedy)
    expect_unique_keys(line_content, count_keys(row), file_path, line)
    return convert_to(row, value_type, f"{file_path}:{line}", remedy=remedy)


def convert_to(
    content: Any,
    value_type: type[T],
    file_path: Path | str,
    *,
    from_text: bool = False,
    field: str = "",
    remedy: str = "",
) -> T:
    """Convert the result of a JSON or TOML reader to ``value_type``, a msgspec type with constraints.

    With ``from_text``, numbers and booleans may be strings. ``field`` is the field of the file that has ``content``
    (default: the whole file). Raises :class:`InputError` with ``file_path``, the field, the found and expected values,
    and ``remedy`` at its end.
    """
    try:
        return msgspec.convert(content, value_type, strict=not from_text)
    except msgspec.ValidationError as error:
        problem = _describe_fault(content, value_type, str(error), strict=not from_text, field=field)
        raise InputError(f"{problem}{_remedy_ending(remedy)}", path=file_path) from error


def _remedy_ending(remedy: str) -> str:
    return f"; {remedy}" if remedy else ""


def _describe_json_fault(content: bytes, value_type: Any, msgspec_message: str) -> str:
    """Describe the wrong value of a JSON text, for which msgspec printed ``msgspec_message``."""
    try:
        values = msgspec.json.decode(content)
    except (msgspec.MsgspecError, RecursionError):  # a number that is out of range, for example
        return _rewrite_message(msgspec_message, value_type, _message_keys(msgspec_message))
    return _describe_fault(values, value_type, msgspec_message)


def _describe_fault(
    content: Any, value_type: Any, msgspec_message: str, *, strict: bool = True, field: str = ""
) -> str:
    """Describe the wrong value of ``content``: the field with all keys, the expected value and the found value.

    ``content`` is decoded JSON or TOML that should have the type ``value_type``, or the value of the file's field
    ``field``. Without ``strict``, numbers and booleans may be strings. If the wrong value cannot be found
    in ``content``, the description has only what msgspec's message says.
    """
    keys = _message_keys(msgspec_message)
    # The reader of JSON may check in another order than this conversion, and then the value is unknown.
    if _validation_message(content, value_type, strict) != msgspec_message:
        return _rewrite_message(msgspec_message, value_type, keys, field=field)
    try:
        key_names, wrong_value = _follow_keys(keys, content, value_type, msgspec_message, strict)
    except (LookupError, TypeError):  # a field's name looks like msgspec's words
        return _rewrite_message(msgspec_message, value_type, [], field=field)
    return _rewrite_message(msgspec_message, value_type, key_names, _describe_value(wrong_value), field=field)


def _follow_keys(
    keys: list[str], content: Any, value_type: Any, msgspec_message: str, strict: bool
) -> tuple[list[str], Any]:
    """Return (``keys`` with the true keys of dictionaries, the value that ``msgspec_message`` is about).

    ``keys`` are those of :func:`_message_keys`. In the result, :data:`ANY_KEY` is replaced by the dictionary's true key
    with a dot before it, or in brackets if the key is not plain: ``.dev``, ``['a b']``. By this first character,
    :func:`_allowed_words` tells the key of a dictionary from the name of a field.
    """
    parents: list[tuple[Any, Any]] = []
    key_names: list[str] = []
    value = content
    for key in keys:
        if key == ANY_KEY:
            true_key: Any = _wrong_key(value, parents, value_type, msgspec_message, strict)
            is_plain = re.fullmatch(r"[\w+-]{1,100}", true_key)
            key_names.append(f".{true_key}" if is_plain else f"[{shown_value(true_key)}]")
        else:
            true_key = int(key[1:-1]) if key.startswith("[") else key
            key_names.append(key)
        parents.append((value, true_key))
        value = value[true_key]
    # The message may be about a key itself, and then names only the dictionary.
    if " - at `key` in " in msgspec_message:
        value = _wrong_key(value, parents, value_type, msgspec_message, strict)
    return key_names, value


def _validation_message(content: Any, value_type: Any, strict: bool) -> str:
    """Return the message of msgspec for ``content``, or "" if the content is valid."""
    try:
        msgspec.convert(content, value_type, strict=strict)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def _wrong_key(value: Any, parents: list[tuple[Any, Any]], value_type: Any, msgspec_message: str, strict: bool) -> Any:
    """Return the first key of ``value`` for which msgspec prints ``msgspec_message``, which names no key.

    ``value`` is a dictionary in a content that should have the type ``value_type``. ``parents`` are the containers
    around ``value`` with their keys, from the outside in. The entries are validated in order. So a bisection finds the
    smallest number of entries that have the fault.
    """
    if not isinstance(value, dict):
        raise TypeError("not a dictionary")
    low = 1
    high = len(value)
    while low < high:
        middle = (low + high) // 2
        # Rebuild the whole content with only the first entries of the dictionary.
        shortened: Any = dict(islice(value.items(), middle))
        for container, key in reversed(parents):
            container_copy = container.copy()
            container_copy[key] = shortened
            shortened = container_copy
        if _validation_message(shortened, value_type, strict) == msgspec_message:
            high = middle
        else:
            low = middle + 1
    return next(islice(value, low - 1, None))


def _describe_value(value: Any) -> str:
    """Return a wrong value as a short text for an error. Lists and objects are only named."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return shown_value(value)


def expect_unique_keys(content: bytes, key_count: int, file_path: Path | str, line: int | None = None) -> None:
    """Raise :class:`InputError` with the line if an object of valid JSON has a key twice.

    msgspec silently keeps the last value of a repeated key.

    Args:
        content: the JSON of a file, or of one ``line`` of a file.
        key_count: the number of keys of all objects after decoding.
        file_path: the name of the file in the error.
        line: the number of the line that ``content`` is.
    """
    # Every key has a colon, also the keys that msgspec dropped. So equal numbers mean that no key is repeated. A text
    # may have a colon, too, so another number needs the slow search.
    if content.count(b":") == key_count:
        return
    repeated = repeated_key(content)
    if repeated is not None:
        key, line_in_content = repeated
        problem = f"the key {shown_value(key)} occurs twice; expected every key once: remove one of the two"
        raise InputError(problem, path=file_path, line=line or line_in_content)


def count_keys(value: Any) -> int:
    """Return the number of keys of all objects in a decoded JSON value."""
    key_count = 0
    waiting = [value]  # a list in place of recursion, because the nesting may be deep
    while waiting:
        container = waiting.pop()
        if isinstance(container, dict):
            key_count += len(container)
            waiting += [inner for inner in container.values() if isinstance(inner, dict | list)]
        elif isinstance(container, list):
            waiting += [inner for inner in container if isinstance(inner, dict | list)]
    return key_count


def repeated_key(content: bytes) -> tuple[str, int] | None:
    """Return the first key that occurs twice in an object of valid JSON, and its second line. None if there is none."""
    open_objects: list[set[str] | None] = []  # the keys of each open object, and None for a list
    for token in _JSON_TOKEN.finditer(content):
        text = token[0]
        if text == b"{":
            open_objects.append(set())
        elif text == b"[":
            open_objects.append(None)
        elif text in (b"}", b"]"):
            open_objects.pop()
        elif token[1] is not None:  # a text before a colon
            key = json.loads(token[1])
            keys = open_objects[-1]
            assert keys is not None
            if key in keys:
                return key, _line_at(content, token.start())
            keys.add(key)
    return None


def describe_json_error(content: bytes, msgspec_message: str, *, is_line: bool) -> str:
    """Describe content that is not JSON, from msgspec's message. ``is_line``: a line of JSON lines."""
    _, description = _locate_json_error(content, msgspec_message, is_line=is_line)
    return description


def _locate_json_error(content: bytes, msgspec_message: str, *, is_line: bool) -> tuple[int | None, str]:
    """Return (line number or None, description) of a JSON error from msgspec's message."""
    # The content is no text in UTF-8.
    if is_utf16(content[:HEAD_BYTES]):
        return 1, describe_encoding(content)
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return _line_at(content, error.start), describe_encoding(content)

    # JSON lines and JSON were confused.
    first_byte = content.removeprefix(BOM).strip()[:1]
    if is_line and "truncated" in msgspec_message and first_byte in (b"[", b"{"):
        container = "list" if first_byte == b"[" else "object"
        problem = f"expected JSON lines, found a JSON {container} that does not end in this line"
        return None, f"{problem}; write one value a line, without a list around the lines"
    if not is_line and "trailing characters" in msgspec_message:
        problem = "expected one JSON value, found more text after its end; remove the text, or join the values"
        return _line_in_message(content, msgspec_message), f"{problem} ({msgspec_message})"

    half_pair = _HALF_PAIR.search(content)
    if half_pair:  # msgspec's message may be misleading here
        problem = f"expected JSON, found half a surrogate pair ({half_pair[0].decode()})"
        return _line_at(content, half_pair.start()), problem
    return _line_in_message(content, msgspec_message), f"expected JSON ({msgspec_message})"


def _line_in_message(content: bytes, msgspec_message: str) -> int | None:
    """Return the number of the line in ``content`` whose byte msgspec's message names; None without a byte."""
    byte = re.search(r" \(byte (\d+)\)", msgspec_message)
    return _line_at(content, int(byte[1])) if byte else None


def _line_at(content: bytes, position: int) -> int:
    return content.count(b"\n", 0, position) + 1


def _message_keys(msgspec_message: str) -> list[str]:
    """Return the keys that lead to the wrong value in msgspec's message: names, positions ``[3]`` and :data:`ANY_KEY`.

    For example, the message "Expected `int`, got `str` - at `$.splits[...][3]`" has the keys splits, [...] and [3].
    """
    field_match = _FIELD.search(msgspec_message)
    if not field_match:
        return []
    return _KEY.findall(field_match[1])


def _rewrite_message(
    msgspec_message: str, value_type: Any, keys: list[str], found_value: str = "", *, field: str = ""
) -> str:
    """Rewrite msgspec's message: the field comes first, and the allowed names or values are listed.

    ``keys`` lead to the wrong value. They are those of :func:`_message_keys`, or those of :func:`_follow_keys`, in
    which the true key of a dictionary begins with a dot or a bracket. ``found_value`` is empty if the value is unknown.
    ``field`` is the field of the file that holds the converted value, so it comes before the keys; it is empty if the
    whole file is converted.
    """
    problem = _rewrite_problem(msgspec_message, value_type, keys, found_value)
    # Without the dots of dictionaries' keys, because all parts are joined by dots, except those in brackets.
    parts = [key.removeprefix(".") for key in keys]
    if field:
        parts.insert(0, field)
    full_field = ".".join(parts).replace(".[", "[")
    return f"{full_field}: {problem}" if full_field else problem


def _rewrite_problem(msgspec_message: str, value_type: Any, keys: list[str], found_value: str) -> str:
    """Rewrite msgspec's message without its field. The parameters are those of :func:`_rewrite_message`."""
    plain_message = _FIELD.sub("", msgspec_message)
    expectation, _, found_type = plain_message.partition(", got ")
    found_suffix = f", found {found_value}" if found_value else ""

    # Keys and values of which the type allows only some.
    unknown_key = re.fullmatch(r"Object contains unknown field `(.*)`", expectation, re.DOTALL)
    if unknown_key:
        return f"unknown key {unknown_key[1]!r}; expected {_allowed_words(value_type, keys)}"
    absent_key = re.fullmatch(r"Object missing required field `(.*)`", expectation)
    if absent_key:
        return f"lacks {absent_key[1]}"
    wrong_choice = re.fullmatch(r"Invalid enum value (.*)", expectation, re.DOTALL)
    if wrong_choice:
        allowed = _allowed_words(value_type, keys)
        expected = f"one of {allowed}" if ", " in allowed else allowed
        advice = ""
        if keys and keys[-1] == "format" and wrong_choice[1].isdigit():
            advice = "; if a later version wrote the file, upgrade dureader-retrieval"
        return f"expected {expected}, found {wrong_choice[1]}{advice}"

    # The patterns of Sha256 and PlainName, which users cannot be expected to read.
    if " matching regex " in expectation and "[0-9a-f]{64}" in expectation:
        return f"expected a SHA-256 in hex{found_suffix}"
    if " matching regex " in expectation and "[A-Za-z0-9+_.-]" in expectation:
        return f"expected a name of at most 100 ASCII letters, digits and signs of +-._{found_suffix}"

    # The type of the whole file or line.
    wrong_type = re.fullmatch(r"Expected `(\w+)`, got `(\w+)`", plain_message)
    if wrong_type and not keys:
        expected_type = _JSON_NAMES.get(wrong_type[1], wrong_type[1])
        allowed_words = _allowed_words(value_type, keys)
        if allowed_words:
            expected_type += f" ({allowed_words})"
        return f"expected {expected_type}, found {_JSON_NAMES.get(wrong_type[2], wrong_type[2])}"

    if expectation.endswith(" out of range"):
        return "expected a number of at most 64 bits"
    if not expectation.startswith("Expected "):
        return plain_message[:1].lower() + plain_message[1:]
    if not found_suffix and found_type:
        found_suffix = f", got {found_type}"
    return expectation[:1].lower() + expectation[1:] + found_suffix


def _allowed_words(value_type: Any, keys: list[str]) -> str:
    """Return the names of an object's fields, or the values of a choice, at ``keys`` in a type; "" for other types.

    A key that begins with a dot or a bracket is one of a dictionary or a list (:func:`_follow_keys`).
    """
    current_type: Any = inspect.type_info(value_type)
    for key in keys:
        if isinstance(current_type, inspect.StructType) and not key.startswith(("[", ".")):
            types_by_name = {field.encode_name: field.type for field in current_type.fields}
            current_type = types_by_name.get(key)
        elif isinstance(current_type, inspect.DictType):
            current_type = current_type.value_type
        elif isinstance(current_type, inspect.ListType):
            current_type = current_type.item_type
        if isinstance(current_type, inspect.UnionType):  # a type or null
            not_null = [part for part in current_type.types if not isinstance(part, inspect.NoneType)]
            if not_null:
                current_type = not_null[0]
    if isinstance(current_type, inspect.StructType):
        return ", ".join(field.encode_name for field in current_type.fields)
    if isinstance(current_type, inspect.LiteralType):
        return ", ".join(map(str, current_type.values))
    return ""


def problem_of(name: str) -> str:
    """Describe why ``name`` is not a safe relative file name; empty if it is safe.

    A safe name stays inside its folder and means the same file on every system. The name consists of parts between
    forward slashes. No part is empty, ``.`` or ``..``. Drives, backslashes and control characters are not allowed.
    """
    if len(name) > LONGEST:
        return f"a name of {len(name):,} characters; expected at most {LONGEST:,}"
    unsafe_character = UNSAFE.search(name)
    unsafe_parts = {"", ".", ".."} & set(name.split("/"))
    if not name:
        problem = "is empty"
    elif unsafe_character:
        problem = f"has the character {unsafe_character[0]!r}"
    elif name[0] == "/" or _DRIVE.match(name):
        problem = "is absolute"
    elif "\\" in name:
        problem = "has a backslash"
    elif unsafe_parts:
        problem = f"has the part {min(unsafe_parts)!r}"
    else:
        return ""
    return f"the name {name!r} {problem}; expected a plain relative name inside its folder"


def name_within(name: str) -> str:
    """Return ``name``. Raise ValueError with the problem of :func:`problem_of` if the name is not safe."""
    problem = problem_of(name)
    if problem:
        raise ValueError(problem)
    return name
