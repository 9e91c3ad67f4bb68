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
from builders.core.files import BOM, kind_of, raw_lines, read_all

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
NotNegativeNumber = Annotated[float, Meta(ge=0)]
Proportion = Annotated[float, Meta(ge=0, le=1)]
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
# A key that is safe in a table of a card, for example the name of a config, a split or a set.
PlainName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9+_.-]{0,99}\Z")]
T = TypeVar("T")

_HALF_PAIR = re.compile(rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])")
ANY_KEY = "[...]"  # msgspec's words for any key of a dictionary
_PLACE = re.compile(r" - at (?:`key` in )?`\$([^`]*)`\Z")  # the field at the end of msgspec's messages
LONGEST = 1_000  # characters of a file name; the project's own names have fewer than 100
_JSON_NAMES = {"object": "a JSON object", "array": "a JSON list", "str": "a text", "int": "a number"}
_DRIVE = re.compile(r"[A-Za-z]:")


def read_json(path: Path, kind: type[T], remedy: str = "") -> T:
    """Read a JSON file as ``kind``, a msgspec type. Fields that ``kind`` does not declare are ignored.

    Raises:
        InputError: names the file, the line or field, and the expected content. The message ends with ``remedy``.
        FileNotFoundError, NotADirectoryError: the file does not exist. The caller reports the missing file.
    """
    return json_of(_bytes_of(path), kind, path, remedy=remedy)


def read_object(path: Path, kind: type[Struct]) -> dict[str, Any]:
    """Read a JSON object completely, and validate the fields that ``kind`` declares.

    Undeclared fields, for example of later versions, are returned as well. Errors are those of :func:`read_json`.
    """
    content = _bytes_of(path)
    json_of(content, kind, path)
    return json_of(content, dict[str, Any], path)


def _bytes_of(path: Path) -> bytes:
    if kind_of(path) not in ("", "directory"):  # reading a pipe could block; reading a directory fails below
        raise InputError("is a device or a pipe; expected a regular file", path=path)
    try:
        with open(path, "rb") as file:
            return read_all(file, path)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=path) from error


def json_of(content: bytes, kind: type[T], path: Path | str, line: int | None = None, remedy: str = "") -> T:
    """Decode the JSON of a file, or of one ``line`` of a file, as ``kind``. Errors are those of :func:`read_json`."""
    end = f"; {remedy}" if remedy else ""
    try:
        if not content.isascii():
            content.decode()  # msgspec does not validate the UTF-8 of ignored fields
        return msgspec.json.decode(content.removeprefix(BOM), type=kind)
    except msgspec.ValidationError as error:
        problem = _fault_of_json(content, kind, str(error))
        if line is not None and problem.endswith("found a JSON list"):
            problem += "; write one value a line, without a list around the lines"
        raise InputError(f"{problem}{end}", path=path, line=line) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        place, what = _no_json(content, str(error), is_line=line is not None)
        raise InputError(f"{what}{end}", path=path, line=line or place) from None
    except RecursionError:
        raise InputError(f"lists and objects are nested too deeply{end}", path=path, line=line) from None


def json_lines(path: Path, kind: type[T], remedy: str = "") -> Iterator[tuple[int, T]]:
    """Yield (line number, ``kind``) of every line that is not blank. Gzipped files are decompressed."""
    for number, line in raw_lines(path):
        if line.strip():
            yield number, json_of(line, kind, path, number, remedy)


def typed(
    content: Any, kind: type[T], path: Path | str, *, from_text: bool = False, field: str = "", remedy: str = ""
) -> T:
    """Convert the result of a JSON or TOML reader to ``kind``, a msgspec type with constraints.

    With ``from_text``, numbers and booleans may be strings. ``field`` is the field of the file that has ``content``
    (default: the whole file). Raises :class:`InputError` with ``path``, the field, and the found and expected values.
    """
    try:
        return msgspec.convert(content, kind, strict=not from_text)
    except msgspec.ValidationError as error:
        fault = _fault(content, kind, str(error), strict=not from_text, field=field)
        raise InputError(f"{fault}{'; ' if remedy else ''}{remedy}", path=path) from error


def _fault_of_json(content: bytes, kind: Any, message: str) -> str:
    """Describe the value of a JSON text for which msgspec printed ``message``."""
    try:
        values = msgspec.json.decode(content.removeprefix(BOM))
    except (msgspec.MsgspecError, RecursionError):  # a number that is out of range, for example
        return _explained(message, kind, _keys_of(message))
    return _fault(values, kind, message)


def _fault(content: Any, kind: Any, message: str, *, strict: bool = True, field: str = "") -> str:
    """Describe the wrong value of ``content``: the field with all keys, the expected value and the found value."""
    keys = _keys_of(message)
    if _message_of(content, kind, strict) != message:  # the reader of JSON checks in another order
        return _explained(message, kind, keys, field=field)
    try:
        names, value = _follow(keys, content, kind, message, strict)
    except (LookupError, TypeError):  # a field's name looks like msgspec's words
        return _explained(message, kind, [], field=field)
    return _explained(message, kind, names, _shown_json(value), field=field)


