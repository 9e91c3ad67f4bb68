"""Reading untrusted JSON: damaged or unexpected content gives one error line with its place."""

import json
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from builders.core.errors import InputError
from builders.core.typed import Count, Sha256, read_json


class Part(msgspec.Struct):
    kind: Literal["a", "b"] = "a"
    sha256: Sha256 | None = None


class Content(msgspec.Struct):
    count: Count
    text: str = ""
    part: Part | None = None
    parts: dict[str, Part] = {}
    more: dict[str, Any] = {}


def nested(depth: int) -> bytes:
    return b'{"x":' * depth + b"1" + b"}" * depth


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected JSON (Input data was truncated)"),
        (b"[]", "expected `object`, got `array`"),
        (b"{}", "lacks count"),
        (b'{"count": "1"}', "count: expected `int`, got `str`"),
        (b'{"count": 9223372036854775808}', "count: expected `int` <= 9223372036854775807"),
        (b'{"count": ' + b"9" * 6_000 + b"}", "count: expected a number of at most 64 bits"),
        (b'{"count": 1, "part": {"kind": "c\\n"}}', "part.kind: expected one of a, b, found 'c\\n'"),
        (b'{"count": 1, "parts": {"x": {"sha256": "A"}}}', "parts[...].sha256: expected a SHA-256 in hex"),
        (b'{"count": 1, "unknown": ' + nested(50_000) + b"}", "lists and objects are nested too deeply"),
    ],
    ids=range(9),
)
def test_what_a_file_has_otherwise_is_one_line_naming_the_field(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(InputError) as error:
        read_json(tmp_path / "x.json", Content, "build it again")
    assert str(error.value) == f"{tmp_path / 'x.json'}: {message}; build it again"


def test_an_error_quotes_no_more_than_fits_and_stays_one_line(tmp_path: Path) -> None:
    kind = "x" * 100_000 + "\n\u2028\0"
    (tmp_path / "x.json").write_text(json.dumps({"count": 1, "part": {"kind": kind[::-1]}}))
    with pytest.raises(InputError) as error:
        read_json(tmp_path / "x.json", Content)
    message = str(error.value)
    assert "found '\\x00\\u2028\\nxxx" in message and message.splitlines() == [message] and len(message) < 5_000
