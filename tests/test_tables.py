"""Reading other projects' tables: encodings are detected or refused, and rows are complete."""

import contextlib
import csv
import gzip
import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders.core.errors import InputError
from builders.core.sampling import draw
from builders.sources.encoding import encoding_of
from builders.sources.tables import find_tables, header_of, open_table

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


def read(path: Path, columns: list[str] | None = COLUMNS, **options: bool) -> list[tuple[int, list[str]]]:
    spreadsheet = options.pop("spreadsheet", False)
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


def outcome(data: bytes) -> str:
    return encoding_of(lambda: contextlib.nullcontext(io.BytesIO(data)), "x")


@given(st.lists(st.sampled_from(SENTENCES), min_size=3), st.sampled_from(["big5", "shift_jis", "euc_kr", "utf-16-le"]))
def test_another_encoding_never_becomes_wrong_characters(texts: list[str], encoding: str) -> None:
    text = "\n".join(texts)
    data = text.encode(encoding, "ignore") * 10
    if sum(byte > 127 for byte in data) < 400:
        return
    try:
        found = outcome(data)
    except InputError:
        return
    assert data.decode(found) == data.decode(encoding)


@given(st.lists(st.sampled_from(SENTENCES), min_size=2), st.data())
def test_damaged_utf8_is_never_taken_for_gb18030(texts: list[str], data: st.DataObject) -> None:
    whole = bytearray("\n".join(texts).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert outcome(bytes(whole)) == "utf-8"
    except InputError as error:
        assert ":" in str(error)


cells = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\r\ufeff"), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(cells, cells), min_size=1), st.sampled_from(["\t", ","]))
def test_what_csv_writes_is_read_back(tmp_path: Path, rows: list[tuple[str, str]], delimiter: str) -> None:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows([("id", "text"), *rows])
    path = save(tmp_path, text.getvalue().encode(), "t.tsv")
    assert [tuple(fields) for _, fields in read(path, spreadsheet=True)] == rows


def test_a_draw_is_reproducible_and_a_longer_one_contains_it() -> None:
    ids = [str(number) for number in range(1000)]
    assert draw(ids, 10, 1) == draw(reversed(ids), 10, 1) < draw(ids, 20, 1)
    assert draw(ids, 10, 1) != draw(ids, 10, 2)
    assert draw(ids, 5000, 1) == set(ids)
    # Every id is as likely as the next: 200 draws of one in ten.
    times = sum("7" in draw(ids, 100, seed) for seed in range(200))
    assert 5 <= times <= 40
