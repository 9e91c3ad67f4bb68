"""The report of ``reproduce`` as one HTML page that needs nothing else: no script, no network, images inside."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from baselines.reproduce import text
from baselines.reproduce.curves import curve
from baselines.reproduce.data import TITLES as COUNTED
from baselines.reproduce.leaderboard import LEGEND as LEADERBOARD_LEGEND
from baselines.reproduce.leaderboard import OWN, Own, Source, board, read_leaderboard
from baselines.reproduce.marks import NOT, OK
from builders.core.errors import log
from builders.core.files import read_utf8, write_text

PAGE = "reproduce.html"
_NONE: Mapping[str, Source] = {}
_STYLE = """
body { font: 15px/1.45 system-ui, "Noto Sans", "Noto Sans CJK SC", sans-serif; color: #1d2125; margin: 2rem auto;
  max-width: 80rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; } h3 { font-size: 1rem; }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #e3e6e8; text-align: right; vertical-align: top; }
th { border-bottom: 1px solid #8b949e; font-weight: 600; } th:first-child, td:first-child { text-align: left; }
td:first-child, td small { white-space: nowrap; } .mark a { color: inherit; text-decoration: none; }
td small, p small, li small { color: #5b6570; } td.theirs { color: #41505e; }
td.first, th.first { border-left: 1px solid #c9d1d9; }
.mark { border-radius: .6rem; padding: 0 .5rem; white-space: nowrap; font-size: .85em; }
.ok { background: #d3f0da; } .close { background: #fdf0c4; } .off { background: #fbd9d3; } .not { background: #e9ecef; }
tr.own td { background: #eef5fc; } pre { overflow-x: auto; background: #f6f8fa; padding: .6rem; font-size: .8rem; }
nav a { margin-right: .8rem; } .curves { display: flex; flex-wrap: wrap; gap: 1rem; } figure { margin: 0; }
figcaption { font-size: .85rem; } svg { max-width: 100%; height: auto; } .wide { overflow-x: auto; }
"""


def write_page(path: Path, report: Mapping[str, Any], own: Sequence[Own]) -> Path:
    """Write the page of a report, with the leaderboard and own runs among it; returns its path."""
    published = read_leaderboard()
    write_text(path, page(report, board(published, own), published.sources))
    log.info("wrote %s", path)
    return path


def page(report: Mapping[str, Any], tables: Sequence[Mapping[str, Any]], sources: Mapping[str, Source] = _NONE) -> str:
    """The whole page. Whatever comes from the release, the matrix or the user stands in it as text.

    ``tables``: of the leaderboard; ``sources``: what its names of sources stand for.
    """
    reasons, places = text.Reasons(), text.by_place(report)
    drawings = _drawings(report["images"])
    sections = []
    for place, figures in places.items():
        title = f"{place[0].capitalize()} {place[1]}: {text.TITLES[place]}"
        body = _counts(figures, reasons) if place == ("table", 3) else _table(figures, reasons)
        sections.append((f"{place[0]}{place[1]}", title, drawings.pop(f"{place[0]}{place[1]}", "") + body))
    if report["predictions"]:
        sections.append(("predictions", "Predictions, for a submission", _predictions(report["predictions"])))
    if report["trainings"]:
        sections.append(("curves", "The trainings", _curves(report["trainings"])))
    sections.append(("leaderboard", "The leaderboard", _leaderboard(tables, sources)))
    if report["commands"]:
        sections.append(("commands", "The commands behind each row", _commands(report["commands"])))
    links = "".join(f'<a href="#{name}">{_t(title.partition(":")[0])}</a>' for name, title, _ in sections)
    said = [text.measured_on(report, each) for each in report["sets"]] + list(report["notes"])
    legend = [text.LEGEND, text.MARKS, *reasons.lines()]
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"><title>DuReader-retrieval: the paper\'s tables</title>',
        # The browser itself sees to it that nothing is fetched and nothing runs.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head><body>",
        "<h1>DuReader-retrieval: the paper's tables, ours and published</h1>",
        _items(said),
        f"<nav>{links}</nav>",
        *(f'<section id="{name}"><h2>{_t(title)}</h2>{body}</section>' for name, title, body in sections),
        f'<section id="legend"><h2>What the marks mean</h2>{_items(legend)}</section>',
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _t(value: object) -> str:
    return html.escape(str(value))


def _items(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{_t(line)}</li>' for line in lines)}</ul>"


def _grid(head: Sequence[str], rows: Sequence[str]) -> str:
    return (
        f'<div class="wide"><table><thead><tr>{"".join(head)}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _badge(figure: Mapping[str, Any], reasons: text.Reasons) -> str:
    """The mark of one figure, in its colour; what cannot be compared with the number of its reason."""
    if figure["mark"] is None:
        return ""
    kind = {NOT: "not", OK: "ok"}.get(figure["mark"], figure["mark"])
    title = f' title="{_t("; ".join(figure["why"]))}"' if figure["why"] else ""
    shown = _t(reasons.mark([figure]))
    shown = f'<a href="#legend">{shown}</a>' if kind == "not" else shown
    return f'<span class="mark {kind}"{title}>{shown}</span>'


def _table(figures: Sequence[dict[str, Any]], reasons: text.Reasons) -> str:
    """A table: ours with intervals, then the published figures, who published them, and the marks."""
    rows = text.by_row(figures)
    names = text.measures_of(rows)
    published = any(figure["published"] is not None for figure in figures)
    head = ["<th></th>", *(f"<th>{_t(name)}</th>" for name in names)]
    if published:
        head += [f'<th class="first">published: {_t(names[0])}</th>', *(f"<th>{_t(name)}</th>" for name in names[1:])]
        head.append("<th>by, on</th><th></th>")
    body = []
    for title, found in rows.items():
        own = [found[name] for name in names]
        body.append(f"<tr><td>{_t(title)}</td>{''.join(map(_ours, own))}{_theirs(own, reasons) * published}</tr>")
        if like := [f["like_for_like"] for f in own if f.get("like_for_like")]:
            blank = "<td></td>" * len(names)
            body.append(f"<tr><td><small>like for like</small></td>{blank}{_theirs(like, reasons)}</tr>")
    return _grid(head, body)


def _ours(figure: Mapping[str, Any]) -> str:
    return f"<td>{figure['ours']:.2f}<br><small>{'{:.1f} to {:.1f}'.format(*figure['interval'])}</small></td>"


def _theirs(own: Sequence[Mapping[str, Any]], reasons: text.Reasons) -> str:
    """The cells of the published figures of one row; marks stand once where none can be compared."""
    alike = own[0]["mark"] == NOT
    cells = []
    for number, figure in enumerate(own):
        shown = "" if figure["published"] is None else f"{figure['published']:.2f}"
        under = "" if alike else f"<br>{_badge(figure, reasons)}"
        cells.append(f'<td class="theirs{" first" * (not number)}">{shown}{under}</td>')
    badge = _badge(own[0], reasons) if alike else ""
    return "".join([*cells, f"<td><small>{_t(own[0]['published_by'])}</small></td><td>{badge}</td>"])


def _counts(figures: Sequence[dict[str, Any]], reasons: text.Reasons) -> str:
    """Table 3: ours, the paper's under it."""
    rows, parts = text.by_row(figures), []
    for titles in text.alike(rows):
        names = max((list(rows[title]) for title in titles), key=len)
        body = []
        for title in titles:
            own = [rows[title].get(name) for name in names]
            cells = "".join(f"<td>{_t(text.count(f, 'ours'))}{_paper(f, reasons)}</td>" for f in own)
            known = [figure for figure in own if figure and figure["mark"]]
            badge = _badge(known[0], reasons) if known[0]["mark"] == NOT else ""
            body.append(f"<tr><td>{_t(title)}<br><small>published</small></td>{cells}<td>{badge}</td></tr>")
        parts.append(_grid(["<th></th>", *(f"<th>{_t(COUNTED[name])}</th>" for name in names), "<th></th>"], body))
    return "".join(parts) + f"<p><small>counted by <code>{_t(figures[0]['command'])}</code></small></p>"


def _paper(figure: Mapping[str, Any] | None, reasons: text.Reasons) -> str:
    if not figure:
        return ""
    badge = "" if figure["mark"] == NOT else f" {_badge(figure, reasons)}"
    return f"<br><small>{_t(text.count(figure, 'published'))}</small>{badge}"


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
        parts.append(
            f"<figure>{curve(each)}<figcaption>{_t(each['recipe'])} <small>{_t(took)}</small></figcaption></figure>"
        )
    return f'<div class="curves">{"".join(parts)}</div>'


def _leaderboard(tables: Sequence[Mapping[str, Any]], sources: Mapping[str, Source]) -> str:
    """Each table of the leaderboard; own runs marked."""
    parts = []
    for table in tables:
        names = table["measures"]
        head = [*(f"<th>{_t(name)}</th>" for name in ["model", *names, "trained", "source"])]
        rows = []
        for model in table["models"]:
            cells = "".join(f"<td>{_figure(model, name)}</td>" for name in names)
            last = f"<td>{_t(model['trained'] or '-')}</td><td><small>{_t(model['source'])}</small></td>"
            own = ' class="own"' if model["source"] == OWN else ""
            rows.append(f"<tr{own}><td>{_t(model['model'])}</td>{cells}{last}</tr>")
        shown = _grid(head, rows)
        if len(rows) > 20:
            shown = f"<details><summary>{len(rows)} models</summary>{shown}</details>"
        parts.append(f"<h3>{_t(table['title'])}</h3>{shown}")
    named = [f"{name}: {each.title}; {each.place}; {each.date}" for name, each in sources.items()]
    return "".join([*parts, f"<p><small>{_t(LEADERBOARD_LEGEND)}</small></p>", _items(named)])


def _figure(model: Mapping[str, Any], name: str) -> str:
    if name not in model["figures"]:
        return "-"
    ends = "<br><small>{:.1f} to {:.1f}</small>".format(*model["intervals"][name]) if "intervals" in model else ""
    return f"{model['figures'][name]:.2f}{ends}"


def _predictions(found: Sequence[Mapping[str, Any]]) -> str:
    return _items([f"Table {each['table']}, {each['row']}, {each['split']}: {each['file']}" for each in found])


def _commands(found: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for each in found:
        kind = "figure" if "figure" in each else "table"
        title = f"{kind.capitalize()} {each[kind]}, {each['row']}"
        lines = "\n".join(each["commands"])
        parts.append(f"<details><summary>{_t(title)}</summary><pre>{_t(lines)}</pre></details>")
    return "".join(parts)
