"""Groups of queries: by a column of the config ``answers`` (type, fact or opinion, service), or by their length."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from baselines.measure.measures import PAPER, mean, values_of
from baselines.measure.qrels import read_queries
from baselines.measure.significance import of_means
from builders.core.errors import UsageError
from builders.core.results import Table
from builders.core.tables import percent, text_table
from builders.store.layout import SETS
from builders.store.reader import Release
from builders.store.stored_answers import read_answers

LENGTHS = (6, 9, 12)  # characters of the longest query of the first three groups; the mean on dev is 9.29 (Table 3)
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

    Args:
        by: a property of ``builders.store.names.QUESTION_PROPERTIES``.
        queries: the ids of the reference's queries.
        release, split, set_name: where the queries and their answers are.
        query_config: config with the texts of the queries (default: the config of the set).

    Raises:
        InputError: there is no release, or it lacks the queries or answers.
    """
    if release is None:
        raise UsageError("--by reads the queries and answers of a release; expected --release DIR")
    group_names: dict[str, str] = {}
    if by == "query_length":
        for query, text in read_queries(release, split, query_config or SETS[set_name].queries):
            group_names[query] = _length_group(len(text))
    else:
        for query, row in read_answers(release, set_name, split).items():
            group_names[query] = row[by]
    groups: Groups = {}
    for number, query in enumerate(queries):
        groups.setdefault(group_names.get(query) or UNKNOWN, []).append(number)
    # Groups of lengths are in the order of their first numbers. The unknown queries come last.
    return dict(sorted(groups.items(), key=lambda group: (group[0] == UNKNOWN, _first_number(group[0]), group[0])))


def _length_group(characters: int) -> str:
    low = 1
    for high in LENGTHS:
        if characters <= high:
            return f"{low}-{high} characters"
        low = high + 1
    return f"{low} characters or more"


def _first_number(name: str) -> int:
    found = re.match(r"\d+", name)
    return int(found[0]) if found else 0


def measure_groups(table: pa.Table, groups: Groups) -> list[dict[str, Any]]:
    """Return the number of queries of each group, and the mean and 95 % interval of the paper's measures, as fractions.

    ``table`` has the values of a run by query (:func:`baselines.measure.measures.measure_run`).
    """
    values = np.array([values_of(table, key) for key in PAPER.values()]).T
    rows = []
    for group, members in groups.items():
        own = values[members]
        intervals = dict(zip(PAPER.values(), map(list, of_means(own)), strict=True))
        means = {key: mean(own[:, n].tolist()) for n, key in enumerate(PAPER.values())}
        rows.append({"group": group, "queries": len(members), **means, "intervals": intervals})
    return rows


def groups_text(results: Sequence[Mapping[str, Any]]) -> str:
    """Format the groups of all runs as a table."""
    rows = []
    for result in results:
        for group in result["by"]:
            cells = [percent_with_interval(group[key], group["intervals"][key]) for key in PAPER.values()]
            rows.append([result["run"], group["group"], str(group["queries"]), *cells])
    head = "groups, percent, with 95 % intervals over the queries of the group"
    return f"{head}\n" + text_table(["run", "group", "queries", *PAPER.values()], rows)


def percent_with_interval(share: float, interval: Sequence[float]) -> str:
    """Format a fraction and the limits of its interval in percent, for example "34.38 (18.20 to 51.15)"."""
    low, high = interval
    return f"{percent(share)} ({percent(low)} to {percent(high)})"


def groups_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """Return the groups of all runs as a table. Each measure has its mean, and the limits of its interval."""
    measures: list[str] = []
    for key in PAPER.values():
        measures += [key, f"{key} low", f"{key} high"]
    rows = []
    for result in results:
        for group in result["by"]:
            row = [result["run"], group["group"], group["queries"]]
            for key in PAPER.values():
                row += [group[key], *group["intervals"][key]]
            rows.append(row)
    return Table(
        ["run", "group", "queries", *measures],
        rows,
        title="groups of queries, percent, with the limits of 95 % intervals",
        percent_columns=measures,
        text_columns=2,
    )
