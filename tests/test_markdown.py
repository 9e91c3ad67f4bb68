"""Foreign names and texts in cards are escaped for Markdown, HTML and terminals."""

from pathlib import Path

import pyarrow as pa
import pytest
from commands import run
from releases import BUILD, QUESTIONS, TEXTS, make_release, md5, tables

from builders.core.errors import InputError
from builders.core.tables import as_code, as_text
from builders.store.card import card
from builders.store.draft import draft_release
from builders.store.layout import schema_of
from builders.store.manifest import Build, Source
from builders.store.runs import write_run

WILD = "<script>alert(1)</script> ![x](http://example.org/x.png) | **b** `c` \033[2J\u2028# d"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("dev_run.json", "dev_run.json"),
        ("<b>a & b</b>", r"\<b\>a \& b\</b\>"),
        ("a | b", r"a \| b"),
        ("a\n# b\033[0m", r"a\\n# b\\x1b\[0m"),
    ],
)
def test_a_text_is_no_markup(text: object, shown: str) -> None:
    assert as_text(text) == shown


def test_a_code_span_ends_where_its_text_ends() -> None:
    assert [as_code(each) for each in ("问：", "a``b`", "a|b\n")] == ["`问：`", "``` a``b` ```", r"`a\|b\n`"]


def test_a_card_shows_the_names_of_sources_and_options_as_text() -> None:
    built = card([], {"table3": {}, "collections": {}}, [Build(WILD, {"unit": WILD}, [Source(WILD, 1, "0" * 64)])])
    assert "<script>" not in built.replace("`<script>", "").replace(r"\<script\>", "")
    assert r"- \<script\>" in built and f"unit = {as_text(WILD)}, from:" in built
    assert "\033" not in built and "\u2028" not in built


def test_no_passage_and_no_query_stands_in_a_release_card_or_its_figures(tmp_path: Path) -> None:
    rows = tables([f"{WILD} {text}" for text in TEXTS])
    with draft_release(tmp_path / "release", BUILD) as draft:
        for (config, split), own in rows.items():
            draft.write(config, split, [pa.Table.from_pylist(own, schema_of(config))])
    for path in (tmp_path / "release").glob("*.*"):
        assert "alert(1)" not in path.read_text(encoding="utf-8"), path


def test_a_terminal_is_shown_control_characters_and_obeys_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{WILD} {text}" for text in TEXTS]
    release = make_release(tmp_path / "release", tables(texts))
    write_run(tmp_path / "a.run", [(md5(QUESTIONS["dev"][0]), [(md5(texts[4]), 1.0)])])
    shown = run("baselines", "show", "--release", release, "--chars", 1000, tmp_path / "a.run").stdout
    assert "\033" not in shown and r"\x1b[2J" in shown and "<script>" in shown


def test_an_error_is_one_line_whatever_it_names() -> None:
    error = InputError("has 'a\nb\033[2J\ud800'", path=Path("x\ny"), line=3)
    assert str(error) == r"x\ny:3: has 'a\nb\x1b[2J\ud800'"
