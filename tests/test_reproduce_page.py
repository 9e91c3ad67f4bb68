"""The page of ``reproduce``: tables, Figure 2, curves, leaderboard; in one file, of which a browser fetches nothing."""

from __future__ import annotations

import io
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import chromium, look
from commands import ROOT, Done, run
from releases import make_release, quality_tables

from baselines.reproduce.leaderboard import Own, board, read_leaderboard
from baselines.reproduce.page import page

LIGHT, DARK, LOSS, DEV = (0xA9, 0xCC, 0xE3), (0x1F, 0x61, 0x8D), (0x1F, 0x61, 0xA0), (0xB9, 0x54, 0x1C)
GREEN, YELLOW, RED = (0xD3, 0xF0, 0xDA), (0xFD, 0xF0, 0xC4), (0xFB, 0xD9, 0xD3)
TRAINING = {
    **{"recipe": "de-bm25-neg", "losses": [[step, 4 / step] for step in range(1, 40)], "measure": "MRR@10"},
    **{"dev": [[20, 0.2], [39, 0.6]], "steps": 39, "seconds": 12.0, "device": "CPU"},
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make_release(tmp_path / "release", quality_tables())
    return tmp_path


def reproduce(here: Path, *words: object) -> Done:
    where = ["--release", here / "release", "--out", here / "out", "--one-process"]
    return run("baselines", "reproduce", *where, *words)


def report_of(here: Path) -> dict[str, Any]:
    """Both bars of BM25 in Figure 2, and BM25's row of Table 4; made-up marks, a made-up training."""
    reports = [
        json.loads(reproduce(here, *words, "--format", "json").stdout)
        for words in (("--row", "bm25-after"), ("--table", 4, "--row", "bm25"), ("--row", "bm25-before"))
    ]
    report: dict[str, Any] = reports[2]
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
    path.write_text(page(report_of(here), board(read_leaderboard())), encoding="utf-8")
    look(command, path.as_uri(), here / "profile", here / "page.png", "1100,2600")
    values = image.imread(io.BytesIO((here / "page.png").read_bytes()), format="png")[..., :3]
    pixels = np.rint(values.reshape(-1, 3) * 255).astype(int)
    counts = {
        tuple(colour): int(number)
        for colour, number in zip(*np.unique(pixels, axis=0, return_counts=True), strict=True)
    }
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
    report["commands"] = [{"table": 4, "row": bad, "commands": [bad]}]
    for row in report["rows"]:
        row |= {"title": bad, "published_by": bad, "mark": row["mark"] and "not comparable", "why": [bad]}
    names = ("MRR@10", "Recall@1", "Recall@50", "nDCG@10", "R@10")
    own = Own(bad, bad, 3, 3, "dev", dict.fromkeys(names, 1.0), dict.fromkeys(names, (0.0, 2.0)))
    seen = Seen(page(report, board(read_leaderboard(), [own])))
    assert "script" not in {tag for tag, _ in seen.tags}
    assert not [given for _, given in seen.tags if "onload" in given]
    assert seen.text.count("alert(1)") > 10


def test_the_page_goes_where_it_is_told_and_is_the_same_again(here: Path) -> None:
    report = json.loads(
        reproduce(here, "--row", "bm25", "--table", 4, "--format", "json", "--html", here / "x.html").stdout
    )
    assert report["page"] == str(here / "x.html") and not (here / "out" / "reproduce.html").exists()
    first = (here / "x.html").read_bytes()
    reproduce(here, "--row", "bm25", "--table", 4, "--html", here / "x.html")
    assert (here / "x.html").read_bytes() == first
    text = Seen(first.decode()).text
    assert "BM25100.00100.0 to 100.0" in text and "not comparable (1)" in text
    assert "(1) not comparable: measured on dev, published on test; 6 passages, not 8,096,668" in text
    assert f"{here / 'release'}, 6 passages: comparable with nothing above; dev questions" in text
    assert "python -m baselines evaluate --release" in text
