"""Format a comparison as text, Markdown or a LaTeX table."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from baselines.measure.measure_options import TESTS
from baselines.measure.measures import PAPER
from baselines.measure.ties import TIE_RULES
from builders.core.errors import visible
from builders.core.results import Report, Table
from builders.core.tables import aligned, as_text, markdown_table, percent

_PAPER = {key: name for name, key in PAPER.items()}
_TESTS = {"t": "Student's paired t-test", "randomisation": "Fisher's randomisation test"}
_PAIRS_ARE = """\
Pairs are better system - worse system, in percentage points. win, tie, loss: numbers of queries on which the better
system is better, equal or worse. p: p-value of a test; Holm: the p-value after Holm's correction. detectable: smallest
difference that the t-test detects with --power at the corrected level."""
_PAIRS = ["pair", "difference", "interval", "win", "tie", "loss", "t: p", "Holm", "random.: p", "Holm", "detectable"]
# Columns of the tables for CSV and pandas.
_FIGURES = ["better", "worse", "difference", "low", "high", "wins", "ties", "losses"]
for _test in TESTS:
    _FIGURES += [f"{_test}: p", f"{_test}: Holm"]
_CHANGE = ["query_id", "difference", "rank", "rank_of_worse", "text"]
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


@dataclass(frozen=True)
class Comparison(Report):
    """A comparison of runs. Its Markdown is a page with superscripts, and its LaTeX is a table for a paper."""

    @classmethod
    def of(cls, result: dict[str, Any]) -> "Comparison":
        """Return the report of the result of :func:`baselines.measure.comparison.compare_systems`.

        The verb adds ``reference``, the name of the judgments, and ``ties``, the rule for equal scores.
        """
        return cls(
            result,
            text=lambda: comparison_text(result),
            tables=lambda: comparison_tables(result),
            extra_formats={"latex": lambda: _latex(result)},
        )

    def to_markdown(self) -> str:
        """Return the comparison as a page of Markdown."""
        return comparison_text(self.value, mark=True)


def comparison_tables(result: dict[str, Any]) -> list[Table]:
    """Return the tables of a comparison: systems, pairs, pairs in groups, and changed queries. Figures are fractions.

    Pairs are named by the labels of the table of systems.
    """
    measures = result["measures"]
    system_rows = []
    for system in result["systems"]:
        row = [system["label"], system["name"]]
        for key, compared in measures.items():
            row += [system["means"][key], compared["better_than"][system["label"]]]
        system_rows.append(row)
    system_columns = ["label", "system"]
    pair_rows, group_rows = [], []
    for key, compared in measures.items():
        system_columns += [key, f"{key} better than"]
        for pair in compared["pairs"]:
            pair_rows.append([key, *_pair_figures(pair), pair["detectable"]["corrected"]])
        for pair in compared.get("by", ()):
            group_rows.append([pair["group"], pair["queries"], key, *_pair_figures(pair)])
    tables = [
        Table(system_columns, system_rows, title="systems", percent_columns=list(measures), text_columns=2),
        Table(["measure", *_FIGURES, "detectable"], pair_rows, title="pairs", text_columns=3),
    ]
    if group_rows:
        tables.append(Table(["group", "queries", "measure", *_FIGURES], group_rows, title="pairs in groups"))
    change_rows = []
    for pair in result["changed"]:
        for query in pair["queries"]:
            change_rows.append([pair["better"], pair["worse"], *(query[key] for key in _CHANGE)])
    if change_rows:
        tables.append(Table(["better", "worse", *_CHANGE], change_rows, title="changed queries", text_columns=3))
    return tables


def _pair_figures(pair: dict[str, Any]) -> list[Any]:
    """Return the cells of the columns ``_FIGURES``."""
    cells = [pair["better"], pair["worse"], pair["difference"], *pair["interval"]]
    cells += [pair["wins"], pair["ties"], pair["losses"]]
    for test in TESTS:
        cells += [pair[test]["p"], pair[test]["corrected"]]
    return cells


def comparison_text(result: dict[str, Any], mark: bool = False) -> str:
    """Format the comparison in percent and percentage points, as text or (``mark``) as Markdown.

    Names and queries are escaped, so that no program reads them as markup.
    """
    name = as_text if mark else visible

    def table(head: list[str], rows: list[list[str]], left: int = 1) -> str:
        return markdown_table(head, rows, left) if mark else "\n".join(aligned([head, *rows], left=left, gap="  "))

    def superscript(better: str, longest: int) -> str:
        return f"<sup>{better}</sup>" * bool(better) if mark else better.translate(_SUPERSCRIPTS).ljust(longest)

    measures = result["measures"]
    rule = f"; ties: {TIE_RULES[result['ties']]}" if result["ties"] in TIE_RULES else ""
    parts = [
        f"reference: {name(result['reference'])}, {result['queries']} queries{rule}\n\n{_explanation(result)}",
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
