"""Raw rows and tables of other projects are complete or refused; the compiled segmenter cuts as jieba."""

import contextlib
import csv
import gzip
import io
import itertools
import json
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from releases import raw_row, write_rows

from builders.core import words as segment
from builders.core.errors import InputError
from builders.core.sampling import draw_sample
from builders.core.words import split_words, word_cutter
from builders.release.label import label_block
from builders.release.rows import find_sources, parse_rows
from builders.sources.encoding import encoding_of
from builders.sources.lines import line_number, read_blocks
from builders.sources.source_files import split_of
from builders.sources.source_tables import find_tables, header_of, open_table
from builders.text.span_options import SpanOptions

SENTENCES = [
    "孩子发烧了应该怎么办？",
    "高血压患者能不能喝酒，平时要注意什么",
    "医院的地址在哪里",
    "我最近总是头疼，吃了药也不见好",
    "感冒三天了，还是咳嗽",
    "這個病會不會傳染給其他人",  # traditional: in GB18030, not in GB 2312
    "妈妈的血糖偏高，可以吃水果吗",
]
COLUMNS = ["id", "text"]


def save(folder: Path, data: bytes, name: str = "t.csv") -> Path:
    """Write a table, compressed or packed as its name says."""
    path = folder / name
    if name.endswith(".gz"):
        data = gzip.compress(data)
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("inside/" + name.replace(".zip", ".csv"), data)
            archive.writestr("__MACOSX/._t.csv", b"\0\0")
    else:
        path.write_bytes(data)
    return path


def read(
    path: Path, columns: list[str] | None = COLUMNS, *, spreadsheet: bool = False, **options: bool
) -> list[tuple[int, list[str]]]:
    """Return the line number and the fields of every row."""
    (source,) = find_tables([path])
    return list(open_table(source, spreadsheet=spreadsheet).rows(columns, **options))


