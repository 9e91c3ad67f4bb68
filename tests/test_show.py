"""The verb ``show``: a question, its best passages under each run, positives marked and terms in common shown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from releases import QUESTIONS, TEXTS, make_release, md5, tables

from baselines.look.excerpts import excerpt, marked
from builders.core.command import main
from builders.store.runs import write_run

TICKET, PHONE = QUESTIONS["dev"]
LONG = f"{'前面的话很多。' * 40}手机进水以后先关机。{'后面的话也很多。' * 40}"


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A release, and two runs: both answer the second question of dev, the first run alone the first."""
    make_release(tmp_path / "release", tables([*TEXTS, LONG]))
    both = (md5(PHONE), [(md5(TEXTS[0]), 2.5), (md5(TEXTS[5]), 1.25), (md5(LONG), 0.5), (md5(TEXTS[1]), 0.25)])
    write_run(tmp_path / "one.run", [(md5(TICKET), [(md5(TEXTS[4]), 3.0)]), both])
    write_run(tmp_path / "two.run", [both])
    return tmp_path


def show(world: Path, *words: str, runs: tuple[str, ...] = ("one.run",), split: str = "dev") -> int:
    first = ["show", "--release", str(world / "release"), "--split", split]
    return main("baselines", "", {"show": "baselines.look.show"}, [*first, *words, *(str(world / run) for run in runs)])


def test_a_question_is_shown_with_its_passages_ranked_and_the_positive_marked(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(world, "--query", PHONE, "--top-k", "2") == 0
    assert capsys.readouterr().out.splitlines() == [
        PHONE,
        f"question {md5(PHONE)} of dev",
        "",
        f"{world / 'one.run'}: 4 passages, 1 of 1 positive, at rank 2",
        f"  1  2.5000  {md5(TEXTS[0])}",
        f"     {TEXTS[0]}",
        f"  2  1.2500  {md5(TEXTS[5])}  positive",
        f"     {TEXTS[5]}",
    ]


@pytest.mark.parametrize("query", [md5(PHONE), PHONE, "进水"], ids=["id", "text", "part of the text"])
def test_a_question_is_named_by_its_id_its_text_or_a_part_of_it(
    world: Path, capsys: pytest.CaptureFixture[str], query: str
) -> None:
    assert show(world, "--query", query) == 0
    assert capsys.readouterr().out.startswith(f"{PHONE}\nquestion {md5(PHONE)} of dev\n")


def test_without_a_name_it_is_the_first_question_that_every_run_answers(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(world) == 0
    assert f"question {md5(TICKET)} of dev (the first that the run answers;" in capsys.readouterr().out
    assert show(world, runs=("one.run", "two.run")) == 0
    out = capsys.readouterr().out
    assert f"question {md5(PHONE)} of dev (the first that every run answers;" in out
    assert out.index("one.run: 4 passages") < out.index("two.run: 4 passages")


def test_a_long_passage_is_cut_around_the_terms_in_common(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(world, "--query", PHONE, "--chars", "30") == 0
    shown = capsys.readouterr().out.splitlines()[-1].strip()
    assert shown.startswith("…") and shown.endswith("…") and len(shown) <= 32
    assert "话很多。手机进水以后先关机。后面的话" in shown


def test_a_passage_without_terms_in_common_is_cut_at_its_end() -> None:
    cut = excerpt(marked(LONG, {"高铁"}), 10)
    assert "".join(word for word, _ in cut) == "前面的话很多。前面…"


def test_terms_are_highlighted_on_a_terminal_and_plain_elsewhere_or_with_no_color(
    world: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert show(world, "--query", PHONE) == 0
    plain = capsys.readouterr().out
    assert "\033" not in plain
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert show(world, "--query", PHONE) == 0
    out = capsys.readouterr().out
    assert "\033[1;33m手机\033[0m\033[1;33m进水\033[0m后先关机" in out
    assert "\033[1;32mpositive\033[0m" in out
    monkeypatch.setenv("NO_COLOR", "1")
    assert show(world, "--query", PHONE) == 0
    assert capsys.readouterr().out == plain


def test_a_split_without_judgments_is_shown_without_marks(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(world / "test.run", [(md5(QUESTIONS["test"][0]), [(md5(TEXTS[0]), 1.0)])])
    assert show(world, split="test", runs=("test.run",)) == 0
    out = capsys.readouterr().out
    assert "1 passage, no judgments" in out and out.endswith(f"{md5(TEXTS[0])}\n     {TEXTS[0]}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--query", "没有的问题"], "no question of 'dev' with the id or text '没有的问题'"),
        (["--query", TICKET], f"two.run: has no passages for the question {md5(TICKET)} ({TICKET})"),
        (["--query", "进水", "--split", "train"], "no question of 'train' with the id or text '进水'"),
        (["--split", "train"], "no question of 'train' that every run answers"),
        (["--set", "ccovid"], "has no config 'ccovid-queries' with a split 'dev'"),
    ],
)
def test_what_cannot_be_shown_is_one_error(
    world: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert show(world, *words, runs=("one.run", "two.run")) == 1
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("error: ") == 1
    assert captured.out == ""
