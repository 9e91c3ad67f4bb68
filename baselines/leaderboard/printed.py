"""The tables of the leaderboard as text and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from baselines.runs.tables import text_table
from builders.core.errors import visible
from builders.core.markdown import as_text as escaped

LEGEND = (
    "percent; Recall@k: the share of questions with a positive in the top k (the paper's); R@k: the share of the "
    "positives found (MTEB's); trained: on data of DuReader, as the model declares"
)


def as_text(tables: Sequence[Mapping[str, Any]], sources: Mapping[str, Mapping[str, str]]) -> str:
    """Each table under its title, then what the names of the sources stand for."""
    lines = []
    for table in tables:
        head = ["", *table["measures"], "trained", "source"]
        lines += [_title(table), text_table(head, [row for model in table["models"] for row in _rows(table, model)])]
        lines += [""]
    lines.append(LEGEND)
    return "\n".join([*lines, *(f"{name}: {_source(source)}" for name, source in sources.items())])


def as_markdown(tables: Sequence[Mapping[str, Any]], sources: Mapping[str, Mapping[str, str]]) -> str:
    """Each table under a heading; the measure by which it is ordered comes first."""
    lines = []
    for table in tables:
        head = ["model", *table["measures"], "trained", "source"]
        lines += [f"### {escaped(_title(table))}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for model in table["models"]:
            figures = [_with_interval(model, name) for name in table["measures"]]
            cells = [escaped(model["model"]), *figures, model["trained"] or "-", escaped(model["source"])]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    lines += [LEGEND, ""]
    return "\n".join([*lines, *(f"- {name}: {escaped(_source(source))}" for name, source in sources.items())])


def _title(table: Mapping[str, Any]) -> str:
    some = f", the best {len(table['models'])} of {table['of']}" if len(table["models"]) < table["of"] else ""
    return visible(f"{table['title']}{some}")


def _rows(table: Mapping[str, Any], model: Mapping[str, Any]) -> list[list[str]]:
    figures = [_figure(model, name) for name in table["measures"]]
    rows = [[visible(model["model"]), *figures, model["trained"] or "-", model["source"]]]
    if "intervals" in model:
        ends = ["{:.1f}-{:.1f}".format(*model["intervals"][name]) for name in table["measures"]]
        rows.append(["  95 %", *ends, "", ""])
    return rows


def _figure(model: Mapping[str, Any], name: str) -> str:
    return f"{model['figures'][name]:.2f}" if name in model["figures"] else "-"


def _with_interval(model: Mapping[str, Any], name: str) -> str:
    if "intervals" not in model:
        return _figure(model, name)
    return _figure(model, name) + " ({:.1f} to {:.1f})".format(*model["intervals"][name])


def _source(source: Mapping[str, str]) -> str:
    note = f" ({source['note']})" if source["note"] else ""
    return f"{source['title']}; {source['place']}; {source['date']}{note}"
