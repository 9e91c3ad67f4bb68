"""Damage to files: changes of bytes, texts, JSON and Parquet. Two random numbers choose each change."""

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from releases import NO_UTF8

Change = Callable[[bytes, int, int], bytes]
_PIECES = [b"\0", b"\xff", b"\xef\xbb\xbf", b"\n", b"\r", b"\t", b" ", b'"', b"{", b"]", b",", b":", b"=", b"-", b"0"]
_PIECES += [b"\xe2\x80\xa8", b"\x1b[2J", b"[[[[", b"1e999", b"../", b"nan", b"\\ud800", b"x" * 3000, b"9" * 6000]
# JSON values of other types and sizes, numbers of more than 64 bits, and paths that lead out of a folder.
_VALUES = ["null", "true", "0", "-1", "1.5", "1e999", "NaN", "-Infinity", "[]", "{}", '""', '" "', '"x"', "[null]", "{"]
_VALUES += [str(2**63), str(2**64), "9" * 6000, "1" + "0" * 400 + ".5", r'"\ud800"', r'"\u0000"', r'"\udc00\ud800"']
_VALUES += ['"../../x"', '"/tmp/x"', '"a\\\\b"', f'"{"x" * 5000}"', "[" * 90 + "]" * 90, '{"a":' * 90 + "1" + "}" * 90]
_VALUES += ["[" * 20_000 + "]" * 20_000, '"0000000000000000000000000000000000000000000000000000000000000000"']
_HERE = "\ue000 a place \ue000"


def _bit(content: bytes, a: int, b: int) -> bytes:
    if not content:
        return bytes([1 << b % 8])
    at = a % len(content)
    return content[:at] + bytes([content[at] ^ (1 << b % 8)]) + content[at + 1 :]


def _cut(content: bytes, a: int, _: int) -> bytes:
    return content[: a % (len(content) + 1)]


def _without(content: bytes, a: int, b: int) -> bytes:
    at = a % (len(content) + 1)
    return content[:at] + content[at + 1 + b % 40 :]


def _twice(content: bytes, a: int, b: int) -> bytes:
    at = a % (len(content) + 1)
    return content[: at + 1 + b % 40] + content[at:]


def _insert(content: bytes, a: int, b: int) -> bytes:
    at = a % (len(content) + 1)
    return content[:at] + _PIECES[b % len(_PIECES)] + content[at:]


BYTES: list[Change] = [_bit, _cut, _without, _twice, _insert]


def _lines(content: bytes, a: int, b: int) -> bytes:
    lines = content.splitlines(keepends=True) or [b""]
    line = lines.pop(a % len(lines))
    lines.insert(b % (len(lines) + 1), line)
    return b"".join(lines)


def _again(content: bytes, a: int, b: int) -> bytes:
    lines = content.splitlines(keepends=True) or [b""]
    at = a % len(lines)
    return b"".join([*lines[:at], *[lines[at]] * (2 * (b % 2)), *lines[at + 1 :]])


def _field(content: bytes, a: int, b: int) -> bytes:
    words = content.split(b" ")
    words[a % len(words)] = _VALUES[b % len(_VALUES)].encode() if b % 2 else _PIECES[b % len(_PIECES)]
    return b" ".join(words)


TEXT: list[Change] = [*BYTES, _lines, _again, _field]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (list or object, key) for every value inside."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])


