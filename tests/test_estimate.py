"""``estimate``: what a row costs before it is started, held against what tiny rows write and compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import run
from releases import QUESTIONS, TEXTS, make_release, tables
from tiny_models import write_bert
from torch.utils.flop_counter import FlopCounterMode

# Every passage has the words of every question, so that runs are as long as they can be.
PASSAGES = [text + "".join(each for asked in QUESTIONS.values() for each in asked) for text in TEXTS]
# Every text is cut, so that none is shorter than its recipe allows.
SETTINGS = """
["*"]
model.start = "{start}"
train.epochs = 12
train.max_steps = 12
train.batch = 4
train.mini_batch = 2
train.saves = 2
train.evaluations = 0
train.precision = "fp32"
data.negatives_per_positive = 1
data.query_length = 5
data.passage_length = 6
data.dev_passages = 4
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release, a tiny start, settings that begin with it."""
    folder = tmp_path_factory.mktemp("estimate")
    make_release(folder / "release", tables(PASSAGES))
    start = write_bert(folder / "start")
    (folder / "settings.toml").write_text(SETTINGS.format(start=start), encoding="utf-8")
    return folder


def estimated(*words: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("baselines", "estimate", "--quiet", *words, "--format", "json").stdout)
    return found


def of_world(world: Path, *words: object) -> dict[str, Any]:
    given = ["--release", world / "release", "--settings", world / "settings.toml", "--out", world / "runs"]
    return estimated(*given, *words)


def bytes_in(path: Path) -> int:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_size for each in files)


def test_rows_cost_what_their_steps_write_and_compute(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(world / "cache"))
    # The two short texts that a model is tried with when it is opened are not estimated.
    for module in ("loading", "opening"):
        monkeypatch.setattr(f"baselines.models.{module}.check_reading", lambda *_: None)
    steps = {
        step["output"]: step
        for table, row in ((4, "de-bm25-neg"), (5, "ce-bm25-neg-on-bm25"))
        for step in of_world(world, "--table", table, "--row", row)["steps"]
    }
    for name, step in steps.items():
        with FlopCounterMode(display=False) as counter:
            run(*step["command"], "--quiet")
        verb, output = step["command"][1], world / "runs" / name
        # FAISS multiplies queries and passages, of which PyTorch knows nothing; nor does it count this CPU's fused
        # attention. Each state's card by the library runs the model on three examples, which are not estimated.
        products = 2 * 2 * 6 * 32 if verb == "search" else 0
        assert step["operations"] == pytest.approx(counter.get_total_flops() + products, rel=0.06), name
        states = output.with_name(f"{output.name}.training")
        written = bytes_in(output) + (bytes_in(states) if states.is_dir() else 0)
        if verb == "train":
            assert step["kept"] == pytest.approx(written, rel=0.05), name
        else:  # of some hundred bytes: what a file begins and ends with is most of it
            assert abs(step["kept"] - written) < 1_000, name


def test_a_row_needs_what_its_steps_keep_and_the_largest_of_them_on_top(world: Path) -> None:
    report = of_world(world, "--table", 4, "--row", "de-bm25-neg")
    (row,) = report["rows"]
    steps = report["steps"]
    assert row["kept"] == pytest.approx(sum(each["kept"] for each in steps) + sum(report["cache"].values()), abs=9)
    assert row["most"] - row["kept"] == max(each["most"] - each["kept"] for each in steps)
    assert row["operations"] == pytest.approx(sum(each["operations"] for each in steps))
    assert set(report["cache"]) == {"BM25's index of corpus", "unpacked texts of corpus"}


def test_hours_are_operations_over_the_share_of_a_given_peak(world: Path) -> None:
    report = of_world(world, "--table", 4, "--row", "de-bm25-neg", "--peak", 0.5, "--share", 0.25)
    for step in report["steps"]:
        wanted = step["operations"] / (0.5e12 * 0.25) / 3600 if step["operations"] else None
        assert step["hours"] == (wanted and pytest.approx(wanted))


def test_two_cards_share_a_training_and_nothing_else(world: Path) -> None:
    one, two = (
        {
            each["step"]: each
            for each in of_world(world, "--table", 4, "--row", "de-bm25-neg", "--processes", n)["steps"]
        }
        for n in (1, 2)
    )
    assert two["de"]["hours"] == pytest.approx(one["de"]["hours"] / 2, rel=0.05)
    assert two["de-passages"] == one["de-passages"]


def test_a_start_that_another_recipe_trained_has_that_ones_architecture(world: Path) -> None:
    """de-cmedqa starts from what de-bm25-neg left, which the settings start from a tiny model, not from ERNIE."""
    settings = world / "chain.toml"
    first, start, rest = SETTINGS.partition('model.start = "{start}"\n')
    text = f"{first}{rest}[de-bm25-neg]\n{start.format(start=world / 'start')}"
    settings.write_text(text, encoding="utf-8")
    report = estimated("--settings", settings, "--table", 7, "--row", "de-fine-tuned")
    assert report["passages"] == {"cmedqa-corpus": 203_000}
    kept = {each["step"]: each["kept"] for each in report["steps"]}
    assert kept["cmedqa-de"] < 2 * kept["de"] < 5e6


def test_the_papers_collection_is_estimated_without_a_release() -> None:
    done = run("baselines", "estimate", "--table", 4, "--row", "bm25")
    lines = done.stdout.splitlines()
    assert lines[0] == (
        "the paper's collection, 8,096,668 passages; one H100 at 40 % of its peak; counted, nothing was run"
    )
    assert "BM25's index of corpus  4.7 GB" in lines


def test_drawn_training_questions_are_as_many_as_their_name_says() -> None:
    from baselines.cost.sizes import PaperSizes

    assert PaperSizes().pairs("main", "train") == 222_395
    assert PaperSizes().pairs("restrain-14K-interpolation", "train") == 35_980  # of 2.57 passages each (Table 3)


def test_what_a_card_cannot_hold_is_marked(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from baselines.cost import cards

    small = cards.Card("H100", bf16=1e12, tf32=1e12, fp32=1e12, memory=1e9)
    monkeypatch.setitem(cards.CARDS, "H100", small)
    given = ["--release", world / "release", "--settings", world / "settings.toml", "--table", 4]
    shown = run("baselines", "estimate", "--quiet", *given, "--row", "de-bm25-neg").stdout
    assert "2.0 GB!" in shown
    assert shown.splitlines()[-1] == "!: more than the card has"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--table", 4, "--row", "bm52"], "no row fits --table 4 --row bm52"),
        (["--table", 3], "nothing is run for these"),
        (["--split", "train"], "--split train: the paper measures on dev and test"),
        (["--release", "nowhere"], "not a release directory"),
    ],
)
def test_what_cannot_be_estimated_is_one_line(words: list[object], error: str) -> None:
    assert error in run("baselines", "estimate", *words, code=1).error


def test_a_start_that_is_no_model_is_one_line(world: Path) -> None:
    settings = world / "wrong.toml"
    settings.write_text(f'[de-bm25-neg]\nmodel.start = "{world / "release"}"\n', encoding="utf-8")
    error = run("baselines", "estimate", "--settings", settings, "--table", 4, "--row", "de-bm25-neg", code=1).error
    assert "its config.json cannot be read" in error
