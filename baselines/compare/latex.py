"""A comparison as a LaTeX table, as papers have it: means with superscripts, the best in bold."""

from __future__ import annotations

import re
from typing import Any

from baselines.compare import cells
from baselines.runs.tables import percent
from builders.core.errors import visible

_SPECIAL = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


def as_latex(result: dict[str, Any]) -> str:
    """The table of systems; needs the package booktabs. Which systems cannot be told apart stands in the caption."""
    measures = result["measures"]
    best = {name: percent(max(system["means"][name] for system in result["systems"])) for name in measures}
    rows = []
    for system in result["systems"]:
        row = [system["label"], escaped(system["name"])]
        for name, found in measures.items():
            shown, better = percent(system["means"][name]), found["better_than"][system["label"]]
            shown = rf"\textbf{{{shown}}}" if shown == best[name] else shown
            row.append(shown + f"$^{{\\mathrm{{{better}}}}}$" * bool(better))
        rows.append(" & ".join(row) + r" \\")
    header = ["", "System", *(escaped(cells.title(name)) for name in measures)]
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_caption(result)}}}",
            rf"\begin{{tabular}}{{ll{'l' * len(measures)}}}",
            r"\toprule",
            " & ".join(header) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _caption(result: dict[str, Any]) -> str:
    alike = []
    for name, found in result["measures"].items():
        if shown := [group for group in found["groups"] if len(group) > 1]:
            alike.append(f"{cells.title(name)}: " + "; ".join(", ".join(group) for group in shown))
    said = f"Percent on {result['queries']} queries; {cells.explanation(result)}."
    said += f" Not told apart: {'. '.join(alike)}." * bool(alike)
    return re.sub(r"p \\textless\{\}= ([\d.e-]+)", r"$p \\le \1$", escaped(said))


def escaped(text: str) -> str:
    """A text of others in LaTeX: shown as it is."""
    return re.sub(r"[&%$#_{}\\~^<>|]", lambda found: _SPECIAL[found[0]], visible(text))