def _json(change: Callable[[Any, Any, int], None]) -> Change:
    """Change one value in a file of JSON or JSON lines. If the file is no JSON any more, change a bit."""

    def changed(content: bytes, a: int, b: int) -> bytes:
        lines = [content]
        try:
            json.loads(content)
        except (ValueError, RecursionError):
            lines = content.split(b"\n")
        number = a % len(lines)
        try:
            whole = [json.loads(lines[number])]
        except (ValueError, RecursionError):
            return _bit(content, a, b)
        places = list(_places(whole))
        holder, key = places[a // len(lines) % len(places)]
        change(holder, key, b)
        text = "".join(json.dumps(each, ensure_ascii=False) for each in whole)
        text = text.replace(json.dumps(_HERE, ensure_ascii=False), _VALUES[b % len(_VALUES)])
        lines[number] = text.encode("utf-8", "surrogatepass")
        return b"\n".join(lines)

    return changed


def _replace(holder: Any, key: Any, _: int) -> None:
    holder[key] = _HERE


def _remove(holder: Any, key: Any, _: int) -> None:
    del holder[key]


def _rename(holder: Any, key: Any, b: int) -> None:
    if isinstance(holder, dict):
        holder[[key.upper(), "", f"{key} ", "../../x", "files"][b % 5]] = holder.pop(key)
    else:
        holder.insert(b % (len(holder) + 1), holder[key])


def _surplus(holder: Any, key: Any, b: int) -> None:
    if isinstance(holder, dict):
        holder["of a later version"] = _HERE
    else:
        holder.append(_HERE)


def _more(holder: Any, key: Any, b: int) -> None:
    value = holder[key]
    if isinstance(value, bool) or value is None:
        holder[key] = not value
    elif isinstance(value, int | float):
        holder[key] = [value + 1, -value, value * 10, value / 2, value + 2**40][b % 5]
    elif isinstance(value, str):
        holder[key] = [value[:-1], value + "x", value.upper(), f"../{value}", value[::-1]][b % 5]
    else:
        holder[key] = [value, {"0": value}, value, [value, value], []][b % 5]


JSON: list[Change] = [*BYTES, *map(_json, (_replace, _replace, _remove, _rename, _surplus, _more, _more))]
JSON_LINES: list[Change] = [*JSON, _lines, _again]


def table_changed(table: pa.Table, a: int, b: int) -> pa.Table:
    """Return a table with another name, type or value of a column, or with other columns or rows."""
    at = a % len(table.schema)
    field, column = table.schema.field(at), table.column(at)
    row = a // 7 % max(1, len(table))

    def with_column(array: Any) -> pa.Table:
        return table.set_column(at, field.name, array)

    def with_value(value: Any) -> pa.Table:
        values = column.to_pylist()
        values[row : row + 1] = [value]
        return with_column(pa.array(values, field.type))

    strings = pa.types.is_string(field.type)
    match b % 12:
        case 0:
            return table.rename_columns([f"{n}x" if n == field.name else n for n in table.column_names])
        case 1:
            return table.remove_column(at) if len(table.schema) > 1 else table.slice(1)
        case 2:
            return with_column(pa.array([number for number in range(len(table))], pa.int32()))
        case 3:
            return with_column(pa.array([None] * len(table), field.type))
        case 4:
            return with_value(None)
        case 5 if strings:
            return with_column(pa.chunked_array([NO_UTF8.take(pa.array([1] * len(table)))]))
        case 6:
            return table.append_column("more", column)
        case 7:
            return table.slice(1)
        case 8:
            return pa.concat_tables([table, table])
        case 9 if strings:
            return with_column(column.cast(pa.large_string()))
        case 10 if strings:
            return with_value(["", "a\0b", "a\tb\nc", "../../x", "x" * 100_000, "\u2028", "=1+1"][a % 7])
        case 11 if pa.types.is_integer(field.type):
            return with_value([0, -1, 2**63 - 1, -(2**63)][a % 4])
    return table.select(table.column_names[::-1])


def _columns(content: bytes, a: int, b: int) -> bytes:
    try:
        table = pq.read_table(io.BytesIO(content))
        out = io.BytesIO()
        pq.write_table(table_changed(table, a, b), out)
        return out.getvalue()
    except (pa.ArrowException, OSError, ValueError):
        return _bit(content, a, b)


PARQUET: list[Change] = [_bit, *BYTES, _columns, _columns]
