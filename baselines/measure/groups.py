"""Groups of queries: by a column of the config ``answers`` (type, fact or opinion, service), or by their length."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from baselines.measure.measures import PAPER, exact_mean, values_of
from baselines.measure.qrels import read_queries
from baselines.measure.significance import of_means
from builders.core.errors import UsageError
from builders.core.results import Table
from builders.core.tables import format_percent, text_table
from builders.store.layout import SETS
from builders.store.reader import Release
from builders.store.stored_answers import read_answers

# Characters of the longest query of the first three groups; the mean on dev is 9.29 (Table 3).
LENGTHS = (6, 9, 12)
UNKNOWN = "unknown"

Groups = dict[str, list[int]]  # group -> numbers of its queries in the reference, from 0


def groups_of(
    *,
    by: str,
    queries: Sequence[str],
    release: Release | None,
    split: str,
    set_name: str,
    query_config: str | None = None,
) -> Groups:
    """Return the groups of queries, in the order of the groups' names.

    The queries without a value of the property, or without a row in the config ``answers``, are the group "unknown",
    which comes last.

    Args:
        by: a property of ``builders.store.names.QUESTION_PROPERTIES``.
        queries: the ids of the reference's queries.
        release, split, set_name: where the queries and their answers are.
        query_config: config with the texts of the queries (default: the config of the set). Used for the length.

    Raises:
        UsageError: there is no release.
        InputError: the release lacks the queries or answers.
    """
    if release is None:
        raise UsageError("--by reads the queries and answers of a release; expected --release DIR")
    group_names: dict[str, str] = {}
    if by == "query_length":
        for query_id, query_text in read_queries(release, split, query_config or SETS[set_name].queries):
            group_names[query_id] = _length_group(len(query_text))
    else:
        for query_id, answer_row in read_answers(release, set_name, split).items():
            group_names[query_id] = answer_row[by]
    groups: Groups = {}
    for query_number, query_id in enumerate(queries):
        group_name = group_names.get(query_id) or UNKNOWN
        groups.setdefault(group_name, []).append(query_number)
    return {group_name: groups[group_name] for group_name in sorted(groups, key=_group_order)}


def _length_group(character_count: int) -> str:
    """Return the name of the group of queries with this length, for example "7-9 characters"."""
    lowest = 1
    for highest in LENGTHS:
        if character_count <= highest:
            return f"{lowest}-{highest} characters"
        lowest = highest + 1
    return f"{lowest} characters or more"


def _group_order(group_name: str) -> tuple[bool, int, str]:
    """Return the sort key of a group. Lengths are ordered by their first numbers. The unknown queries come last."""
    first_number = re.match(r"\d+", group_name)
    return group_name == UNKNOWN, int(first_number[0]) if first_number else 0, group_name


def measure_groups(table: pa.Table, groups: Groups, chosen: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the number of queries of each group, and the mean and 95 % interval of measures, as fractions.

    The measures are the paper's and ``chosen``. ``table`` has the values of a run by query
    (:func:`baselines.measure.measures.measure_run`).
    """
    names = _measures_of_groups(chosen)
    # Shape (queries, measures).
    values = np.array([values_of(table, name) for name in names]).T
    rows = []
    for group_name, query_numbers in groups.items():
        group_values = values[query_numbers]
        row: dict[str, Any] = {"group": group_name, "queries": len(query_numbers)}
        for column, name in enumerate(names):
            row[name] = exact_mean(group_values[:, column].tolist())
        intervals = [list(interval) for interval in of_means(group_values)]
        row["intervals"] = dict(zip(names, intervals, strict=True))
        rows.append(row)
    return rows


def _measures_of_groups(chosen: Iterable[str]) -> list[str]:
    """Return the paper's measures and the chosen measures, each once."""
    return list(dict.fromkeys([*PAPER.values(), *chosen]))


def groups_text(results: Sequence[Mapping[str, Any]]) -> str:
    """Format the groups of all runs as a table.

    ``results`` are those of `evaluate` with groups: a dictionary per run.
    """
    names = _measures_of_groups(results[0].get("measures", ()))
    rows = []
    for result in results:
        for group in result["by"]:
            cells = [percent_with_interval(group[name], group["intervals"][name]) for name in names]
            rows.append([result["run"], group["group"], str(group["queries"]), *cells])
    title = "groups, percent, with 95 % intervals over the queries of the group"
    return f"{title}\n" + text_table(["run", "group", "queries", *names], rows)


def percent_with_interval(share: float, interval: Sequence[float]) -> str:
    """Format a fraction and the limits of its interval in percent, for example "34.38 (18.20 to 51.15)"."""
    low, high = interval
    return f"{format_percent(share)} ({format_percent(low)} to {format_percent(high)})"


def groups_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """Return the groups of all runs as a table. Each measure has its mean, and the limits of its interval.

    ``results`` are those of `evaluate` with groups: a dictionary per run.
    """
    names = _measures_of_groups(results[0].get("measures", ()))
    share_columns = interval_columns(names)
    rows = []
    for result in results:
        for group in result["by"]:
            row = [result["run"], group["group"], group["queries"]]
            for name in names:
                row += [group[name], *group["intervals"][name]]
            rows.append(row)
    return Table(
        ["run", "group", "queries", *share_columns],
        rows,
        title="groups of queries, percent, with the limits of 95 % intervals",
        percent_columns=share_columns,
        text_columns=2,
    )


def interval_columns(measure_names: Iterable[str]) -> list[str]:
    """Return three columns for each measure: its mean, and the lower and the upper limit of its interval."""
    columns = []
    for name in measure_names:
        columns += [name, f"{name} low", f"{name} high"]
    return columns
