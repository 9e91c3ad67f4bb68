"""The report of ``reproduce``: marks and footnotes, the tables as text, Figure 2, and the page."""

from __future__ import annotations

import io
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from browser import chromium, look
from commands import ROOT
from releases import make_release, md5, passage, quality_tables
from reproduce_world import reported, reproduce

from baselines.measure.qrels import Qrels
from baselines.reproduce.leaderboard import board, read_leaderboard
from baselines.reproduce.marks import nearness, other_data, other_models
from baselines.reproduce.matrix import read_matrix
from baselines.reproduce.page import page
from baselines.reproduce.report import Measured, side_by_side
from baselines.reproduce.settings import Settings, read_settings
from baselines.reproduce.steps import Stamp
from baselines.reproduce.text import text
from builders.store.reader import open_release

BM25 = ("--table", 4, "--row", "bm25")
WHOLE = {"queries": 2000, "positives": 9863, "passages": 8_096_668}
ERNIE = "nghuyong/ernie-1.0-base-zh"
LIGHT, DARK = (0xA9, 0xCC, 0xE3), (0x1F, 0x61, 0x8D)  # "before (light blue) and after (dark blue)"
LOSS, DEV, GREEN, YELLOW, RED = (
    *((0x1F, 0x61, 0xA0), (0xB9, 0x54, 0x1C), (0xD3, 0xF0, 0xDA), (0xFD, 0xF0, 0xC4), (0xFB, 0xD9, 0xD3)),
)
TRAINING = {
    **{"recipe": "de-bm25-neg", "losses": [[step, 4 / step] for step in range(1, 40)], "measure": "MRR@10"},
    **{"dev": [[20, 0.2], [39, 0.6]], "steps": 39, "seconds": 12.0, "device": "CPU"},
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a release that the quality strategies have been through."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make_release(tmp_path / "release", quality_tables())
    return tmp_path


@pytest.mark.parametrize(
    ("figure", "mark"),
    [(60.0, "OK"), (58.0, "OK"), (63.0, "OK"), (57.99, "close"), (55.5, "close"), (65.5, "close"), (65.6, "off")],
)
def test_near_is_what_our_interval_holds(figure: float, mark: str) -> None:
    assert nearness((58.0, 63.0), figure) == mark  # twice as wide: 55.5 to 65.5


def test_data_are_the_papers_where_split_and_sizes_are() -> None:
    on = read_matrix().published_on
    assert other_data(WHOLE, "dev", on["official-dev"]) == []
    assert other_data(WHOLE, "test", on["official-dev"]) == ["measured on test, published on dev"]
    fewer = other_data(WHOLE | {"passages": 7, "queries": 3}, "dev", on["official-dev"])
    assert fewer == ["7 passages, not 8,096,668", "3 queries, not 2,000"]
    cmedqa = other_data({"queries": 3999, "positives": 7000, "passages": 1}, "test", on["cmedqa"])
    assert cmedqa == ["7,000 positives, not 7,527"]


@pytest.mark.parametrize(
    ("settings", "reasons"),
    [
        ("", []),
        # Another seed is another draw of the same; what is measured and kept on the way changes nothing.
        ("['*']\ntrain.seed = 7\ntrain.saves = 0\n[options.encode]\nshard-rows = 9\n", []),
        ("[de-bm25-neg]\nmodel.start = 'm'\nmodel.pooling = ''\n", [f"de-bm25-neg starts from m, not from {ERNIE}"]),
        ("[ce-bm25-neg]\ntrain.epochs = 1\n", ["ce-bm25-neg with train.epochs = 1.0"]),
        ("[options.rerank]\ntop-k = 20\n", ["rerank --top-k 20"]),
    ],
)
def test_another_start_and_another_training_are_named(tmp_path: Path, settings: str, reasons: list[str]) -> None:
    (tmp_path / "settings.toml").write_text(settings)
    matrix, given = read_matrix(), read_settings(tmp_path / "settings.toml")
    fill = {"release": "R", "split": "dev", "out": "O", "variant": ""}
    for row, expected in (("ce-de-neg-on-de", reasons), ("bm25", [])):
        plan = matrix.plan(matrix.select(None, row), fill, given)
        assert other_models(plan.values(), given) == expected
    plan = matrix.plan(matrix.select(None, "de-bm25-neg"), fill | {"variant": "-scratch"})
    assert other_models(plan.values(), Settings()) == ["models from scratch, not from pretrained weights"]


def cells_of(lines: str) -> list[list[str]]:
    return [line.split() for line in lines.splitlines()]


def test_table_4_says_what_it_was_measured_on(here: Path) -> None:
    release, file = here / "release", here / "out" / "bm25.dev.run.gz"
    out = reproduce(here, *BM25).stdout
    assert f"measured on: release {release}, split dev, 2 queries with positives, 6 passages" in out
    assert "embedded sample" not in out and "from scratch" not in out
    measures = ["MRR@10", "Recall@1", "Recall@50"]
    assert [*measures, "|", "published:", *measures] in [line[:8] for line in cells_of(out)]
    theirs = ["|", "21.03", "12.08", "70.00", "paper,", "test", "not", "comparable", "(1)"]
    assert ["BM25", "100.00", "100.00", "100.00", *theirs] in cells_of(out)
    assert ["95", "%", *["100.0-100.0"] * 3, "|"] in cells_of(out)
    assert "(1) not comparable: measured on dev, published on test; 6 passages, not 8,096,668" in out

    report = reported(here, *BM25)
    (measured,) = report["sets"]
    assert (measured["passages"], measured["queries"], report["notes"]) == (6, 2, [])
    step = report["steps"]["bm25-dev"]
    assert report["rows"][0] == {
        "table": 4,
        "row": "bm25",
        "title": "BM25",
        "metric": "MRR@10",
        "ours": 100.0,
        "interval": [100.0, 100.0],
        "published": 21.03,
        "published_by": "paper, test",
        "mark": "not comparable",
        "why": ["measured on dev, published on test", "6 passages, not 8,096,668"],
        "like_for_like": None,
        "step": "bm25-dev",
        "seconds": step["seconds"],
    }
    bm25 = f"python -m baselines bm25 --release {release} --split dev --top-k 50 --out {file}"
    assert (step["command"], step["processes"]) == (bm25, 1) and step["seconds"] > 0


def text_of(here: Path, name: str, split: str) -> str:
    """The text of a report of one row, with made-up figures."""
    matrix = read_matrix()
    (row,) = matrix.select(None, name)
    qrels = Qrels("made up", {md5("q"): {passage("p")["docid"]: 1}})
    figures = dict.fromkeys(row.published, 50.0)
    measured = [Measured(row, split, qrels, figures, dict.fromkeys(figures, (40.0, 60.0)))]
    plan = matrix.plan([row], {"release": "R", "split": split, "out": "O", "variant": ""})
    done = dict.fromkeys(plan, Stamp(seconds=1.0))
    report = side_by_side(matrix, open_release(here / "release"), measured, plan, done, Settings())
    return text(report | {"notes": [], "images": [], "predictions": []})


def test_ours_on_dev_stands_beside_the_official_code_on_dev(here: Path) -> None:
    cells = cells_of(text_of(here, "de-bm25-neg", "dev"))
    start = next(number for number, line in enumerate(cells) if line[:3] == ["DE", "w/", "BM25"])
    theirs = ["53.96", "41.53", "91.33", "paper,", "test", "not", "comparable", "(1)"]
    assert cells[start][4:] == ["50.00", "50.00", "50.00", "|", *theirs]
    theirs = ["60.45", "49.75", "91.75", "official", "code,", "dev", "not", "comparable", "(2)"]
    assert cells[start + 2] == ["like", "for", "like", "|", *theirs]
    assert "like for like" not in text_of(here, "de-bm25-neg", "test")  # the paper's own split
    found = text_of(here, "official-ce", "dev")
    assert "official code, dev" in found and "paper, test" not in found
    assert "measured on" not in found.partition("(1) not")[2]  # both are of dev


def test_a_bar_of_figure_2_is_measured_by_the_judgments_of_its_time(here: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    # BM25 finds both answers; before the correction the first question had another, of which it finds no word.
    bars = (("before", "qrels-before", 50.0, LIGHT, DARK), ("after", None, 100.0, DARK, LIGHT))
    for series, by, ours, own, other in bars:
        report = reported(here, "--row", f"bm25-{series}")
        assert {row["metric"]: row["ours"] for row in report["rows"]} == dict.fromkeys(
            ("MRR@10", "Recall@1", "Recall@50"), ours
        )
        for row in report["rows"]:
            assert (row["figure"], row["table"], row["series"], row["published"]) == (2, None, series, None)
        assert [each["by"] for each in report["sets"]] == [by or ""]
        files = [here / "out" / f"figure2.dev.{suffix}" for suffix in ("png", "svg")]
        drawn = [path.read_bytes() for path in files]
        seen = {tuple(map(int, pixel)) for pixel in np.unique(pixels(image, drawn[0]), axis=0)}
        assert own in seen and other not in seen
        words = [found for each in ElementTree.parse(files[1]).iter() if (found := each.text)]
        assert words.count(f"{ours:.1f}") == 3
        assert {"BM25", series, "MRR@10, %", "Recall@1, %", "Recall@50, %"} <= set(words)
        lines = reproduce(here, "--row", f"bm25-{series}").stdout.splitlines()
        assert {f"drawn: {path}" for path in files} <= set(lines)
        assert [path.read_bytes() for path in files] == drawn
        start = next(number for number, line in enumerate(lines) if line.startswith("Figure 2: by the judgments be"))
        assert lines[start + 2].split() == ["BM25,", series, *[f"{ours:.2f}"] * 3]  # no published numbers


def pixels(image: Any, content: bytes) -> Any:
    """Every pixel's red, green and blue."""
    return np.rint(image.imread(io.BytesIO(content), format="png")[..., :3].reshape(-1, 3) * 255).astype(int)


def report_of(here: Path) -> dict[str, Any]:
    """Both bars of BM25 in Figure 2, and BM25's row of Table 4; made-up marks, a made-up training."""
    reports = [reported(here, *words) for words in (("--row", "bm25-after"), BM25, ("--row", "bm25-before"))]
    report = reports[2]
    report["rows"] = [row for each in reports for row in each["rows"] if row["table"] in (None, 4)]
    table4 = [row for row in report["rows"] if row["table"]]
    for row, mark in zip(table4, ("OK", "close", "off"), strict=True):
        row |= {"mark": mark, "why": []}
    report["trainings"] = [TRAINING]
    return report


class Seen(HTMLParser):
    """The tags with their attributes, and the text, of a page."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_browser_shows_tables_marks_bars_and_curves(here: Path) -> None:
    command = chromium()
    if not command:
        pytest.skip("needs chromium, which looks at the page")
    image = pytest.importorskip("matplotlib.image")
    path = here / "page.html"
    path.write_text(page(report_of(here), board(read_leaderboard()), {}), encoding="utf-8")
    look(command, path.as_uri(), here / "profile", here / "page.png", "1100,2600")
    found = np.unique(pixels(image, (here / "page.png").read_bytes()), axis=0, return_counts=True)
    counts = {tuple(map(int, colour)): int(number) for colour, number in zip(*found, strict=True)}
    for colour, least in ((LIGHT, 3_000), (LOSS, 60), (DEV, 20), (GREEN, 100), (YELLOW, 100), (RED, 100)):
        assert counts.get(colour, 0) > least, colour


def test_nothing_of_the_page_is_fetched_or_run(here: Path) -> None:
    reproduce(here, "--row", "bm25-before")
    content = (here / "out" / "reproduce.html").read_text(encoding="utf-8")
    seen = Seen(content)
    assert not {tag for tag, _ in seen.tags} & {"script", "link", "img", "iframe", "object", "embed", "form", "base"}
    for _, given in seen.tags:
        assert not {"src", "srcset", "data", "action"} & set(given) and not [key for key in given if key[:2] == "on"]
        for key in ("href", "xlink:href"):  # within the page alone
            assert (given.get(key) or "#").startswith("#")
    assert "@import" not in content and "url(http" not in content
    assert (
        "meta",
        {"http-equiv": "Content-Security-Policy", "content": "default-src 'none'; style-src 'unsafe-inline'"},
    ) in seen.tags
    assert content.count("<svg") == 1 and "Figure 2: by the judgments before" in seen.text


def test_what_others_wrote_stands_in_the_page_as_text(here: Path) -> None:
    bad = '<script>alert(1)</script>" onload="x'
    report = report_of(here)
    report |= {"release": bad, "notes": [bad], "predictions": [{"table": 4, "row": bad, "split": bad, "file": bad}]}
    report["trainings"] = [TRAINING | {"recipe": bad, "device": bad, "measure": bad}]
    report["steps"] = {bad: {"command": bad, "seconds": 1.0}}
    for row in report["rows"]:
        row |= {"title": bad, "published_by": bad, "mark": row["mark"] and "not comparable", "why": [bad]}
    names = ("MRR@10", "Recall@1", "Recall@50", "nDCG@10", "R@10")
    own = {"model": bad, "place": ("other", "dev", bad), "passages": 3, "figures": dict.fromkeys(names, 1.0)}
    own["intervals"] = dict.fromkeys(names, (0.0, 2.0))
    seen = Seen(page(report, board(read_leaderboard(), [own]), {}))
    assert "script" not in {tag for tag, _ in seen.tags}
    assert not [given for _, given in seen.tags if "onload" in given]
    assert seen.text.count("alert(1)") > 10


def test_the_page_goes_where_it_is_told_and_is_the_same_again(here: Path) -> None:
    report = reported(here, *BM25, "--html", here / "x.html")
    assert report["page"] == str(here / "x.html") and not (here / "out" / "reproduce.html").exists()
    first = (here / "x.html").read_bytes()
    reproduce(here, *BM25, "--html", here / "x.html")
    assert (here / "x.html").read_bytes() == first
    text = Seen(first.decode()).text
    assert "BM25100.00100.00100.00" in text and "95 %100.0-100.0" in text and "not comparable (1)" in text
    assert "(1) not comparable: measured on dev, published on test; 6 passages, not 8,096,668" in text
    assert f"{here / 'release'}, 6 passages: comparable with nothing above; dev questions" in text
    assert "python -m baselines bm25 --release" in text
