"""Output to terminals, pipes and cards in any encoding; foreign names and texts are escaped."""

import importlib
import io
import json
import logging
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from commands import run
from releases import BUILD, QUESTIONS, TEXTS, make_release, md5, tables

from builders.core import progress as progress_module
from builders.core.command import main
from builders.core.errors import InputError
from builders.core.exit_codes import exit_code
from builders.core.progress import progress
from builders.core.tables import as_code, as_text
from builders.store.card import card
from builders.store.draft import draft_release
from builders.store.layout import schema_of
from builders.store.manifest import Build, Source
from builders.store.runs import read_run, write_run


@pytest.fixture(scope="module")
def given(sample_release: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("given") / "bm25.dev.run"
    run("baselines", "bm25", "--quiet", "--release", sample_release, "--split", "dev", "--out", out)
    other = out.with_name("other.run")
    hits = read_run(out).hits.items()
    write_run(other, [(query, [(corpus, -score) for corpus, score in own]) for query, own in hits])
    return {"release": sample_release, "run": out, "other": other, "folder": out.parent}


def written(to: io.TextIOWrapper) -> str:
    to.flush()
    assert isinstance(to.buffer, io.BytesIO)
    return to.buffer.getvalue().decode(to.encoding)


@pytest.mark.parametrize("encoding", ["ascii", "gbk"])
@pytest.mark.parametrize(
    "words",
    [
        "builders official --list",
        "builders check --release {release}",
        "baselines show --release {release} --split dev {run}",
        "baselines evaluate --release {release} --split dev {run}",
        "baselines compare --release {release} --split dev {run} {other}",
        "baselines compare --release {release} --split dev {run} {other} --format latex",
        "baselines errors --release {release} --split dev {run} --format json",
        "baselines reproduce --release {release} --leaderboard {run}",
        "baselines reproduce --table 4 --row bm25 --release {release} --out {folder}/runs --one-process",
        "builders annotate --help",
    ],
)
def test_any_encoding_works(given: dict[str, Path], encoding: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    program, *rest = words.format(**given).split()
    try:
        code = main(program, "", importlib.import_module(f"{program}.__main__").VERBS, rest)
    except SystemExit as help_:
        code = help_.code  # type: ignore[assignment]
    monkeypatch.undo()
    assert code == 0, written(err)
    assert written(out)


def test_json_stays_json_in_any_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "é 中文 😀 \ud800"
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert exit_code(lambda: print(json.dumps(text, ensure_ascii=False)) or 0) == 0
    monkeypatch.undo()
    assert json.loads(written(out)) == text


def test_progress_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(progress_module, "EVERY", 0)
    assert list(progress(["a", "b"], label="encode", unit="row")) == ["a", "b"]
    assert any(line.startswith("encode:  50% 1.00/2.00 [") for line in caplog.messages), caplog.messages


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
