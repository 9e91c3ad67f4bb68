"""The pictures of `compare --plot` and `evaluate --plot`: rows, marks, groups, fonts and files."""

from pathlib import Path
from typing import Any

import matplotlib
import pyarrow as pa
import pytest
from commands import run
from matplotlib import font_manager
from releases import QUESTIONS, TEXTS, make_release, md5, tables

from baselines.measure.comparison import SignificanceRule, compare_systems
from baselines.measure.comparison_plot import comparison_figure, measure_panels
from baselines.measure.evaluation_plot import MOST_RUNS, evaluation_figure, rank_shares, type_marks
from baselines.measure.plot_labels import shorten_name, shorten_names
from builders.core.image_fonts import choose_fonts
from builders.core.images import render_figure
from builders.store.runs import write_run

MEASURE = "MRR@10"
PNG_START = b"\x89PNG\r\n"


def table_of(values: list[float], ranks: list[int | None] | None = None) -> pa.Table:
    """Return the values by query of a run: the paper's measures, and the ranks of the first positives."""
    return pa.table(
        {
            "run": ["a.run"] * len(values),
            "query_id": [str(number) for number in range(len(values))],
            "MRR@10": values,
            "recall@1": [float(value == 1) for value in values],
            "recall@50": [1.0] * len(values),
            "first_positive_rank": pa.array(ranks or [1] * len(values), pa.int64()),
        }
    )


def three_systems() -> tuple[dict[str, Any], list[pa.Table]]:
    """Return the comparison of a weak and two strong systems. The strong systems differ on one query."""
    weak = table_of([0.1] * 30)
    strong = table_of([1.0] * 29 + [0.5])
    strongest = table_of([1.0] * 30)
    systems = [weak, strong, strongest]
    names = ["weak", "strong", "best $x^2$"]
    return compare_systems(names, systems, [MEASURE], settings=SignificanceRule(resamples=99)), systems


def test_rows_are_best_first_and_a_line_joins_each_group() -> None:
    result, systems = three_systems()
    axes = comparison_figure(result, systems).axes
    labels = [label.get_text() for label in axes[0].get_yticklabels()]
    assert labels == ["c  best $x^2$", "b  strong", "a  weak"]
    (panel,) = measure_panels(result, systems, [2, 1, 0])
    assert panel.groups == [[0, 1], [2]]
    assert panel.means == pytest.approx([100, 100 * 29.5 / 30, 10])
    assert panel.intervals[2] == pytest.approx((10, 10))
    # The lines of the groups, and their dots.
    assert [list(line.get_ydata()) for line in axes[1].lines] == [[0, 1], [0, 1], [2, 2], [2]]
    assert axes[0].get_title() == "MRR@10, %"


def test_question_types_have_a_mark_for_each_run_and_ranks_a_bar() -> None:
    first = table_of([1, 0.5, 0, 0], [1, 2, 30, None])
    second = table_of([0, 0, 0, 0.25], [None, 11, 51, 4])
    types = {"ENTITY": [0, 1], "YES_NO": [2, 3]}
    assert [(mark.type_name, mark.question_count, mark.mean) for mark in type_marks(first, types)] == [
        ("all questions", 4, 37.5),
        ("ENTITY", 2, 75),
        ("YES_NO", 2, 0),
    ]
    shares = {"1": 25, "2-3": 25, "4-5": 0, "6-10": 0, "11-50": 25, "not in the top 50": 25}
    assert rank_shares(first) == shares
    figure = evaluation_figure(["one.run", "two.run"], [first, second], types)
    type_axes, rank_axes = figure.axes
    assert [label.get_text() for label in type_axes.get_yticklabels()] == [
        "all questions (4)",
        "ENTITY (2)",
        "YES_NO (2)",
    ]
    assert [label.get_text() for label in rank_axes.get_yticklabels()] == ["one.run", "two.run"]
    bars = [[bar.get_width() for bar in bars_of_class] for bars_of_class in rank_axes.containers]
    assert bars == [[25, 0], [25, 0], [0, 25], [0, 0], [25, 25], [25, 50]]
    # No mark needs a colour.
    assert {line.get_color() for line in type_axes.lines} <= {"#000000", "#8c8c8c"}


@pytest.mark.parametrize("image_format", ["png", "svg"])
def test_the_same_comparison_has_the_same_bytes(image_format: str) -> None:
    images = [render_figure(comparison_figure(*three_systems()), image_format) for _ in range(2)]
    assert images[0] == images[1]
    assert b"<dc:date>" not in images[0]
    if image_format == "svg":
        assert "best $x^2$" in images[0].decode()


