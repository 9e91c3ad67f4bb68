"""Test reading raw rows: places, formats, and errors."""

import gzip
import json
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import row, write_rows

from builders.core.errors import InputError
from builders.release.label import label_block
from builders.release.options import Options
from builders.release.rows import find_sources, parse_rows
from builders.sources.files import split_of
from builders.sources.lines import line_number, read_blocks

ONE = row(1, "太阳花怎么养", [["喜温暖。", "耐瘠薄。"]], ["喜温暖"])


def questions(paths: list[Path], split: str | None = None, block_bytes: int = 1 << 20) -> list[tuple[str, int, str]]:
    found = []
    for block in read_blocks(find_sources(paths, split), block_bytes):
        found += [(block.source.split, line_number(block.source, start), r.question) for start, r in parse_rows(block)]
    return found


SPLITS = {
    "train": ("search.train.json", "raw/trainset/zhidao.json"),
    "dev": ("raw/devset/search.dev.json.gz", "dev/rows.json"),
    "test": ("dureader-retrieval-test1/test1.json",),
    None: ("my-test-folder/rows.json", "contest.json", "traindev.json", "train.dev.json"),
}


def test_names_tell_the_split() -> None:
    assert {name: split_of(name) for names in SPLITS.values() for name in names} == {
        name: split for split, names in SPLITS.items() for name in names
    }


def test_plain_gzip_zip_and_folders_hold_the_same_rows(tmp_path: Path) -> None:
    rows = [row(i, f"问题{i}", [["段落"]], ["段落"]) for i in range(5)]
    plain = write_rows(tmp_path / "plain/search.train.json", rows)
    packed = tmp_path / "gz/search.train.json.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    archive = tmp_path / "raw.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(plain, "raw/trainset/search.train.json")
        file.writestr("__MACOSX/raw/._search.train.json", "no rows")
        file.writestr("raw/README.txt", "no rows")
    expected = questions([plain])
    assert len(expected) == 5
    for path in (plain.parent, packed, packed.parent, archive):
        assert questions([path]) == expected


def test_folders_are_read_train_first_then_by_name(tmp_path: Path) -> None:
    for name in ("zhidao.dev", "search.dev", "search.test", "zhidao.train", "search.train"):
        write_rows(tmp_path / f"{name}.json", [ONE])
    names = [source.name for source in find_sources([tmp_path])]
    assert names == [f"{n}.json" for n in ("search.train", "zhidao.train", "search.dev", "zhidao.dev", "search.test")]


@pytest.mark.parametrize("block_bytes", [1, 7, 64, 1 << 20])
def test_blocks_of_any_size_give_the_same_rows_and_lines(tmp_path: Path, block_bytes: int) -> None:
    rows = [row(i, f"问题\u2028{i}\u0085", [["段\u2029落"]]) for i in range(4)]
    path = write_rows(tmp_path / "train.json", rows)
    text = path.read_text(encoding="utf-8").replace("\n", "\n\n", 1)  # a blank line has no row but counts as a line
    path.write_bytes(b"\xef\xbb\xbf" + text.rstrip("\n").encode())  # with a byte order mark, without a final line end
    assert [(line, text) for _, line, text in questions([path], None, block_bytes)] == [
        (line, f"问题\u2028{i}\u0085") for i, line in enumerate([1, 3, 4, 5])
    ]


@given(
    lines=st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8"), max_size=9), max_size=9),
    size=st.integers(1, 40),
    end=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_ranges_hold_every_line_once(tmp_path_factory: pytest.TempPathFactory, lines, size, end) -> None:  # type: ignore[no-untyped-def]
    """The blocks of a plain or gzipped file contain the whole file, and no line is cut."""
    whole = ("\n".join(["x", *lines]) + "\n" * end).encode()
    folder = tmp_path_factory.mktemp("ranges")
    (folder / "train.json").write_bytes(whole)
    (folder / "train.json.gz").write_bytes(gzip.compress(whole))
    for source in find_sources([folder]):
        found = list(read_blocks([source], size))
        assert b"".join(block.data for block in found) == whole
        assert [block.number for block in found] == list(range(len(found)))
        for block in found:
            assert block.start == 0 or whole[block.start - 1 : block.start] == b"\n"
            assert whole[block.start : block.start + len(block.data)] == block.data
        done = {block.number for block in found[::2]}
        assert list(read_blocks([source], size, done)) == found[1::2]


def bad(folder: Path, line: bytes, unit: str) -> str:
    (folder / "x.train.json").write_bytes(b"\n" * 6 + line)
    (folder / "work").mkdir(exist_ok=True)
    with pytest.raises(InputError) as error:
        for block in read_blocks(find_sources([folder])):
            label_block(block, Options(unit=unit), folder / "work")
    return str(error.value)


@pytest.mark.parametrize("unit", ["word", "char"])  # the two units have separate code
def test_every_wrong_line_is_one_error_with_file_line_and_what_was_expected(tmp_path: Path, unit: str) -> None:
    good = json.dumps(ONE, ensure_ascii=False).encode()
    cases = {
        good[:-20]: "not JSON",
        good.replace(b'"documents"', b'"documants"'): "missing required field `documents`",
        good.replace("太阳花怎么养".encode(), "太阳花怎么养".encode()[:-1]): "not UTF-8",
        good.replace("喜温暖。".encode(), b"\xed\xa0\x80"): "not UTF-8",
        good.replace('"喜温暖。"'.encode(), b"7"): "Expected `str`, got `int` - at `$.documents[0].paragraphs[0]`",
        good.replace("喜温暖。".encode(), b"\\ud800"): "not JSON",
        good.replace("太阳花怎么养".encode(), b" "): "the question has no text",
        b"[1, 2]": "Expected `object`",
        b"[" * 100_000: "Expected `object`",
        b'{"question_id": 1, "question": "x", "documents": [], "a": ' + b"[" * 100_000: "x.train.json:7",
    }
    for line, words in cases.items():
        assert line != good
        message = bad(tmp_path, line, unit)
        assert message.startswith(f"{tmp_path}/x.train.json:7: ")
        assert words in message
        assert "\n" not in message
