"""The report of ``reproduce`` as one self-contained HTML page: no scripts, no network, embedded images."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from baselines.reproduce import leaderboard, report_text
from baselines.reproduce.drawings import curve, svg_of
from baselines.reproduce.marks import CLOSE, NOT, OFF, OK
from builders.core.errors import log
from builders.core.files import read_utf8, write_text

PAGE = "reproduce.html"
_STYLE = Path(__file__).with_name("report_page.css")
_CLASSES = {OK: "ok", CLOSE: "close", OFF: "off", "-": "not"}


def write_page(path: Path, report: Mapping[str, Any], own: Sequence[leaderboard.Own]) -> Path:
    """Write the page of a report with the leaderboard and own runs, and return its path."""
    published = leaderboard.read_leaderboard()
    write_text(path, page(report, leaderboard.board(published, own), published.sources))
    log.info("wrote %s", path)
    return path


def page(
    report: Mapping[str, Any], tables: Sequence[Mapping[str, Any]], sources: Mapping[str, leaderboard.Source]
) -> str:
    """Return the page as HTML. Texts of the release, the matrix and the user are escaped.

    ``tables`` and ``sources``: the tables and sources of the leaderboard.
    """
    reasons, parts = report_text.Reasons(), []
    images = [Path(path) for path in report["images"] if path.endswith(".svg")]
    for section in report_text.sections(report, reasons):
        drawn = [read_utf8(path) for path in images if path.name.startswith(f"{section.name}.")]
        svg = "".join(f'<figure role="img">{svg_of(each)}</figure>' for each in drawn)
        parts.append((section.name, section.title, svg + _grid(section.head, section.rows)))
    if report["predictions"]:
        parts.append(("predictions", "Predictions, for a submission", _items(report_text.predictions(report))))
    if report["trainings"]:
        curves = "".join(map(_curve, report["trainings"]))
        parts.append(("curves", "The trainings", f'<div class="curves">{curves}</div>'))
    parts.append(("leaderboard", "The leaderboard", _leaderboard(tables, sources)))
    steps = "\n".join(f"{step['command']}  # {step['seconds']} s" for step in report["steps"].values())
    parts.append(("commands", "The commands", f"<pre>{_t(steps)}</pre>"))
    parts.append(("legend", "Legend", _items([report_text.LEGEND, report_text.MARKS, *reasons.lines()])))
    links = "".join(f'<a href="#{name}">{_t(title.partition(":")[0])}</a>' for name, title, _ in parts)
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"><title>DuReader-retrieval: the paper\'s tables</title>',
        # This policy lets the browser refuse requests and scripts.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>\n{read_utf8(_STYLE)}</style></head><body>",
        "<h1>DuReader-retrieval: the paper's tables, reproduced</h1>",
        _items(report_text.measured_on(report)),
        f"<nav>{links}</nav>",
        *(f'<section id="{name}"><h2>{_t(title)}</h2>{body}</section>' for name, title, body in parts),
        "</body></html>\n",
    ]
    return "\n".join(lines)


def _t(value: object) -> str:
    return html.escape(str(value))


def _items(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{_t(line)}</li>' for line in lines)}</ul>"


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML. A row with an indented first cell belongs to the row above."""
    body = ""
    for row in rows:
        kind = ' class="under"' * row[0].startswith("  ") or ' class="own"' * (row[-1] == leaderboard.OWN)
        body += f"<tr{kind}>{''.join(map(_cell, row, head))}</tr>"
    heads = "".join(f"<th>{_t(words)}</th>" for words in head)
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(words: str, head: str) -> str:
    """Return a cell with its column's head, which phones show. A mark is coloured, or links to the legend."""
    cell = f'<td data-head="{_t(head)}">'
    if words.startswith(NOT):
        return f'{cell}<span class="mark not"><a href="#legend">{_t(words)}</a></span></td>'
    if words != "-" and {*words.split(" / ")} <= {*_CLASSES}:
        words = " ".join(f'<span class="mark {_CLASSES[mark]}">{mark}</span>' for mark in words.split(" / "))
        return f"{cell}{words}</td>"
    return f"{cell}{_t(words)}</td>"


def _curve(training: Mapping[str, Any]) -> str:
    took = f"{training['steps']:,} steps in {training['seconds']:,.0f} s, {training['device']}"
    caption = f"<figcaption>{_t(training['recipe'])} <small>{_t(took)}</small></figcaption>"
    return f"<figure>{curve(training)}{caption}</figure>"


def _leaderboard(tables: Sequence[Mapping[str, Any]], sources: Mapping[str, leaderboard.Source]) -> str:
    """Return the leaderboard's tables as HTML. A long table is folded."""
    parts = []
    for title, head, rows in map(leaderboard.grid_of, tables):
        shown = _grid(head, rows)
        if len(rows) > 20:
            shown = f"<details><summary>{len(rows)} rows</summary>{shown}</details>"
        parts.append(f"<h3>{_t(title)}</h3>{shown}")
    return "".join([*parts, f"<p><small>{_t(leaderboard.LEGEND)}</small></p>", _items(leaderboard.listed_of(sources))])