TEXT = "id,text\n" + "".join(f"{number},{text}\n" for number, text in enumerate(SENTENCES))
ROWS = [(number + 2, [str(number), text]) for number, text in enumerate(SENTENCES)]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.zip"])
@pytest.mark.parametrize("encoding", ["utf-8", "gb18030"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_one_table_however_it_is_stored(tmp_path: Path, name: str, encoding: str, mark: str, end: str) -> None:
    path = save(tmp_path, (mark + TEXT.replace("\n", end)).encode(encoding), name)
    assert header_of(find_tables([path])[0]) == COLUMNS
    assert read(path) == ROWS


@pytest.mark.parametrize("delimiter", ["\t", ","])
@pytest.mark.parametrize("spreadsheet", [False, True])
@pytest.mark.parametrize("first_line", ["  ", "\ufeff"])
def test_lines_of_white_space_before_the_header_are_skipped(
    tmp_path: Path, delimiter: str, spreadsheet: bool, first_line: str
) -> None:
    path = save(tmp_path, f"{first_line}\n\n \t\nid{delimiter}text\n1{delimiter}b\n".encode())
    (source,) = find_tables([path])
    table = open_table(source, spreadsheet=spreadsheet)
    assert header_of(source) == table.columns == COLUMNS
    assert list(table.rows(COLUMNS)) == [(5, ["1", "b"])]
    with pytest.raises(InputError) as error:
        list(table.rows(["id", "label"]))
    assert str(error.value) == f"{path}:4: expected a column label, found ['id', 'text']"


def test_quotes_of_csv_and_of_tabs(tmp_path: Path) -> None:
    comma = save(tmp_path, b'id,text\n1,"a,""b""\nc"\n2,d"e\n')
    assert read(comma) == [(2, ["1", 'a,"b"\nc']), (4, ["2", 'd"e'])]
    tab = save(tmp_path, 'id\ttext\n1\t"健康码"好用\n2\t"双报到"\n'.encode(), "t.tsv")
    assert read(tab) == [(2, ["1", '"健康码"好用']), (3, ["2", '"双报到"'])]
    sheet = save(tmp_path, b'id\ttext\n1\t"Why, ""you""?"\n', "s.tsv")
    assert read(sheet, spreadsheet=True) == [(2, ["1", 'Why, "you"?'])]


def test_the_last_column_may_hold_tabs_where_the_caller_says_so(tmp_path: Path) -> None:
    path = save(tmp_path, b"id\ttext\n1\ta\tb\n", "t.tsv")
    assert read(path, rest_in_last=True) == [(2, ["1", "a\tb"])]
    with pytest.raises(InputError, match=r"t\.tsv:2: expected 2 columns \(id, text\), found 3"):
        read(path)


def detect_encoding(data: bytes) -> str:
    """Return the encoding that the reader detects."""
    return encoding_of(lambda: contextlib.nullcontext(io.BytesIO(data)), "x")


@given(st.lists(st.sampled_from(SENTENCES), min_size=3), st.sampled_from(["big5", "shift_jis", "euc_kr", "utf-16-le"]))
def test_another_encoding_never_becomes_wrong_characters(texts: list[str], encoding: str) -> None:
    data = "\n".join(texts).encode(encoding, "ignore") * 10
    if sum(byte > 127 for byte in data) < 400:
        return
    try:
        detected = detect_encoding(data)
    except InputError:
        return
    assert data.decode(detected) == data.decode(encoding)


@given(st.lists(st.sampled_from(SENTENCES), min_size=2), st.data())
def test_damaged_utf8_is_refused_or_read_as_utf8_but_never_taken_for_gb18030(
    texts: list[str], choice: st.DataObject
) -> None:
    damaged_bytes = bytearray("\n".join(texts).encode())
    for _ in range(choice.draw(st.integers(1, 3))):
        damaged_bytes[choice.draw(st.integers(0, len(damaged_bytes) - 1))] = choice.draw(st.integers(0, 255))
    try:
        encoding = detect_encoding(bytes(damaged_bytes))
    except InputError:
        return
    assert encoding == "utf-8"


cells = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\r\ufeff"), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(cells, cells), min_size=1), st.sampled_from(["\t", ","]))
def test_what_csv_writes_is_read_back(tmp_path: Path, rows: list[tuple[str, str]], delimiter: str) -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(("id", "text"))
    writer.writerows(rows)
    path = save(tmp_path, text.getvalue().encode(), "t.tsv")
    assert [tuple(fields) for _, fields in read(path, spreadsheet=True)] == rows


def test_a_draw_is_reproducible_and_a_longer_one_contains_it() -> None:
    ids = [str(number) for number in range(1000)]
    ten_ids = draw_sample(ids, 10, 1)
    assert ten_ids == draw_sample(reversed(ids), 10, 1)
    assert ten_ids < draw_sample(ids, 20, 1)  # a subset
    assert draw_sample(ids, 10, 1) != draw_sample(ids, 10, 2)
    assert draw_sample(ids, 5000, 1) == set(ids)
    # Every id is as likely as the next: 200 draws of one in ten.
    times_drawn = sum("7" in draw_sample(ids, 100, seed) for seed in range(200))
    assert 5 <= times_drawn <= 40


ONE = raw_row(1, "太阳花怎么养", [["喜温暖。", "耐瘠薄。"]], ["喜温暖"])


def questions(paths: list[Path], split: str | None = None, block_bytes: int = 1 << 20) -> list[tuple[str, int, str]]:
    """Return the split, the line number and the text of every question."""
    lines = []
    for block in read_blocks(find_sources(paths, split), block_bytes):
        for start, row in parse_rows(block):
            lines.append((block.source.split, line_number(block.source, start), row.question))
    return lines


SPLITS = {
    "train": ("search.train.json", "raw/trainset/zhidao.json"),
    "dev": ("raw/devset/search.dev.json.gz", "dev/rows.json"),
    "test": ("dureader-retrieval-test1/test1.json",),
    None: ("my-test-folder/rows.json", "contest.json", "traindev.json", "train.dev.json"),
}


def test_names_tell_the_split() -> None:
    for split, names in SPLITS.items():
        for name in names:
            assert split_of(name) == split, name


def test_plain_gzip_zip_and_folders_hold_the_same_rows(tmp_path: Path) -> None:
    rows = [raw_row(i, f"问题{i}", [["段落"]], ["段落"]) for i in range(5)]
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
    assert names == [
        "search.train.json",
        "zhidao.train.json",
        "search.dev.json",
        "zhidao.dev.json",
        "search.test.json",
    ]


@pytest.mark.parametrize("block_bytes", [1, 7, 64, 1 << 20])
def test_blocks_of_any_size_give_the_same_rows_and_lines(tmp_path: Path, block_bytes: int) -> None:
    rows = [raw_row(i, f"问题\u2028{i}\u0085", [["段\u2029落"]]) for i in range(4)]
    path = write_rows(tmp_path / "train.json", rows)
    text = path.read_text(encoding="utf-8").replace("\n", "\n\n", 1)  # a blank line has no row but counts as a line
    path.write_bytes(b"\xef\xbb\xbf" + text.rstrip("\n").encode())  # with a byte order mark, without a final line end
    assert questions([path], None, block_bytes) == [
        ("train", 1, "问题\u20280\u0085"),
        ("train", 3, "问题\u20281\u0085"),
        ("train", 4, "问题\u20282\u0085"),
        ("train", 5, "问题\u20283\u0085"),
    ]


@given(
    lines=st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8"), max_size=9), max_size=9),
    size=st.integers(1, 40),
    end=st.booleans(),
)
@settings(max_examples=200)
def test_ranges_hold_every_line_once(tmp_path_factory: pytest.TempPathFactory, lines, size, end) -> None:  # type: ignore[no-untyped-def]
    text = "\n".join(["x", *lines])
    if end:
        text += "\n"
    content = text.encode()
    folder = tmp_path_factory.mktemp("ranges")
    (folder / "train.json").write_bytes(content)
    (folder / "train.json.gz").write_bytes(gzip.compress(content))
    for source in find_sources([folder]):
        all_blocks = list(read_blocks([source], size))
        assert b"".join(block.data for block in all_blocks) == content
        assert [block.number for block in all_blocks] == list(range(len(all_blocks)))
        for block in all_blocks:
            assert block.start == 0 or content[block.start - 1 : block.start] == b"\n"
            assert content[block.start : block.start + len(block.data)] == block.data


def read_error(folder: Path, line: bytes, unit: str) -> str:
    """Return the error of a file whose line 7 is this line."""
    (folder / "x.train.json").write_bytes(b"\n" * 6 + line)
    (folder / "work").mkdir(exist_ok=True)
    with pytest.raises(InputError) as error:
        for block in read_blocks(find_sources([folder])):
            label_block(block, SpanOptions(unit=unit), folder / "work")
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
    for line, expected_message in cases.items():
        assert line != good
        message = read_error(tmp_path, line, unit)
        assert message.startswith(f"{tmp_path}/x.train.json:7: ")
        assert expected_message in message
        assert "\n" not in message


# Chinese of every kind that the two treat differently or might, Latin letters, digits and signs next to each other,
# full-width forms, blanks of many kinds, emoji with and without joiners, other scripts and their digits.
PIECES = [
    "A股", "T恤", "卡拉OK", "γ射线", "C++", "c#", "AT&T", "3.5%", "10%", "2016-09-04", "jingyan.baidu.com", "3.5.6",
    "\U0003ffff",
    "\r\n", "\r", "\n", "\t", " ", "\u3000", "\xa0", "\u2028", "\u2029", "\x85", "\x1c", "\u200b", "\ufeff", "\0",
    "😀", "👨‍👩‍👧", "❤️", "é", "ß", "İ", "أ", "١", "क", "あ", "カ", "한", "²", "½", "Ⅳ", "①", "㎡",
]  # fmt: skip
PIECES += "的在常度不一了上我他们中国人大学北京清华绿萝浇水怎么养股票王小明龘囧〇々"
PIECES += "aZ09+#&._%-@/\\:,;!?'\"()<>*~^|`$={}[]"
PIECES += "，。！？、；：“”（）《》·—…％＋－．ＡＢ０９￥"
PIECES += "㐀䶿鿕鿖鿿豈﫿𠀀𪛟𫝀丽"
ODD_TEXTS = st.lists(st.sampled_from(PIECES) | st.characters(exclude_categories=["Cs"]), max_size=40).map("".join)


def model_terms(cut: list[str]) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """The likelihood of a cut in jieba's model, from places of characters in words, and their sequence."""
    tags = ""  # S: a word of one character; B, M, E: the begin, middle and end of a longer word
    for word in cut:
        tags += "S" if len(word) == 1 else f"B{'M' * (len(word) - 2)}E"
    return Counter(zip("".join(cut), tags, strict=True)), Counter(itertools.pairwise(tags))


@settings(max_examples=500)
@given(ODD_TEXTS)
@example("度票票票们")  # 度票 票票们, 度票票 票们: the same terms, added in another order
def test_random_texts_are_cut_as_jieba_cuts_them(text: str) -> None:
    ours, theirs = split_words(text), split_words(text, "jieba")
    assert ours == theirs or model_terms(ours) == model_terms(theirs)


def test_odd_texts_are_cut_as_jieba_cuts_them() -> None:
    odd = "\r\n\r\n|的|龘|-|--|-5|WES-5.4.5|看ISU-CNS24093吧|AT&T.C#-5C++++|T恤-5.4T恤|1.2.3%%|北京㐀大学|a㐀b.c𠀀-d"
    texts = ["", " ", "\u2028", "网址jingyan.baidu.com在2016-09-04更新", "％３．５", "γ射线-γ"]
    texts += odd.split("|")
    for text in texts:
        assert split_words(text) == split_words(text, "jieba"), text
        assert "".join(split_words(text)) == text


def test_the_rules_taken_over_are_those_of_the_installed_jieba() -> None:
    word_cutter("jieba")
    import jieba

    assert segment._SKIP.pattern == jieba.finalseg.re_skip.pattern
    takes_in = {chr(code) for code in range(0x110000) if jieba.re_han_default.match(chr(code))}
    assert {character for character in takes_in if character.isascii()} == segment._LATIN
    assert not any(segment._RARE_RUN.match(character) for character in takes_in)
    import rjieba

    latin_words = set()
    for word, count in jieba.dt.FREQ.items():
        if count and len(word) > 1 and set(word) <= segment._LATIN:
            latin_words.add(word)
    assert latin_words
    assert all(map(rjieba.has_word, latin_words))


def paragraphs(folder: Path) -> Iterator[str]:
    """Yield the questions, answers and paragraphs of raw rows."""
    for path in sorted(folder.glob("*.gz")):
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
            for record in map(json.loads, lines):
                yield record["question"]
                yield from record.get("answers") or []
                for document in record["documents"]:
                    yield from document["paragraphs"]


def test_the_real_paragraphs_are_cut_as_jieba_cuts_them(shared_data: Path) -> None:
    texts = list(paragraphs(shared_data / "dureader-2.0-demo"))[::4]
    assert not [text for text in texts if split_words(text) != split_words(text, "jieba")]


def test_the_pair_that_rounding_decides_is_cut_as_jieba_cuts_it() -> None:
    around = ["", "3.5", "稳定", "活动", "王小明", "一起", "锻炼", "常在"]
    around += "，a的此乡打经㐀龘"
    for before, after, end in itertools.product(around, around, ["", "的", "一起"]):
        text = f"{before}常在{after}{end}"
        assert split_words(text) == split_words(text, "jieba"), text
