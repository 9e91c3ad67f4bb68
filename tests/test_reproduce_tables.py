"""The report of ``reproduce``: marks, tables, Figure 2, the page, the leaderboard, and the costs of a dry run."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest
from commands import ROOT, Done, run
from pages import Seen
from releases import make_release, quality_tables
from reproduce_world import reported, reproduce
from scipy import stats

from baselines.measure.significance import holm_correction
from baselines.reproduce.leaderboard import leaderboard_values, read_leaderboard
from baselines.reproduce.published_scores import read_published_scores
from baselines.reproduce.report import MeasuredRow, Reference, other_data, other_models, paired_tests, rate_nearness
from baselines.reproduce.report_page import render_page
from baselines.reproduce.report_text import report_text
from baselines.reproduce.select_rows import RowSelection, TableRow, rows_of, select_rows
from baselines.reproduce.step_settings import NO_SETTINGS, StepSettings, read_settings
from baselines.reproduce.steps import Step, Steps
from baselines.train.recipe import read_recipe
from baselines.train.recipe_costs import KNOWN, CollectionSizes, ModelCost, call_cost
from builders.store.reader import open_release

BM25 = ("--table", 4, "--row", "bm25")
WHOLE = {"queries": 2000, "positives": 9863, "passages": 8_096_668}
ERNIE = "nghuyong/ernie-1.0-base-zh"
LIGHT, DARK = "#a9cce3", "#1f618d"  # "before (light blue) and after (dark blue)"
TRAINING = {
    "recipe": "de-bm25-neg",
    "losses": [[step, 4 / step] for step in range(1, 40)],
    "measure": "MRR@10",
    "dev": [[20, 0.2], [39, 0.6]],
    "steps": 39,
    "seconds": 12.0,
    "device": "CPU",
}


@pytest.fixture
def here(tmp_path: Path, own_cache: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(ROOT)
    make_release(tmp_path / "release", quality_tables())
    return tmp_path


def test_near_is_what_our_interval_holds() -> None:
    marks = {60.0: "OK", 58.0: "OK", 63.0: "OK", 57.99: "close", 55.5: "close", 65.5: "close", 65.6: "off"}
    assert {figure: rate_nearness((58.0, 63.0), figure) for figure in marks} == marks  # twice as wide: 55.5 to 65.5


def test_data_are_the_papers_where_split_and_sizes_are() -> None:
    data = read_published_scores().data
    assert other_data(WHOLE, "dev", data["official-dev"]) == []
    assert other_data(WHOLE, "test", data["official-dev"]) == ["measured on test, published on dev"]
    reasons = other_data(WHOLE | {"passages": 7, "queries": 3}, "dev", data["official-dev"])
    assert reasons == ["7 passages, not 8,096,668", "3 queries, not 2,000"]


@pytest.mark.parametrize(
    ("settings", "reasons"),
    [
        ("", []),
        # Another seed is the same experiment. Evaluation and saving do not change it, either.
        ("['*']\ntrain.seed = 7\ntrain.saves = 0\n[options.encode]\nshard-rows = 9\n", []),
        ("[de-bm25-neg]\nmodel.start = 'm'\nmodel.pooling = ''\n", [f"de-bm25-neg starts from m, not from {ERNIE}"]),
        ("[options.rerank]\ntop-k = 20\n", ["rerank --top-k 20"]),
    ],
)
def test_another_start_and_another_training_are_named(tmp_path: Path, settings: str, reasons: list[str]) -> None:
    (tmp_path / "settings.toml").write_text(settings)
    read = read_settings(tmp_path / "settings.toml")
    assert other_models(steps_of("ce-de-neg-on-de", read), read) == reasons
    assert other_models(steps_of("bm25", read), read) == []
    scratch = steps_of("de-bm25-neg", NO_SETTINGS, scratch=True)
    assert other_models(scratch, NO_SETTINGS) == ["models from scratch, not from pretrained weights"]


def steps_of(row_name: str, settings: StepSettings, *, scratch: bool = False) -> list[Step]:
    """Return the steps of a row, which are recorded when the row is run."""
    steps = Steps(Path("R"), Path("O"), scratch=scratch, settings=settings)
    for row in select_rows(steps, RowSelection(row=row_name)):
        row.run()
    return list(steps.recorded.values())


def cells_of(lines: str) -> list[list[str]]:
    """Return the words of each line."""
    return [line.split() for line in lines.splitlines()]


def test_table_4_says_what_it_was_measured_on_as_text_json_and_page(here: Path) -> None:
    release = here / "release"
    footnote = "(1) not comparable: measured on dev, published on test; 6 passages, not 8,096,668"
    settings = "--top-k 50 --k1 1.2 --b 0.75 --analyzer words --stop-words keep"
    out = here / "out" / "bm25.dev.run.gz"
    command = f"python -m baselines bm25 --release {release} --split dev --out {out} {settings}"

    # The text
    text = reproduce(here, *BM25).stdout
    assert f"measured on: release {release}, split dev, 2 queries with positives, 6 passages" in text
    assert "embedded sample" not in text
    assert "from scratch" not in text
    row = "BM25 100.00 100.00 100.00 | 21.03 12.08 70.00 paper, test not comparable (1)"
    assert row.split() in cells_of(text)
    assert cells_of("95 % 100.0-100.0 100.0-100.0 100.0-100.0 |")[0] in cells_of(text)
    assert footnote in text

    # JSON
    report = reported(here, *BM25, "--html", here / "x.html")
    first = report["rows"][0]
    assert (first["metric"], first["ours"], first["interval"]) == ("MRR@10", 100.0, [100.0, 100.0])
    assert (first["published"], first["published_by"], first["mark"]) == (21.03, "paper, test", "not comparable")
    assert first["why"] == ["measured on dev, published on test", "6 passages, not 8,096,668"]
    assert first["like_for_like"] is None
    step = report["steps"]["bm25.dev.run.gz"]
    assert (step["command"], step["processes"]) == (command, 1)
    assert step["seconds"] >= 0

    # The page
    page = (here / "x.html").read_bytes()
    reproduce(here, *BM25, "--html", here / "x.html")
    assert (here / "x.html").read_bytes() == page
    page_text = Seen(page.decode()).text
    for words in ("BM25100.00100.00100.00", "95 %100.0-100.0", "not comparable (1)", footnote, command):
        assert words in page_text
    assert f"{release}, 6 passages: not comparable with the other tables; dev questions" in page_text


@pytest.mark.parametrize(
    ("series", "judged_by", "score", "color", "color_of_other_series"),
    [("before", "qrels-before", 50, LIGHT, DARK), ("after", "", 100, DARK, LIGHT)],
)
def test_a_bar_of_figure_2_is_measured_by_the_judgments_of_its_time(
    here: Path, series: str, judged_by: str, score: int, color: str, color_of_other_series: str
) -> None:
    # BM25 finds both answers; before the correction the first question had another, of which it finds no word.
    report = reported(here, "--row", f"bm25-{series}")
    assert [row["ours"] for row in report["rows"]] == [score] * 3
    for row in report["rows"]:
        assert (row["figure"], row["table"], row["series"], row["published"]) == (2, None, series, None)
    assert [measured_set["by"] for measured_set in report["sets"]] == [judged_by]
    paths = [here / "out" / f"figure2.dev.{suffix}" for suffix in ("png", "svg")]
    images = [path.read_bytes() for path in paths]
    svg = images[1].decode()
    assert color in svg
    assert color_of_other_series not in svg
    words = [element.text for element in ElementTree.fromstring(svg).iter()]
    assert words.count(f"{score:.1f}") == 3
    assert {"BM25", series, "MRR@10, %", "Recall@1, %", "Recall@50, %"} <= set(words)
    lines = reproduce(here, "--row", f"bm25-{series}").stdout.splitlines()
    assert {f"drawn: {path}" for path in paths} <= set(lines)
    assert [path.read_bytes() for path in paths] == images
    row_without_published_numbers = ["BM25,", series] + [f"{score:.2f}"] * 3
    assert row_without_published_numbers in map(str.split, lines)


def measure_bar(series: str, values: dict[str, float]) -> MeasuredRow:
    """Return a bar of Figure 2 whose queries have these reciprocal ranks."""
    ranks = [round(1 / value) if value else None for value in values.values()]
    table = pa.table({"query_id": list(values), "first_positive_rank": pa.array(ranks, pa.int64())})
    row = TableRow(name="bm25", title="BM25", run=lambda: Step("", "", {}, Path()), series=series, figure=2)
    return MeasuredRow(row, row.run(), Reference("main", "dev", "", ""), {}, {}, {}, table)


def test_figure_2_tests_whether_the_corrections_improved_the_scores() -> None:
    before = {"q1": 0.5, "q2": 0.0, "q3": 1.0, "q4": 0.25, "q5": 0.1, "only before": 1.0}
    after = {"q5": 0.5, "q4": 1.0, "q3": 1.0, "q2": 0.2, "q1": 1.0, "only after": 0.0}
    tests = paired_tests([measure_bar("before", before), measure_bar("after", after)])
    shared_queries = ["q1", "q2", "q3", "q4", "q5"]
    after_values = np.array([after[query_id] for query_id in shared_queries])
    before_values = np.array([before[query_id] for query_id in shared_queries])
    first = tests[0]
    assert (first["title"], first["metric"], first["queries"]) == ("BM25", "MRR@10", 5)
    assert first["difference"] == 37.0
    assert first["difference"] == round(100 * np.mean(after_values - before_values), 2)
    assert first["p"] == pytest.approx(stats.ttest_rel(after_values, before_values).pvalue)
    assert [test["corrected"] for test in tests] == holm_correction([test["p"] for test in tests])
    assert paired_tests([measure_bar("after", after)]) == []


def test_figure_2_prints_the_tests(here: Path) -> None:
    report = reported(here, *BM25)
    assert report["tests"] == []
    report["rows"] += reported(here, "--row", "bm25-after")["rows"]
    report["tests"] = [{"figure": 2, "title": "BM25", "metric": "MRR@10", "queries": 2000, "difference": 12.5}]
    report["tests"][0] |= {"interval": [11.0, 14.0], "p": 1.23e-9, "corrected": 1.11e-8}
    printed = report_text(report)
    assert "Figure 2: after minus before, paired t-test over queries" in printed
    expected_line = "BM25: MRR@10 +12.50 +11.00 to +14.00 2,000 1.2e-09 1.1e-08"
    assert cells_of(expected_line)[0] in cells_of(printed)
    assert "1.2e-09" in Seen(render_page(report, [], {})).text


def test_the_rest_of_the_dev_questions_is_published_in_the_arxiv_versions_alone() -> None:
    published = read_published_scores()
    sources = {name: published.data[row.data].source for name, row in published.table["6"].items()}
    assert sources["with-similar-others"] == sources["without-similar-others"] == "arXiv versions of the paper"
    assert sources["with-similar-duplicated"] == "paper"


def test_start_replaces_every_pretrained_model_and_out_has_the_name_of_the_release(here: Path) -> None:
    # Without the release, the plan has every row.
    words = ["reproduce", "--release", here / "planned", "--dry-run", "--format", "json", "--start", "a/model"]
    commands = json.loads(run("baselines", words).stdout)
    trainings = {command[2]: command for command in commands if command[1] == "train"}
    assert "model.start=a/model" in trainings["de-bm25-neg"] and "model.start=a/model" in trainings["mbert-zero-shot"]
    assert "model.start=a/model" not in trainings["mbert-transferred"]  # starts from the checkpoint of a recipe
    for command in commands:
        if "--out" in command:
            assert command[command.index("--out") + 1].startswith("build/runs/planned/")
    refused = run("baselines", words, "--scratch", code=2)
    assert "--start replaces pretrained models, which --scratch does not use" in refused.stderr
    refused = run("baselines", "reproduce", "--start", "a/model", code=2)
    assert "--start needs --release DIR" in refused.stderr
    # With settings, the models of the embedded sample start from pretrained weights.
    words = ["reproduce", "--settings", ROOT / "baselines/settings/e5-cpu.toml", "--start", "a/model", "--dry-run"]
    assert "model.start=a/model" in run("baselines", words).stdout


@pytest.mark.slow
@pytest.mark.parametrize("bad", ["de-bm25-neg", '<script>alert(1)</script>" onload="x'])
def test_nothing_of_the_page_is_fetched_or_run(here: Path, bad: str) -> None:
    report: dict[str, Any] = reported(here, *BM25)
    figure = reported(here, "--row", "bm25-before")
    report["rows"] += figure["rows"]
    report |= {"images": figure["images"], "trainings": [TRAINING | {"recipe": bad, "device": bad, "measure": bad}]}
    report |= {"release": bad, "notes": [bad], "predictions": [{"table": 4, "row": bad, "split": bad, "file": bad}]}
    report["steps"] = {bad: {"command": bad, "seconds": 1.0}}
    for row, mark in zip(report["rows"], ("OK", "close", "not comparable"), strict=False):
        row |= {"title": bad, "published_by": bad, "mark": mark, "why": [bad]}
    names = ("MRR@10", "Recall@1", "Recall@50", "nDCG@10", "R@10")
    own_run: dict[str, Any] = {"model": bad, "table_key": ("other", "dev", bad), "passages": 3}
    own_run |= {"figures": dict.fromkeys(names, 1.0), "intervals": dict.fromkeys(names, (0.0, 2.0))}
    content = render_page(report, leaderboard_values(read_leaderboard(), [own_run]), {})
    parsed_page = Seen(content)
    tag_names = {tag for tag, _ in parsed_page.tags}
    assert not tag_names & {"script", "link", "img", "iframe", "object", "embed", "form", "base"}
    for _, attributes in parsed_page.tags:
        assert not {"src", "srcset", "data", "action"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("href", "xlink:href"):  # only within the page
            assert (attributes.get(name) or "#").startswith("#")
    assert "@import" not in content
    assert "url(http" not in content
    policy = {"http-equiv": "Content-Security-Policy", "content": "default-src 'none'; style-src 'unsafe-inline'"}
    assert ("meta", policy) in parsed_page.tags
    assert content.count("<svg") == 2
    assert parsed_page.text.count(bad) > 10


def leaderboard(*words: object) -> Done:
    return run("baselines", "reproduce", "--leaderboard", words)


def test_the_figures_of_the_whole_collection_are_those_of_tables_4_and_5() -> None:
    figures = {}
    for figure in read_leaderboard().figures:
        if figure.searched == "whole":
            figures[figure.model, figure.split, figure.metric] = figure.value
    published = read_published_scores()
    for row in select_rows(Steps(Path("R"), Path("O")), RowSelection(tables=(4, 5))):
        split = published.data[row.data].split
        assert row.scores
        assert {metric: figures[row.title, split, metric] for metric in row.scores} == row.scores


def test_every_published_row_has_a_run() -> None:
    steps = Steps(Path("R"), Path("O"))
    published = read_published_scores()
    rows_of_tables = set()
    rows_of_figures = set()
    for row in rows_of(steps):
        if row.table:
            rows_of_tables.add((str(row.table), row.name))
        if row.figure:
            rows_of_figures.add((str(row.figure), row.name))
    assert list_published_rows(published.table) == rows_of_tables
    assert list_published_rows(published.figure) == rows_of_figures
    assert {row.name for row in rows_of(steps, of_pool=True)} == set(published.pool)


def list_published_rows(published: Mapping[str, Iterable[str]]) -> set[tuple[str, str]]:
    """Return the (number, row name) of every published row of the tables or figures."""
    pairs = set()
    for number, row_names in published.items():
        pairs |= {(number, name) for name in row_names}
    return pairs


def test_a_table_of_another_verb_names_the_verb(tmp_path: Path) -> None:
    for table, verb in ((2, "builders check"), (3, "builders check"), (10, "baselines errors tally")):
        stderr = reproduce(tmp_path, "--table", table, "--dry-run", code=2).stderr
        assert stderr.endswith(f"--table {table}: `python -m {verb}` prints this table\n")


def test_the_whole_and_the_sample_are_never_in_one_table() -> None:
    report = json.loads(leaderboard("--format", "json").stdout)
    whole_dev, whole_test, sample_dev = report["tables"]
    assert (whole_dev["searched"], whole_dev["split"]) == ("whole", "dev")
    assert (whole_test["searched"], whole_test["split"]) == ("whole", "test")
    assert (sample_dev["searched"], sample_dev["split"]) == ("sample", "dev")
    whole_models = {model["model"] for model in whole_dev["models"] + whole_test["models"]}
    sample_models = {model["model"] for model in sample_dev["models"]}
    assert not sample_models & whole_models
    assert len(sample_models) == 88
    for table in report["tables"]:
        first = table["measures"][0]
        values = [model["figures"][first] for model in table["models"]]
        assert values == sorted(values, reverse=True)
    assert set(report["sources"]) == {"paper", "official-code", "issue-39", "mteb"}
    lines = leaderboard("--searched", "whole", "--format", "markdown").stdout.splitlines()
    assert "### the whole collection, 8,096,668 passages; dev questions" in lines
    best = r"official dual-encoder \> official cross-encoder"
    assert f"| {best} | 72.84 | 64.10 | 91.75 | yes | official-code |" in lines


def test_an_own_run_on_another_collection_has_its_own_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    release = make_release(tmp_path / "release")
    path = tmp_path / "bm25.run"
    run("baselines", "bm25", "--release", release, "--out", path)
    lines = leaderboard(path, "--searched", "sample", "--top", 1, "--release", release).stdout.splitlines()
    assert lines[0] == "MTEB's sample of the collection, 100,001 passages; dev questions, the best 1 of 88"
    start = lines.index(f"{release}, 6 passages: not comparable with the other tables; dev questions")
    assert " ".join(lines[start + 1].split()) == "model MRR@10 Recall@1 Recall@50 nDCG@10 R@10 trained source"
    assert " ".join(lines[start + 2].split()) == f"{path} 100.00 100.00 100.00 100.00 100.00 - own run"
    intervals = "95 % 100.0-100.0 100.0-100.0 100.0-100.0 100.0-100.0 100.0-100.0"
    assert " ".join(lines[start + 3].split()) == intervals


KNOWN_ERNIE = KNOWN["nghuyong/ernie-1.0-base-zh"]
# The weights of ERNIE's layers: attention and feed-forward matrices, then biases and norms. Together 85.1 million.
LAYER_MATRICES = 4 * 768**2 + 2 * 768 * 3072
LAYERS = 12 * (LAYER_MATRICES + 9 * 768 + 3072)


def cost(sizes: CollectionSizes, verb: str, recipe: str = "", **arguments: str) -> ModelCost:
    """Estimate a step. ``recipe`` is the recipe of the training's or model's checkpoint m."""
    recipes = {"m": read_recipe(recipe)} if recipe else {}
    return call_cost(verb, arguments, sizes, recipes)


def test_the_sample_counted_by_hand(sample_release: Path) -> None:
    sizes = CollectionSizes(open_release(sample_release))
    assert cost(sizes, "bm25", split="dev") == (16, None, None, None)
    assert cost(sizes, "mine", split="train") == (30, None, None, None)
    # 49 pairs with 4 negatives are 196 rows: no whole batch of 256, and a training has one step at least.
    rows = 256
    tokens = rows * (32 + 2 * 384)
    disk = 4 * KNOWN_ERNIE.parameters * 7  # the checkpoint, and two states of three times its size
    training = cost(sizes, "train", "de-bm25-neg", out="m")
    assert training == (rows, tokens, 6 * LAYERS * tokens, disk)
    tokens = 383 * 384
    encoding = cost(sizes, "encode", "de-bm25-neg", model="m")
    assert encoding == (383, tokens, 2 * LAYERS * tokens, 383 * 768 * 2)
    tokens = 16 * 32
    search = cost(sizes, "search", "de-bm25-neg", model="m", split="dev")
    assert search == (16, tokens, 2 * LAYERS * tokens, None)
    tokens = 16 * 50 * 384
    reranking = cost(sizes, "rerank", "ce-bm25-neg", model="m", split="dev")
    assert reranking == (800, tokens, 2 * LAYERS * tokens, None)


def test_a_dry_run_is_a_script_whose_comments_are_the_costs(sample_release: Path, tmp_path: Path) -> None:
    words = ["reproduce", "--table", 4, "--row", "de-bm25-neg", "--out", tmp_path, "--dry-run", "--release"]
    lines = run("baselines", words, sample_release).stdout.splitlines()
    table = [line for line in lines if line.startswith("# ")]
    commands = [line for line in lines if line.startswith("python -m ")]
    assert lines == table + commands
    assert table[0] == f"# {sample_release}, by formula:"
    assert table[1].split() == ["#", "step", "rows", "tokens", "operations", "disk"]
    assert [line.split()[1] for line in table[2:]] == [
        "bm25.train.run.gz",
        "bm25.negatives.jsonl.gz",
        "models/de-bm25-neg",
        "embeddings/de-bm25-neg",
        "de-bm25-neg.dev.run.gz",
        "all",
    ]
    paper = run("baselines", words, "RELEASE").stdout
    assert paper.startswith("# the paper's collection, by formula:\n") and "3.6e+18  2.78 GB" in paper
