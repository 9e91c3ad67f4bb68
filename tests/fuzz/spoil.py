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
_VALUES += ['"../../x"', '"/tmp/x"', '"a\\\\b"', f'"{"x" * 5000}"']
_VALUES += ["[" * 90 + "]" * 90, '{"a":' * 90 + "1" + "}" * 90]
_VALUES += ["[" * 20_000 + "]" * 20_000, '"0000000000000000000000000000000000000000000000000000000000000000"']
_PLACEHOLDER = "\ue000 a place \ue000"  # a JSON text that is replaced by one of _VALUES, which need not be JSON
_LONGEST_PART = 40  # of the bytes that are removed or repeated


def _flip_bit(content: bytes, position: int, choice: int) -> bytes:
    flipped_bit = 1 << choice % 8
    if not content:
        return bytes([flipped_bit])
    changed = bytearray(content)
    changed[position % len(content)] ^= flipped_bit
    return bytes(changed)


def _cut(content: bytes, position: int, _: int) -> bytes:
    return content[: position % (len(content) + 1)]


def _remove_part(content: bytes, position: int, choice: int) -> bytes:
    start = position % (len(content) + 1)
    end = start + 1 + choice % _LONGEST_PART
    return content[:start] + content[end:]


def _repeat_part(content: bytes, position: int, choice: int) -> bytes:
    start = position % (len(content) + 1)
    end = start + 1 + choice % _LONGEST_PART
    return content[:end] + content[start:]


def _insert(content: bytes, position: int, choice: int) -> bytes:
    start = position % (len(content) + 1)
    return content[:start] + _PIECES[choice % len(_PIECES)] + content[start:]


BYTES: list[Change] = [_flip_bit, _cut, _remove_part, _repeat_part, _insert]


def _move_line(content: bytes, position: int, choice: int) -> bytes:
    lines = content.splitlines(keepends=True) or [b""]
    line = lines.pop(position % len(lines))
    lines.insert(choice % (len(lines) + 1), line)
    return b"".join(lines)


def _remove_or_repeat_line(content: bytes, position: int, choice: int) -> bytes:
    lines = content.splitlines(keepends=True) or [b""]
    number = position % len(lines)
    if choice % 2:
        lines.insert(number, lines[number])
    else:
        del lines[number]
    return b"".join(lines)


def _replace_word(content: bytes, position: int, choice: int) -> bytes:
    words = content.split(b" ")
    new_word = _PIECES[choice % len(_PIECES)]
    if choice % 2:
        new_word = _VALUES[choice % len(_VALUES)].encode()
    words[position % len(words)] = new_word
    return b" ".join(words)


TEXT: list[Change] = [*BYTES, _move_line, _remove_or_repeat_line, _replace_word]