def test_chinese_names_have_a_font_that_is_installed() -> None:
    fonts = choose_fonts(["中文 BM25"])
    if fonts.missing:
        pytest.skip("no font with Chinese characters is installed")
    font_paths = {entry.name: entry.fname for entry in font_manager.fontManager.ttflist}
    assert font_manager.get_font(font_paths[fonts.families[-1]]).get_char_index(ord("中"))
    assert choose_fonts(["BM25"]).families == ("DejaVu Sans",)


def test_without_a_chinese_font_names_have_no_boxes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Only the fonts that come with matplotlib. One of them draws a box for every character.
    own_folder = str(Path(matplotlib.get_data_path()))
    own_fonts = [entry for entry in font_manager.fontManager.ttflist if str(entry.fname).startswith(own_folder)]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own_fonts)
    monkeypatch.setattr(font_manager, "findSystemFonts", list)
    fonts = choose_fonts(["中文 BM25", "b"])
    assert fonts.drawable("中文 BM25") == "… BM25"
    assert len(caplog.records) == 1
    assert "中文" in caplog.text and "Noto Sans CJK SC" in caplog.text


def test_a_long_name_keeps_its_start_and_end() -> None:
    assert shorten_name("runs/bm25.run") == "runs/bm25.run"
    name = shorten_name(f"runs/{'folder/' * 20}bm25.dev.run.gz")
    assert len(name) == 44 and name.startswith("runs/folder") and name.endswith("bm25.dev.run.gz")


def test_long_names_that_differ_in_the_middle_have_different_labels() -> None:
    folders = ["experiments/2026-11/system_A", "experiments/2026-11/system_B"]
    names = [f"{folder}/full_collection/seed0/dev.run.gz" for folder in folders]
    assert shorten_names(names) == [f"…/system_{letter}/full_collection/seed0/dev.run.gz" for letter in "AB"]
    alike = [f"{'a' * 40}{letter}{'b' * 40}" for letter in "xy"]
    assert [label[:4] for label in shorten_names(alike)] == ["1  …", "2  …"]
    assert shorten_names(["x.run", "x.run"]) == ["x.run", "x.run"]  # a run that is given twice


def test_the_marks_of_24_runs_differ_and_more_runs_are_refused(world: Path, tmp_path: Path) -> None:
    names = [f"{number}.run" for number in range(MOST_RUNS)]
    type_axes = evaluation_figure(names, [table_of([1.0, 0.5])] * MOST_RUNS, {}).axes[0]
    looks = [(line.get_marker(), line.get_markerfacecolor()) for line in type_axes.lines if len(line.get_xdata()) == 1]
    assert len(set(looks)) == len(looks) == MOST_RUNS == 24
    runs = [world / "one.run"] * (MOST_RUNS + 1)
    words = ("evaluate", "--release", world / "release", *runs, "--plot", tmp_path / "a.png")
    assert "--plot: expected at most 24 runs, found 25" in run("baselines", *words, code=2).stderr


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release, and two runs of its dev questions. Do not change them."""
    folder = tmp_path_factory.mktemp("plots")
    make_release(folder / "release", tables(TEXTS))
    passage_ids = [md5(text) for text in TEXTS]
    for name, order in (("one.run", passage_ids), ("two.run", passage_ids[::-1])):
        hits = [(passage_id, -float(rank)) for rank, passage_id in enumerate(order)]
        write_run(folder / name, [(md5(question), hits) for question in QUESTIONS["dev"]])
    return folder


@pytest.mark.parametrize("verb", ["evaluate", "compare"])
def test_a_picture_is_written_and_the_figures_stay(world: Path, tmp_path: Path, verb: str) -> None:
    words = [verb, "--release", world / "release", world / "one.run", world / "two.run"]
    for name in ("a.png", "a.svg"):
        done = run("baselines", *words, "--plot", tmp_path / name)
        assert done.stdout == run("baselines", *words).stdout
    assert (tmp_path / "a.png").read_bytes().startswith(PNG_START)
    assert b"</svg>" in (tmp_path / "a.svg").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg"]


@pytest.mark.parametrize("verb", ["evaluate", "compare"])
def test_another_suffix_is_one_line(world: Path, tmp_path: Path, verb: str) -> None:
    words = [verb, "--release", world / "release", world / "one.run", world / "two.run"]
    done = run("baselines", *words, "--plot", tmp_path / "a.jpg", code=2)
    assert "a.jpg: expected a name that ends in .png or .svg" in done.stderr
    assert not list(tmp_path.iterdir())
