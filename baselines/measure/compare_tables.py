"""A comparison as text, as Markdown or as a LaTeX table."""

from __future__ import annotations

import re
from typing import Any

from baselines.measure.measures import PAPER
from builders.core.errors import visible
from builders.core.tables import as_code, as_text, markdown_table, percent, text_table

_PAPER = {key: name for name, key in PAPER.items()}
_TESTS = {"t": "Student's paired t-test", "randomisation": "Fisher's randomisation test"}
_PAIRS_ARE = """\
Pairs: the better system - the worse one, in percentage points; win, tie, loss: on how many queries it is better,
as good, worse; p of both tests, also with Holm's correction; detectable: the smallest difference, corrected."""
_SUPERSCRIPTS = str.maketrans("abcdefghijklmnoprstuvwxyz", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ")
_KINDS = {"alone": "one pair", "corrected": "corrected"}  # of detectable differences
_CHARS = 60  # of a query's text on a terminal
_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


def shown(result: dict[str, Any], form: str) -> str:
    """The comparison in percent and percentage points; ``form``: text, markdown or latex.

    LaTeX has the table of systems alone. Names and queries are shown as they are, never read as markup.
    """
    if form == "latex":
        return _latex(result)
    mark = form == "markdown"
    name, table, between = (as_text, markdown_table, "\n\n") if mark else (visible, text_table, "\n")

    def under(heading: str, *lines: str) -> str:
        heading = f"{heading[0].upper()}{heading[1:]}:" if mark else heading
        return heading + between + "\n".join(lines)

    measures = {_title(key): found for key, found in result["measures"].items()}
    of, said = f"{name(result['reference'])}, {result['queries']} queries", _explanation(result)
    parts = [f"Reference: {of}; {said}." if mark else f"reference: {of}\n{said}", _systems(result, mark)]
    for key, found in measures.items():
        rows = [_pair_cells(row) for row in found["pairs"]]
        parts.append((f"{key}:" if mark else f"{key}: pairs") + between + table(_pair_header(result), rows))
    groups = [f"{'- ' * mark}{key}: {' | '.join(map(' '.join, found['groups']))}" for key, found in measures.items()]
    parts += [_PAIRS_ARE, under("groups of systems that cannot be told apart, the best first", *groups)]
    rows = [[key, *(_spread(found["detectable"][kind]) for kind in _KINDS)] for key, found in measures.items()]
    detectable = (
        f"smallest difference that these {result['queries']} queries show with a probability of "
        f"{100 * result['power']:g} %: middle of the pairs (lowest to highest)"
    )
    parts.append(under(detectable, table(_detectable_header(result), rows)))
    return "\n\n".join([*parts, *(_changed(next(iter(measures)), pair, mark) for pair in result["changed"])])


def _title(measure: str) -> str:
    """A measure's name: the official keys as the paper prints them."""
    return _PAPER.get(measure, measure)


def _explanation(result: dict[str, Any]) -> str:
    """The meaning of a table's superscripts."""
    corrected = f"Holm's correction over {result['pairs']} pairs" if result["pairs"] > 1 else "one pair"
    return (
        f"superscripts: the systems that this one is significantly better than "
        f"({_TESTS[result['test']]}, {corrected}, p <= {result['alpha']:g})"
    )


def _systems(result: dict[str, Any], mark: bool) -> str:
    """Every system's means with superscripts. On a terminal the figures stand below each other."""
    found = result["measures"]
    longest = {name: max(map(len, of["better_than"].values())) for name, of in found.items()}

    def cell(system: dict[str, Any], name: str) -> str:
        better: str = found[name]["better_than"][system["label"]]
        if mark:
            return percent(system["means"][name]) + f"<sup>{better}</sup>" * bool(better)
        return percent(system["means"][name]) + better.translate(_SUPERSCRIPTS).ljust(longest[name])

    rows = [[system["label"], system["name"], *(cell(system, name) for name in found)] for system in result["systems"]]
    if mark:
        rows = [[label, as_text(name), *cells] for label, name, *cells in rows]
        return markdown_table(["", "system", *map(_title, found)], rows, left=2)
    rows = [[f"{label}  {visible(name)}", *cells] for label, name, *cells in rows]
    return text_table(["   system", *map(_title, found)], rows)


def _pair_header(result: dict[str, Any]) -> list[str]:
    level = f"{100 * (1 - result['alpha']):g} % interval"
    return ["pair", "difference", level, "win", "tie", "loss", "t: p", "Holm", "random.: p", "Holm", "detectable"]


def _pair_cells(row: dict[str, Any]) -> list[str]:
    p_values = (row[test][kind] for test in _TESTS for kind in ("p", "corrected"))
    return [
        f"{row['better']} - {row['worse']}",
        _points(row["difference"]),
        " to ".join(map(_points, row["interval"])),
        *(str(row[name]) for name in ("wins", "ties", "losses")),
        *("<0.0001" if value < 0.00005 else f"{value:.4f}" for value in p_values),
        _smallest(row["detectable"]["corrected"]),
    ]


def _points(fraction: float) -> str:
    """A difference in percentage points, with its sign."""
    return f"{100 * fraction:+.2f}"


def _smallest(fraction: float | None) -> str:
    """A difference that can be detected; a measure ends at 100 percent."""
    return "-" if fraction is None else ">100" if fraction > 1 else percent(fraction)


def _detectable_header(result: dict[str, Any]) -> list[str]:
    """Corrected is the first and strictest of Holm's steps."""
    levels = (result["alpha"], result["alpha"] / result["pairs"])
    return ["measure", *(f"{name}, p <= {p:.2g}" for name, p in zip(_KINDS.values(), levels, strict=True))]


def _spread(spread: dict[str, float] | None) -> str:
    if spread is None:
        return "-"
    low, middle, high = (_smallest(spread[name]) for name in ("lowest", "median", "highest"))
    return middle if low == high else f"{middle} ({low} to {high})"


def _changed(measure: str, pair: dict[str, Any], mark: bool) -> str:
    """The queries that changed most, with the ranks of the first positive passage."""
    systems = f"{pair['better']} - {pair['worse']}"
    if not pair["queries"]:
        return f"{systems}: {measure} is the same on every query"
    title = (
        f"{systems}: queries whose {measure} changed most, and the rank of the first positive under "
        f"{pair['worse']} -> {pair['better']}"
    )
    rows = []
    for query in pair["queries"]:
        before, after = (str(query[name] or "-") for name in ("rank_of_worse", "rank"))
        points, text = _points(query["difference"]), query["text"] or ""
        if mark:
            rows.append([points, f"{before} → {after}", as_code(query["query_id"]), as_text(text)])
        else:
            text = visible(text)
            text = text if len(text) <= _CHARS else f"{text[:_CHARS]}…"
            line = f"{points:>8}  {before:>4} -> {after:<4} {visible(query['query_id'])}  {text}"
            rows.append([line.rstrip()])
    if mark:
        return f"{title}:\n\n{markdown_table(['change', 'rank', 'query', 'text'], rows, left=4)}"
    return "\n".join([title, *(line for (line,) in rows)])


def _latex(result: dict[str, Any]) -> str:
    """A table as papers have it: means with superscripts, the best in bold. Needs the package booktabs.

    The systems that cannot be told apart stand in the caption.
    """
    measures = result["measures"]
    best = {name: percent(max(system["means"][name] for system in result["systems"])) for name in measures}
    rows = []
    for system in result["systems"]:
        row = [system["label"], _escaped(system["name"])]
        for name, found in measures.items():
            value, better = percent(system["means"][name]), found["better_than"][system["label"]]
            value = rf"\textbf{{{value}}}" if value == best[name] else value
            row.append(value + f"$^{{\\mathrm{{{better}}}}}$" * bool(better))
        rows.append(" & ".join(row) + r" \\")
    alike = {_title(name): [group for group in found["groups"] if len(group) > 1] for name, found in measures.items()}
    groups = [f"{name}: " + "; ".join(map(", ".join, found)) for name, found in alike.items() if found]
    caption = f"Percent on {result['queries']} queries; {_explanation(result)}."
    caption = _escaped(caption + f" Not told apart: {'. '.join(groups)}." * bool(groups))
    caption = re.sub(r"p \\textless\{\}= ([\d.e-]+)", r"$p \\le \1$", caption)
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{ll{'l' * len(measures)}}}",
            r"\toprule",
            " & ".join(["", "System", *(_escaped(_title(name)) for name in measures)]) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _escaped(text: str) -> str:
    """A text of others in LaTeX: shown as it is."""
    return re.sub(r"[&%$#_{}\\~^<>|]", lambda found: _LATEX[found[0]], visible(text))