def value_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (list or object, key) for every value inside."""
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    for key in keys:
        yield value, key
        yield from value_places(value[key])


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _change_json(change: Callable[[Any, Any, int], None]) -> Change:
    """Change one value in a file of JSON or JSON lines. If the file is no JSON any more, change a bit."""

    def change_content(content: bytes, position: int, choice: int) -> bytes:
        lines = [content] if _is_json(content) else content.split(b"\n")
        number = position % len(lines)
        if not _is_json(lines[number]):
            return _flip_bit(content, position, choice)
        root = [json.loads(lines[number])]  # a list, so that the value of the line has a holder, too
        places = list(value_places(root))
        holder, key = places[position // len(lines) % len(places)]
        change(holder, key, choice)
        # The root is empty after a removal, and has two values after an insertion.
        text = "".join(json.dumps(value, ensure_ascii=False) for value in root)
        text = text.replace(json.dumps(_PLACEHOLDER, ensure_ascii=False), _VALUES[choice % len(_VALUES)])
        lines[number] = text.encode("utf-8", "surrogatepass")
        return b"\n".join(lines)

    return change_content


def _replace_value(holder: Any, key: Any, _: int) -> None:
    holder[key] = _PLACEHOLDER


def _remove_value(holder: Any, key: Any, _: int) -> None:
    del holder[key]


def _rename_key(holder: Any, key: Any, choice: int) -> None:
    if isinstance(holder, dict):
        new_keys = [key.upper(), "", f"{key} ", "../../x", "files"]
        holder[new_keys[choice % 5]] = holder.pop(key)
    else:
        holder.insert(choice % (len(holder) + 1), holder[key])


def _add_value(holder: Any, key: Any, choice: int) -> None:
    if isinstance(holder, dict):
        holder["of a later version"] = _PLACEHOLDER
    else:
        holder.append(_PLACEHOLDER)


def _change_value(holder: Any, key: Any, choice: int) -> None:
    """Replace a value by a similar one of the same type, or wrap it."""
    value = holder[key]
    number = choice % 5
    if isinstance(value, bool) or value is None:
        holder[key] = not value
    elif isinstance(value, int | float):
        holder[key] = [value + 1, -value, value * 10, value / 2, value + 2**40][number]
    elif isinstance(value, str):
        holder[key] = [value[:-1], value + "x", value.upper(), f"../{value}", value[::-1]][number]
    else:
        holder[key] = [value, {"0": value}, value, [value, value], []][number]


_VALUE_CHANGES = (
    _replace_value,
    _replace_value,
    _remove_value,
    _rename_key,
    _add_value,
    _change_value,
    _change_value,
)
JSON: list[Change] = [*BYTES, *map(_change_json, _VALUE_CHANGES)]
JSON_LINES: list[Change] = [*JSON, _move_line, _remove_or_repeat_line]
_TEXT_VALUES = ["", "a\0b", "a\tb\nc", "../../x", "x" * 100_000, "\u2028", "=1+1"]
_INTEGER_VALUES = [0, -1, 2**63 - 1, -(2**63)]


def table_changed(table: pa.Table, position: int, choice: int) -> pa.Table:
    """Return a table with another name, type or value of a column, or with other columns or rows."""
    column_number = position % len(table.schema)
    field = table.schema.field(column_number)
    column = table.column(column_number)
    row_count = len(table)
    row = position // 7 % max(1, row_count)

    def with_column(array: Any) -> pa.Table:
        return table.set_column(column_number, field.name, array)

    def with_value(value: Any) -> pa.Table:
        values = column.to_pylist()
        values[row : row + 1] = [value]
        return with_column(pa.array(values, field.type))

    # A change that does not fit the column's type reverses the columns.
    is_string = pa.types.is_string(field.type)
    match choice % 12:
        case 0:
            return table.rename_columns([f"{n}x" if n == field.name else n for n in table.column_names])
        case 1:
            return table.remove_column(column_number) if len(table.schema) > 1 else table.slice(1)
        case 2:
            return with_column(pa.array(range(row_count), pa.int32()))
        case 3:
            return with_column(pa.array([None] * row_count, field.type))
        case 4:
            return with_value(None)
        case 5 if is_string:
            wrong_utf8 = NO_UTF8.take(pa.array([1] * row_count))
            return with_column(pa.chunked_array([wrong_utf8]))
        case 6:
            return table.append_column("more", column)
        case 7:
            return table.slice(1)
        case 8:
            return pa.concat_tables([table, table])
        case 9 if is_string:
            return with_column(column.cast(pa.large_string()))
        case 10 if is_string:
            return with_value(_TEXT_VALUES[position % 7])
        case 11 if pa.types.is_integer(field.type):
            return with_value(_INTEGER_VALUES[position % 4])
    return table.select(table.column_names[::-1])


def _change_table(content: bytes, position: int, choice: int) -> bytes:
    try:
        table = pq.read_table(io.BytesIO(content))
        buffer = io.BytesIO()
        pq.write_table(table_changed(table, position, choice), buffer)
        return buffer.getvalue()
    except (pa.ArrowException, OSError, ValueError):  # no Parquet any more
        return _flip_bit(content, position, choice)


PARQUET: list[Change] = [_flip_bit, *BYTES, _change_table, _change_table]
