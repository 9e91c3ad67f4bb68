"""The verb ``show``: a question, its best passages under each run, positives marked and terms in common shown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from commands import Done, run
from releases import QUESTIONS, TEXTS, make_release, md5, tables

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


def show(world: Path, *words: str, runs: tuple[str, ...] = ("one.run",), split: str = "dev", code: int = 0) -> Done:
    paths = [world / run for run in runs]
    return run("baselines", "show", "--release", world / "release", "--split", split, *words, *paths, code=code)


def test_a_question_is_shown_with_its_passages_ranked_and_the_positive_marked(world: Path) -> None:
    shown = show(world, "--query", PHONE, "--top-k", "2").stdout
    assert shown.splitlines() == [
        PHONE,
        f"question {md5(PHONE)} of dev",
        "",
        f"{world / 'one.run'}: 4 passages, 1 of 1 positive, at rank 2",
        f"  1  2.5000  {md5(TEXTS[0])}",
        f"     {TEXTS[0]}",
        f"  2  1.2500  {md5(TEXTS[5])}  positive",
        f"     {TEXTS[5]}",
    ]
    for query in (md5(PHONE), "进水"):  # its id, or a part of its text
        assert show(world, "--query", query, "--top-k", "2").stdout == shown


def test_without_a_name_it_is_the_first_question_that_every_run_answers(world: Path) -> None:
    assert f"question {md5(TICKET)} of dev (the first that the run answers;" in show(world).stdout
    out = show(world, runs=("one.run", "two.run")).stdout
    assert f"question {md5(PHONE)} of dev (the first that every run answers;" in out
    assert out.index("one.run: 4 passages") < out.index("two.run: 4 passages")


def test_a_long_passage_is_cut_around_the_terms_in_common(world: Path) -> None:
    shown = show(world, "--query", PHONE, "--chars", "30").stdout.splitlines()[-1].strip()
    assert shown.startswith("…") and shown.endswith("…") and len(shown) <= 32
    assert "话很多。手机进水以后先关机。后面的话" in shown


def test_terms_have_colors_unless_told(
    world: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    words = ["show", "--release", str(world / "release"), "--query", PHONE, str(world / "one.run")]
    outputs = []
    for no_color in ("", "1"):
        monkeypatch.setenv("NO_COLOR", no_color)
        assert main("baselines", "", {"show": "baselines.look.show"}, words) == 0
        outputs.append(capsys.readouterr().out)
    assert "\033[1;33m手机\033[0m\033[1;33m进水\033[0m后先关机" in outputs[0]
    assert "\033[1;32mpositive\033[0m" in outputs[0] and "\033" not in outputs[1]


def test_what_cannot_be_shown_is_one_error(world: Path) -> None:
    done = show(world, "--query", TICKET, runs=("one.run", "two.run"), code=1)
    assert f"two.run: has no passages for the question {md5(TICKET)} ({TICKET})" in done.error and done.stdout == ""
    write_run(world / "bad.run", [(md5(PHONE), [("unknown", 1.0)])])
    error = show(world, runs=("bad.run",), code=1).error
    assert "bad.run: has a passage 'unknown' that the release's corpus lacks" in error