def _follow(keys: list[str], content: Any, kind: Any, message: str, strict: bool) -> tuple[list[str], Any]:
    """Return the names of ``keys``, with the keys of dictionaries, and the value for which msgspec printed ``message``.

    The name of a key of a dictionary begins with a dot or a bracket.
    """
    parents: list[tuple[Any, Any]] = []
    names, value = [], content
    for key in keys:
        if key == ANY_KEY:
            name: Any = _wrong_key(value, parents, kind, message, strict)
            names.append(f".{name}" if re.fullmatch(r"[\w+-]{1,100}", name) else f"[{shown_value(name)}]")
        else:
            name = int(key[1:-1]) if key.startswith("[") else key
            names.append(key)
        parents.append((value, name))
        value = value[name]
    if " - at `key` in " in message:
        value = _wrong_key(value, parents, kind, message, strict)
    return names, value


def _message_of(content: Any, kind: Any, strict: bool) -> str:
    try:
        msgspec.convert(content, kind, strict=strict)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def _wrong_key(value: Any, parents: list[tuple[Any, Any]], kind: Any, message: str, strict: bool) -> Any:
    """Return the first key of ``value`` for which msgspec prints ``message``, which names no key.

    ``parents`` are the containers around ``value`` with their keys, from the outside in. The entries are validated in
    order. So a bisection finds the smallest number of entries that have the fault.
    """
    if not isinstance(value, dict):
        raise TypeError("not a dictionary")
    low, high = 1, len(value)
    while low < high:
        middle = (low + high) // 2
        content: Any = dict(islice(value.items(), middle))
        for container, key in reversed(parents):
            copied = container.copy()
            copied[key] = content
            content = copied
        if _message_of(content, kind, strict) == message:
            high = middle
        else:
            low = middle + 1
    return next(islice(value, low - 1, None))


def _shown_json(value: Any) -> str:
    """Return a short text of a wrong value. Lists and objects are only named."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return shown_value(value)


def object_of_lists(content: bytes, kind: type[T], path: Path, remedy: str = "") -> T:
    """Decode a JSON object of lists as :func:`json_of` does. Raise :class:`InputError` for a repeated key.

    msgspec silently keeps the last value of a repeated key.
    """
    decoded: Any = json_of(content, kind, path, remedy=remedy)
    # Every list has a bracket, also the lists that msgspec dropped. So equal numbers mean that no key is repeated. A
    # text may have a bracket, too, so another number needs the slow search.
    if content.count(b"[") != len(decoded) and (key := repeated_key(content)) is not None:
        found = f"the key {key!r} occurs twice; expected every key once: remove one of the two"
        raise InputError(found, path=path, line=_line_of_second(content, key))
    return decoded  # type: ignore[no-any-return]


def repeated_key(content: bytes) -> str | None:
    """Return the first key that occurs twice in a JSON object, or None. The objects inside it are not searched."""
    outermost: list[tuple[str, Any]] = []

    def store(pairs: list[tuple[str, Any]]) -> None:
        outermost[:] = pairs  # the outermost object ends last

    json.loads(content.removeprefix(BOM), object_pairs_hook=store)
    seen = set[str]()
    for key, _ in outermost:
        if key in seen:
            return key
        seen.add(key)
    return None


def _line_of_second(content: bytes, key: str) -> int | None:
    """Return the line of a key's second occurrence; None if the file writes the key with other escapes."""
    pattern = re.escape(json.dumps(key, ensure_ascii=False).encode()) + rb"\s*:"
    places = [match.start() for match in re.finditer(pattern, content)]
    return _line(content, places[1]) if len(places) > 1 else None


def describe_json_error(content: bytes, message: str, *, is_line: bool) -> str:
    """Describe content that is not JSON, from msgspec's ``message``. ``is_line``: a line of JSON lines."""
    return _no_json(content, message, is_line=is_line)[1]


def _no_json(content: bytes, message: str, *, is_line: bool) -> tuple[int | None, str]:
    """Return (line number or None, description) of a JSON error from msgspec's ``message``."""
    if is_utf16(content[:HEAD_BYTES]):
        return 1, describe_encoding(content)
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return _line(content, error.start), describe_encoding(content)
    start = content.removeprefix(BOM).strip()[:1]
    if is_line and "truncated" in message and start in (b"[", b"{"):
        value = "list" if start == b"[" else "object"
        problem = f"expected JSON lines, found a JSON {value} that does not end in this line"
        return None, f"{problem}; write one value a line, without a list around the lines"
    if not is_line and "trailing characters" in message:
        place = re.search(r" \(byte (\d+)\)", message)
        problem = "expected one JSON value, found more text after its end; remove the text, or join the values"
        return _line(content, int(place[1])) if place else None, f"{problem} ({message})"
    if half := _HALF_PAIR.search(content):  # msgspec's message may be misleading here
        return _line(content, half.start()), f"expected JSON, found half a surrogate pair ({half[0].decode()})"
    place = re.search(r" \(byte (\d+)\)", message)
    return _line(content, int(place[1])) if place else None, f"expected JSON ({message})"


