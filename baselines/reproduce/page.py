"""The report of ``reproduce`` as one HTML page that needs nothing else: no script, no network, images inside."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from baselines.reproduce import text
from baselines.reproduce.drawings import curve
from baselines.reproduce.leaderboard import LEGEND as LEADERBOARD_LEGEND
from baselines.reproduce.leaderboard import OWN, Own, Source, board, read_leaderboard
from baselines.reproduce.marks import CLOSE, NOT, OFF, OK
from builders.core.errors import log
from builders.core.files import read_utf8, write_text

PAGE = "reproduce.html"
_NONE: Mapping[str, Source] = {}
_STYLE = """
body { font: 15px/1.45 system-ui, "Noto Sans", "Noto Sans CJK SC", sans-serif; color: #1d2125; margin: 2rem auto;
  max-width: 80rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; } h3 { font-size: 1rem; }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-top: 1px solid #e3e6e8; text-align: right; white-space: nowrap; }
th { border-bottom: 1px solid #8b949e; font-weight: 600; } th:first-child, td:first-child { text-align: left; }
tr.under td { border-top: 0; padding-top: 0; font-size: .85em; color: #5b6570; } tr.own td { background: #eef5fc; }
td.bar, th.bar { border-left: 1px solid #c9d1d9; padding: 0; } p small, figcaption small { color: #5b6570; }
.mark { border-radius: .6rem; padding: 0 .5rem; font-size: .85em; } .mark a { color: inherit; text-decoration: none; }
.ok { background: #d3f0da; } .close { background: #fdf0c4; } .off { background: #fbd9d3; } .not { background: #e9ecef; }
pre { overflow-x: auto; background: #f6f8fa; padding: .6rem; font-size: .8rem; } nav a { margin-right: .8rem; }
.curves { display: flex; flex-wrap: wrap; gap: 1rem; } figure { margin: 0; } figcaption { font-size: .85rem; }
svg { max-width: 100%; height: auto; } .wide { overflow-x: auto; }
"""
_CLASSES = {OK: "ok", CLOSE: "close", OFF: "off"}


def write_page(path: Path, report: Mapping[str, Any], own: Sequence[Own]) -> Path:
    """Write the page of a report, with the leaderboard and own runs among it; returns its path."""
    published = read_leaderboard()
    write_text(path, page(report, board(published, own), published.sources))
    log.info("wrote %s", path)
    return path


def page(report: Mapping[str, Any], tables: Sequence[Mapping[str, Any]], sources: Mapping[str, Source] = _NONE) -> str:
    """The whole page. Words of the release, the matrix or the user are escaped.

    ``tables``: of the leaderboard; ``sources``: what its names of sources stand for.
    """
    reasons, drawings = text.Reasons(), _drawings(report["images"])
    parts = [
        (each.name, each.title, drawings.get(each.name, "") + "".join(_grid(*table) for table in each.tables))
        for each in text.sections(report, reasons)
    ]
    if found := report["predictions"]:
        lines = [f"Table {each['table']}, {each['row']}, {each['split']}: {each['file']}" for each in found]
        parts.append(("predictions", "Predictions, for a submission", _items(lines)))
    if report["trainings"]:
        parts.append(("curves", "The trainings", _curves(report["trainings"])))
    parts.append(("leaderboard", "The leaderboard", _leaderboard(tables, sources)))
    if report["commands"]:
        commands = [(_title(each), f"<pre>{_t(chr(10).join(each['commands']))}</pre>") for each in report["commands"]]
        parts.append(("commands", "The commands behind each row", "".join(_details(*each) for each in commands)))
    links = "".join(f'<a href="#{name}">{_t(title.partition(":")[0])}</a>' for name, title, _ in parts)
    shown = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"><title>DuReader-retrieval: the paper\'s tables</title>',
        # The browser itself sees to it that nothing is fetched and nothing runs.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head><body>",
        "<h1>DuReader-retrieval: the paper's tables, ours and published</h1>",
        _items(text.measured_on(report)),
        f"<nav>{links}</nav>",
        *(f'<section id="{name}"><h2>{_t(title)}</h2>{body}</section>' for name, title, body in parts),
        '<section id="legend"><h2>What the marks mean</h2>',
        _items([text.LEGEND, text.MARKS, *reasons.lines()]),
        "</section></body></html>",
    ]
    return "\n".join(shown) + "\n"


def _t(value: object) -> str:
    return html.escape(str(value))


def _items(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{_t(line)}</li>' for line in lines)}</ul>"


def _details(title: str, body: str) -> str:
    return f"<details><summary>{_t(title)}</summary>{body}</details>"


def _title(each: Mapping[str, Any]) -> str:
    kind = "figure" if "figure" in each else "table"
    return f"{kind.capitalize()} {each[kind]}, {each['row']}"


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of words. A row whose first word is indented belongs to the row above."""
    body = ""
    for row in rows:
        kind = ' class="under"' * row[0].startswith("  ") or ' class="own"' * (row[-1] == OWN)
        body += f"<tr{kind}>{''.join(map(_cell, row))}</tr>"
    heads = "".join(map(_cell, head)).replace("<td", "<th").replace("</td>", "</th>")
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(words: str) -> str:
    """A cell; marks in their colours, with a link to the footnotes where there are any."""
    if words == "|":
        return '<td class="bar"></td>'
    if words.startswith(NOT):
        return f'<td><span class="mark not"><a href="#legend">{_t(words)}</a></span></td>'
    if set(marks := words.split(" / ")) <= {*_CLASSES, "-"} and words != "-":
        marks = [f'<span class="mark {_CLASSES.get(mark, "not")}">{mark}</span>' for mark in marks]
        return f"<td>{' '.join(marks)}</td>"
    return f"<td>{_t(words)}</td>"


def _drawings(images: Sequence[str]) -> dict[str, str]:
    """The figures that were drawn, by the name of their section: ``figure2``."""
    found = {}
    for path in map(Path, images):
        if path.suffix == ".svg":
            drawn = read_utf8(path)
            drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
            found[path.name.partition(".")[0]] = f'<figure role="img">{drawn}</figure>'
    return found


def _curves(trainings: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for each in trainings:
        took = f"{each['steps']:,} steps in {each['seconds']:,.0f} s, {each['device']}"
        caption = f"<figcaption>{_t(each['recipe'])} <small>{_t(took)}</small></figcaption>"
        parts.append(f"<figure>{curve(each)}{caption}</figure>")
    return f'<div class="curves">{"".join(parts)}</div>'


def _leaderboard(tables: Sequence[Mapping[str, Any]], sources: Mapping[str, Source]) -> str:
    """Each table of the leaderboard; own runs marked."""
    parts = []
    for table in tables:
        names, rows = table["measures"], []
        for model in table["models"]:
            figures = [f"{model['figures'][name]:.2f}" if name in model["figures"] else "-" for name in names]
            rows.append([model["model"], *figures, model["trained"] or "-", model["source"]])
            if "intervals" in model:
                ends = ["{:.1f}-{:.1f}".format(*model["intervals"][name]) for name in names]
                rows.append(["  95 %", *ends, "", ""])
        shown = _grid(["model", *names, "trained", "source"], rows)
        shown = _details(f"{len(table['models'])} models", shown) if len(table["models"]) > 20 else shown
        parts.append(f"<h3>{_t(table['title'])}</h3>{shown}")
    named = [f"{name}: {each.title}; {each.place}; {each.date}" for name, each in sources.items()]
    return "".join([*parts, f"<p><small>{_t(LEADERBOARD_LEGEND)}</small></p>", _items(named)])
