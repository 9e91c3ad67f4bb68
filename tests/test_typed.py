"""Untrusted JSON and names: damaged content is one error line, and no name leads out of its folder."""

import json
import os
import re
from pathlib import Path, PureWindowsPath
from typing import Any, Literal

import msgspec
import pytest
from commands import run
from hypothesis import given
from hypothesis import strategies as st
from releases import BUILD, make_release

from builders.core.errors import InputError
from builders.core.typed import LONGEST, Count, PlainName, Sha256, name_within, problem_of, read_json
from builders.store.draft import draft_release
from builders.store.layout import MANIFEST
from builders.store.reader import open_release


class Part(msgspec.Struct):
    kind: Literal["a", "b"] = "a"
    sha256: Sha256 | None = None


class Content(msgspec.Struct):
    count: Count
    text: str = ""
    part: Part | None = None
    parts: dict[str, Part] = {}
    named: dict[PlainName, dict[str, Part]] = {}
    more: dict[str, Any] = {}


def nested(depth: int) -> bytes:
    return b'{"x":' * depth + b"1" + b"}" * depth


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected JSON (Input data was truncated)"),
        (b"[]", "expected a JSON object (count, text, part, parts, named, more), found a JSON list"),
        (b"{}", "lacks count"),
        (b'{"count": "1"}', "count: expected `int`, found '1'"),
        (b'{"count": 9223372036854775808}', "count: expected `int` <= 9223372036854775807, found 9223372036854775808"),
        (b'{"count": ' + b"9" * 6_000 + b"}", "count: expected a number of at most 64 bits"),
        (b'{"count": 1, "part": {"kind": "c\\n"}}', "part.kind: expected one of a, b, found 'c\\n'"),
        (b'{"count": 1, "parts": {"x": {"sha256": "A"}}}', "parts.x.sha256: expected a SHA-256 in hex, found 'A'"),
        (
            b'{"count": 1, "named": {"a": {}, "b": {"y z": {"sha256": 7}}}}',
            "named.b['y z'].sha256: expected `str | null`, found 7",
        ),
        (
            b'{"count": 1, "named": {"a": {}, "a|b": {}}, "x - at `$.named`": 1}',
            "named: expected a name of at most 100 ASCII letters, digits and signs of +-._, found 'a|b'",
        ),
        (b'{"count": 1, "unknown": ' + nested(50_000) + b"}", "lists and objects are nested too deeply"),
    ],
    ids=range(11),
)
def test_what_a_file_has_otherwise_is_one_line_naming_the_field(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(InputError) as error:
        read_json(tmp_path / "x.json", Content, "build it again")
    assert str(error.value) == f"{tmp_path / 'x.json'}: {message}; build it again"


def test_a_byte_order_mark_does_not_change_the_line_in_an_error(tmp_path: Path) -> None:
    file_path = tmp_path / "content.json"
    file_path.write_bytes(b'\xef\xbb\xbf{"count": 1,\nx}')
    with pytest.raises(InputError, match=r"content\.json:2: expected JSON"):
        read_json(file_path, Content)


def test_an_error_quotes_no_more_than_fits_and_stays_one_line(tmp_path: Path) -> None:
    kind = "x" * 100_000 + "\n\u2028\0"
    (tmp_path / "x.json").write_text(json.dumps({"count": 1, "part": {"kind": kind[::-1]}}))
    with pytest.raises(InputError) as error:
        read_json(tmp_path / "x.json", Content)
    message = str(error.value)
    assert "found '\\x00\\u2028\\nxxx" in message and message.splitlines() == [message] and len(message) < 5_000


OUTSIDE = {
    "is empty": [""],
    "is absolute": ["/etc/passwd", "C:/Windows/system.ini"],
    "has the part": ["..", "a/../../b", "./a", "a//b", "a/"],
    "has a backslash": ["..\\x"],
    "has the character": ["a\0b", "a\u2028b", "a\ud800b"],
    "a name of 1,001 characters; expected at most 1,000": ["a" * (LONGEST + 1)],
}
INSIDE = ["a", "corpus/corpus-00000-of-00001.parquet", "a..b/c.", "语料/第 1 部分.json", "a/" * 499 + "b"]


def test_a_name_that_could_lead_out_is_refused_with_the_reason_and_a_plain_one_taken() -> None:
    for reason, names in OUTSIDE.items():
        for name in names:
            with pytest.raises(ValueError, match=f"^[^\n]*{re.escape(reason)}[^\n]*$"):
                name_within(name)
    assert list(map(name_within, INSIDE)) == INSIDE


@given(st.text(st.sampled_from("./\\ab:C\0é\n"), max_size=12) | st.text(max_size=30))
def test_a_name_that_is_taken_leads_to_one_place_below_the_folder(name: str) -> None:
    if not problem_of(name):
        path = os.path.join("/folder", name)
        assert os.path.normpath(path) == path and path.startswith("/folder/")
        windows_path = PureWindowsPath("D:\\folder", name)  # on other systems, too
        assert PureWindowsPath("D:\\folder") in windows_path.parents and ".." not in windows_path.parts


THESIS = "years of work"


@pytest.mark.parametrize("name", ["../../../thesis", "runs/../../../thesis", "thesis\\..", "/etc/hostname"])
@pytest.mark.parametrize("words", ["export --format trec --out {mine}/out", "check"])
def test_a_release_that_names_a_file_elsewhere_is_refused(tmp_path: Path, words: str, name: str) -> None:
    release = make_release(tmp_path / "evil" / "a" / "b" / "release")
    mine = tmp_path / "mine"
    (release / "runs").mkdir()
    for parent in (mine, *release.parents[:3]):
        parent.mkdir(exist_ok=True)
        (parent / "thesis").write_text(THESIS)
    manifest = json.loads((release / MANIFEST).read_text())
    manifest["files"].append({"path": name, "bytes": 4, "rows": None, "sha256": "0" * 64})
    (release / MANIFEST).write_text(json.dumps(manifest))
    done = run("builders", *words.format(mine=mine).split(), "--release", release, code=1)
    assert done.stderr.splitlines()[-1].startswith(f"error: {release / MANIFEST}: files[")
    assert f"the name {name!r}" in done.stderr
    assert [(path.name, path.read_text()) for path in mine.iterdir()] == [("thesis", THESIS)]


def test_a_release_of_links_is_extended_by_files(tmp_path: Path) -> None:
    # In the hub's cache, files of a snapshot are links to blobs.
    blobs = make_release(tmp_path / "blobs")
    cached = tmp_path / "snapshots" / "0123abcd"
    for path in blobs.rglob("*"):
        if path.is_file():
            link = cached / path.relative_to(blobs)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(path, link.parent))
    with draft_release(tmp_path / "out", BUILD, open_release(cached)):
        pass
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_symlink()]
    assert open_release(tmp_path / "out").table("corpus", "corpus") == open_release(blobs).table("corpus", "corpus")