def _line(content: bytes, position: int) -> int:
    return content.count(b"\n", 0, position) + 1


def _keys_of(message: str) -> list[str]:
    """Return the field of msgspec's ``message`` as names, positions ``[3]`` and :data:`ANY_KEY`."""
    place = _PLACE.search(message)
    return re.findall(r"[^.\[\]]+|\[(?:\d+|\.\.\.)\]", place[1]) if place else []


def _explained(message: str, kind: Any, keys: list[str], found_value: str = "", *, field: str = "") -> str:
    """Rewrite msgspec's message: the field comes first, and the allowed names or values are listed.

    ``keys`` are those of :func:`_keys_of`, with the true keys of dictionaries if they are known. ``found_value`` is
    empty if the value is unknown.
    """
    plain = _PLACE.sub("", message)
    what, _, found_type = plain.partition(", got ")
    found = f", found {found_value}" if found_value else ""
    if match := re.fullmatch(r"Object contains unknown field `(.*)`", what, re.DOTALL):
        what = f"unknown key {match[1]!r}; expected {_known(kind, keys)}"
    elif match := re.fullmatch(r"Object missing required field `(.*)`", what):
        what = f"lacks {match[1]}"
    elif match := re.fullmatch(r"Invalid enum value (.*)", what, re.DOTALL):
        what = f"expected one of {_known(kind, keys)}, found {match[1]}"
    elif " matching regex " in what and "[0-9a-f]{64}" in what:
        what = f"expected a SHA-256 in hex{found}"
    elif " matching regex " in what and "[A-Za-z0-9+_.-]" in what:
        what = f"expected a name of at most 100 ASCII letters, digits and signs of +-._{found}"
    elif not keys and (match := re.fullmatch(r"Expected `(\w+)`, got `(\w+)`", plain)):
        fields = _known(kind, keys)
        expected_type = _JSON_NAMES.get(match[1], match[1]) + (f" ({fields})" if fields else "")
        what = f"expected {expected_type}, found {_JSON_NAMES.get(match[2], match[2])}"
    elif what.endswith(" out of range"):
        what = "expected a number of at most 64 bits"
    elif what.startswith("Expected "):
        what = what[:1].lower() + what[1:] + (found or (found_type and f", got {found_type}"))
    else:
        what = plain[:1].lower() + plain[1:]
    where = ".".join([*([field] if field else []), *(key.removeprefix(".") for key in keys)]).replace(".[", "[")
    return f"{where}: {what}" if where else what


def _known(kind: Any, keys: list[str]) -> str:
    found: Any = inspect.type_info(kind)
    for key in keys:
        if isinstance(found, inspect.StructType) and not key.startswith(("[", ".")):
            found = next((field.type for field in found.fields if field.encode_name == key), None)
        elif isinstance(found, inspect.DictType):
            found = found.value_type
        elif isinstance(found, inspect.ListType):
            found = found.item_type
        if isinstance(found, inspect.UnionType):  # a type or null
            found = next((part for part in found.types if not isinstance(part, inspect.NoneType)), found)
    if isinstance(found, inspect.StructType):
        return ", ".join(field.encode_name for field in found.fields)
    return ", ".join(map(str, found.values)) if isinstance(found, inspect.LiteralType) else ""


def problem_of(name: str) -> str:
    """Describe why ``name`` is not a safe relative file name; empty if it is safe.

    A safe name stays inside its folder and means the same file on every system. The name consists of parts between
    forward slashes. No part is empty, ``.`` or ``..``. Drives, backslashes and control characters are not allowed.
    """
    if not name:
        problem = "is empty"
    elif len(name) > LONGEST:
        return f"a name of {len(name):,} characters; expected at most {LONGEST:,}"
    elif found := UNSAFE.search(name):
        problem = f"has the character {found[0]!r}"
    elif name[0] == "/" or _DRIVE.match(name):
        problem = "is absolute"
    elif "\\" in name:
        problem = "has a backslash"
    elif odd := {"", ".", ".."} & {*name.split("/")}:
        problem = f"has the part {min(odd)!r}"
    else:
        return ""
    return f"the name {name!r} {problem}; expected a plain relative name inside its folder"


def name_within(name: str) -> str:
    """Return ``name``. Raise ValueError with the problem of :func:`problem_of` if the name is not safe."""
    if problem := problem_of(name):
        raise ValueError(problem)
    return name
