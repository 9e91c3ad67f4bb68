"""Format a comparison as text, Markdown or a LaTeX table."""

import re
from collections.abc import Callable
from typing import Any

from baselines.measure.measures import PAPER
from builders.core.errors import visible
from builders.core.tables import aligned, as_text, markdown_table, percent

_PAPER = {key: name for name, key in PAPER.items()}
_TESTS = {"t": "Student's paired t-test", "randomisation": "Fisher's randomisation test"}
_PAIRS_ARE = """\
Pairs are better system - worse system, in percentage points. win, tie, loss: numbers of queries on which the better
system is better, equal or worse. p: p-value of a test; Holm: the p-value after Holm's correction. detectable: smallest
difference that the t-test detects with --power at the corrected level."""
_PAIRS = ["pair", "difference", "interval", "win", "tie", "loss", "t: p", "Holm", "random.: p", "Holm", "detectable"]
_SUPERSCRIPTS = str.maketrans("abcdefghijklmnoprstuvwxyz", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ")
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
    """Format the comparison in percent and percentage points.

    ``form`` is text, markdown or latex. LaTeX output has only the table of systems. Names and queries are escaped,
    so that no program reads them as markup.
    """
    if form == "latex":
        return _latex(result)
    mark = form == "markdown"
    name = as_text if mark else visible

    def table(head: list[str], rows: list[list[str]], left: int = 1) -> str:
        return markdown_table(head, rows, left) if mark else "\n".join(aligned([head, *rows], left=left, gap="  "))

    def superscript(better: str, longest: int) -> str:
        return f"<sup>{better}</sup>" * bool(better) if mark else better.translate(_SUPERSCRIPTS).ljust(longest)

    measures = result["measures"]
    parts = [
        f"reference: {name(result['reference'])}, {result['queries']} queries\n\n{_explanation(result)}",
        table(["system", *map(_title, measures)], _systems(result, name, superscript)),
    ]
    for key, found in measures.items():
        parts += [f"{_title(key)}: pairs", table(_PAIRS, [_pair_cells(row) for row in found["pairs"]])]
        if "by" in found:
            rows = [[name(row["group"]), str(row["queries"]), *_pair_cells(row)] for row in found["by"]]
            parts += [f"{_title(key)}: pairs in groups", table(["group", "queries", *_PAIRS[:-1]], rows)]
    groups = [f"{'- ' * mark}{_title(key)}: {' | '.join(map(' '.join, of['groups']))}" for key, of in measures.items()]
    parts += [_PAIRS_ARE, "groups of systems without significant differences, the best first:", "\n".join(groups)]
    for pair in result["changed"]:
        title, rows = f"{pair['better']} - {pair['worse']}: {_title(next(iter(measures)))}", _changed(pair, name)
        ranks = f"rank under {pair['worse']} → {pair['better']}"
        parts.append(f"{title} changed most on" if rows else f"{title} is the same on every query")
        parts += [table(["query", "change", ranks, "text"], rows, left=4)] * bool(rows)
    return "\n\n".join(parts)


def _title(measure: str) -> str:
    """Return the paper's name of an official key, or the measure's own name."""
    return _PAPER.get(measure, measure)


def _explanation(result: dict[str, Any]) -> str:
    corrected = f"Holm's correction over {result['pairs']} pairs" if result["pairs"] > 1 else "one pair"
    return (
        f"superscripts: the systems that are significantly worse "
        f"({_TESTS[result['test']]}, {corrected}, p <= {result['alpha']:g})"
    )


def _systems(
    result: dict[str, Any], name: Callable[[str], str], superscript: Callable[[str, int], str]
) -> list[list[str]]:
    rows = []
    for system in result["systems"]:
        rows.append([f"{system['label']}  {name(system['name'])}"])
        for key, found in result["measures"].items():
            longest = max(map(len, found["better_than"].values()))
            better = superscript(found["better_than"][system["label"]], longest)
            rows[-1].append(percent(system["means"][key]) + better)
    return rows


def _pair_cells(row: dict[str, Any]) -> list[str]:
    p_values = (row[test][kind] for test in _TESTS for kind in ("p", "corrected"))
    cells = [
        f"{row['better']} - {row['worse']}",
        _points(row["difference"]),
        " to ".join(map(_points, row["interval"])),
        *(str(row[name]) for name in ("wins", "ties", "losses")),
        *("<0.0001" if value < 0.00005 else f"{value:.4f}" for value in p_values),
    ]
    if "detectable" in row:
        smallest = row["detectable"]["corrected"]  # no measure exceeds 100 percent
        cells.append("-" if smallest is None else ">100" if smallest > 1 else percent(smallest))
    return cells


def _points(fraction: float) -> str:
    return f"{100 * fraction:+.2f}"


def _changed(pair: dict[str, Any], name: Callable[[str], str]) -> list[list[str]]:
    rows = []
    for query in pair["queries"]:
        ranks = " → ".join(str(query[key] or "-") for key in ("rank_of_worse", "rank"))
        text = query["text"] or ""
        shown = name(text[:60] + "…" * (len(text) > 60))
        rows.append([name(query["query_id"]), _points(query["difference"]), ranks, shown])
    return rows


def _latex(result: dict[str, Any]) -> str:
    """Format a table for a paper, with the best means in bold. The table needs the LaTeX package booktabs."""
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
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{Percent on {result['queries']} queries; {_escaped(_explanation(result))}.}}",
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
    return re.sub(r"[&%$#_{}\\~^<>|]", lambda found: _LATEX[found[0]], visible(text))
