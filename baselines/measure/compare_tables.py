"""Format a comparison as text, Markdown or a LaTeX table."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from baselines.measure.measure_options import TESTS
from baselines.measure.measures import PAPER
from baselines.measure.ties import TIE_RULES
from builders.core.errors import make_visible
from builders.core.results import Report, Table
from builders.core.tables import align_rows, as_text, format_percent, markdown_table

_PAPER_NAMES = {key: name for name, key in PAPER.items()}
_LONGEST_TEXT = 60  # characters of a query in a table
_SMALLEST_P = 0.00005  # smaller p-values would print as 0.0000
_TESTS = {"t": "Student's paired t-test", "randomisation": "Fisher's randomisation test"}
_PAIRS_LEGEND = """\
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
_LATEX_ESCAPES = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
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
    """Return the cells of the columns ``_FIGURES`` for a pair of systems, as fractions."""
    cells = [pair["better"], pair["worse"], pair["difference"], *pair["interval"]]
    cells += [pair["wins"], pair["ties"], pair["losses"]]
    for test in TESTS:
        cells += [pair[test]["p"], pair[test]["corrected"]]
    return cells


def comparison_text(result: dict[str, Any], mark: bool = False) -> str:
    """Format the comparison in percent and percentage points, as text or (``mark``) as Markdown.

    ``result`` is that of :meth:`Comparison.of`. Names and queries are escaped, so that no program reads them as
    markup.
    """
    style = _MARKDOWN if mark else _TEXT
    measures = result["measures"]
    # The heading, and the table of the systems.
    reference = f"{style.escape(result['reference'])}, {result['queries']} queries"
    if result["ties"] in TIE_RULES:  # the default is not named
        reference += f"; ties: {TIE_RULES[result['ties']]}"
    system_table = style.table(["system", *map(measure_title, measures)], _system_rows(result, style))
    parts = [f"reference: {reference}\n\n{_explanation(result)}", system_table]

    # The pairs of each measure, over all queries and in groups of queries.
    for key, comparison in measures.items():
        pair_rows = [_pair_cells(pair) for pair in comparison["pairs"]]
        parts += [f"{measure_title(key)}: pairs", style.table(_PAIRS, pair_rows)]
        if "by" in comparison:
            group_rows = []
            for pair in comparison["by"]:
                group_rows.append([style.escape(pair["group"]), str(pair["queries"]), *_pair_cells(pair)])
            # Pairs in groups have no detectable difference, which is the last column.
            group_table = style.table(["group", "queries", *_PAIRS[:-1]], group_rows)
            parts += [f"{measure_title(key)}: pairs in groups", group_table]

    group_lines = []
    for key, comparison in measures.items():
        system_groups = " | ".join(" ".join(group) for group in comparison["groups"])
        group_lines.append(f"{style.bullet}{measure_title(key)}: {system_groups}")
    parts += [_PAIRS_LEGEND, "groups of systems without significant differences, the best first:"]
    parts.append("\n".join(group_lines))

    # The queries that changed most under the first measure.
    for pair in result["changed"]:
        title = f"{pair['better']} - {pair['worse']}: {measure_title(next(iter(measures)))}"
        if not pair["queries"]:
            parts.append(f"{title} is the same on every query")
            continue
        parts.append(f"{title} changed most on")
        columns = ["query", "change", f"rank under {pair['worse']} → {pair['better']}", "text"]
        # All columns are aligned left.
        parts.append(style.table(columns, _change_rows(pair, style), left=len(columns)))
    return "\n\n".join(parts)


def measure_title(measure: str) -> str:
    """Return the paper's name of an official key, or the measure's own name."""
    return _PAPER_NAMES.get(measure, measure)


def describe_test(result: Mapping[str, Any]) -> str:
    """Describe the test that decides, for example "Student's paired t-test, one pair, p <= 0.05".

    ``result`` is that of :func:`baselines.measure.comparison.compare_systems`.
    """
    correction = "one pair"
    if result["pairs"] > 1:
        correction = f"Holm's correction over {result['pairs']} pairs"
    return f"{_TESTS[result['test']]}, {correction}, p <= {result['alpha']:g}"


def _explanation(result: dict[str, Any]) -> str:
    return f"superscripts: the systems that are significantly worse ({describe_test(result)})"


def _system_rows(result: dict[str, Any], style: "_Style") -> list[list[str]]:
    """Return the rows of the systems: names, and means with the labels of significantly worse systems."""
    rows = []
    for system in result["systems"]:
        row = [f"{system['label']}  {style.escape(system['name'])}"]
        for key, comparison in result["measures"].items():
            better_than = comparison["better_than"]
            width = max(len(labels) for labels in better_than.values())
            superscript = style.superscript(better_than[system["label"]], width)
            row.append(format_percent(system["means"][key]) + superscript)
        rows.append(row)
    return rows


def _pair_cells(pair: dict[str, Any]) -> list[str]:
    """Return the cells of the columns ``_PAIRS``. A pair in a group has no detectable difference."""
    low, high = pair["interval"]
    cells = [f"{pair['better']} - {pair['worse']}", _points(pair["difference"]), f"{_points(low)} to {_points(high)}"]
    cells += [str(pair[name]) for name in ("wins", "ties", "losses")]
    for test in _TESTS:
        cells += [_format_p(pair[test]["p"]), _format_p(pair[test]["corrected"])]
    if "detectable" in pair:
        cells.append(_format_detectable(pair["detectable"]["corrected"]))
    return cells


def _format_p(p_value: float) -> str:
    return "<0.0001" if p_value < _SMALLEST_P else f"{p_value:.4f}"


def _format_detectable(difference: float | None) -> str:
    """Format the smallest detectable difference, a fraction, in percent. None could not be estimated."""
    if difference is None:
        return "-"
    if difference > 1:  # no measure exceeds 100 percent
        return ">100"
    return format_percent(difference)


def _points(fraction: float) -> str:
    """Format a difference in percentage points, with its sign."""
    return f"{100 * fraction:+.2f}"


def _change_rows(pair: dict[str, Any], style: "_Style") -> list[list[str]]:
    """Return the rows of the queries that changed most: query, change, ranks and text."""
    rows = []
    for query in pair["queries"]:
        ranks = f"{query['rank_of_worse'] or '-'} → {query['rank'] or '-'}"
        query_text = query["text"] or ""
        if len(query_text) > _LONGEST_TEXT:
            query_text = query_text[:_LONGEST_TEXT] + "…"
        query_id, change = style.escape(query["query_id"]), _points(query["difference"])
        rows.append([query_id, change, ranks, style.escape(query_text)])
    return rows


def _text_table(columns: list[str], rows: list[list[str]], left: int = 1) -> str:
    return "\n".join(align_rows([columns, *rows], left=left, gap="  "))


def _text_superscript(labels: str, width: int) -> str:
    return labels.translate(_SUPERSCRIPTS).ljust(width)


def _markdown_superscript(labels: str, width: int) -> str:
    return f"<sup>{labels}</sup>" if labels else ""


@dataclass(frozen=True)
class _Style:
    """The functions that format a comparison as text or as Markdown.

    Attributes:
        escape: escapes a name or a query, so that no program reads it as markup.
        table: formats a table from its columns, its rows, and the number of columns that are aligned left.
        superscript: formats labels of systems. The second argument is the width of the column in characters.
        bullet: begins an item of a list.
    """

    escape: Callable[[str], str]
    table: Callable[..., str]
    superscript: Callable[[str, int], str]
    bullet: str


_TEXT = _Style(escape=make_visible, table=_text_table, superscript=_text_superscript, bullet="")
_MARKDOWN = _Style(escape=as_text, table=markdown_table, superscript=_markdown_superscript, bullet="- ")


def _latex(result: dict[str, Any]) -> str:
    """Format a table for a paper, with the best means in bold. The table needs the LaTeX package booktabs."""
    measures = result["measures"]
    best_cells = {}
    for name in measures:
        best_cells[name] = format_percent(max(system["means"][name] for system in result["systems"]))
    rows = []
    for system in result["systems"]:
        row = [system["label"], _escape_latex(system["name"])]
        for name, comparison in measures.items():
            cell = format_percent(system["means"][name])
            if cell == best_cells[name]:  # also means that are equal only after rounding
                cell = rf"\textbf{{{cell}}}"
            better_than = comparison["better_than"][system["label"]]
            if better_than:
                cell += f"$^{{\\mathrm{{{better_than}}}}}$"
            row.append(cell)
        rows.append(" & ".join(row) + r" \\")
    head = ["", "System", *(_escape_latex(measure_title(name)) for name in measures)]
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{Percent on {result['queries']} queries; {_escape_latex(_explanation(result))}.}}",
            rf"\begin{{tabular}}{{ll{'l' * len(measures)}}}",
            r"\toprule",
            " & ".join(head) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _escape_latex(text: str) -> str:
    return re.sub(r"[&%$#_{}\\~^<>|]", lambda sign: _LATEX_ESCAPES[sign[0]], make_visible(text))
