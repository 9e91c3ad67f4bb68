"""Groups of queries: by a column of the config ``answers`` (type, fact or opinion, service), or by their length."""

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from baselines.measure.measures import PAPER, mean, values_of
from baselines.measure.qrels import read_queries
from baselines.measure.significance import of_means
from builders.core.errors import InputError
from builders.core.tables import percent, text_table
from builders.store.layout import SETS
from builders.store.reader import open_release
from builders.store.stored_answers import read_answers

BY = ("question_type", "fact_or_opinion", "source", "query_length")
LENGTHS = (6, 9, 12)  # characters of the longest query of the first three groups; the mean on dev is 9.29 (Table 3)
UNKNOWN = "unknown"

Groups = dict[str, list[int]]  # group -> numbers of its queries in the reference, from 0


def add_by(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--by", choices=BY, help=f"{what} of each group, by this property of queries (default: no groups)"
    )


def groups_of(args: argparse.Namespace, queries: Sequence[str]) -> Groups:
    """Return the groups of a reference's ``queries`` by ``args.by``, in the order of their names."""
    if not args.release:
        raise InputError("--by reads the queries and answers of a release; expected --release DIR")
    release, names = open_release(args.release), dict[str, str]()
    if args.by == "query_length":
        texts = read_queries(release, args.split, args.queries or SETS[args.set].queries)
        names = {query: _length(len(text)) for query, text in texts}
    else:
        names = {query: row[args.by] for query, row in read_answers(release, args.set, args.split).items()}
    found: Groups = {}
    for number, query in enumerate(queries):
        found.setdefault(names.get(query) or UNKNOWN, []).append(number)
    return dict(sorted(found.items(), key=lambda group: (group[0] == UNKNOWN, _first_number(group[0]), group[0])))


def _length(characters: int) -> str:
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


def text(results: Sequence[Mapping[str, Any]]) -> str:
    """Format the groups of all runs as a table."""
    rows = [
        [result["run"], row["group"], str(row["queries"]), *(_cell(row, key) for key in PAPER.values())]
        for result in results
        for row in result["by"]
    ]
    head = "groups, percent, with 95 % intervals over the queries of the group"
    return f"{head}\n" + text_table(["run", "group", "queries", *PAPER.values()], rows)


def _cell(row: Mapping[str, Any], key: str) -> str:
    low, high = row["intervals"][key]
    return f"{percent(row[key])} ({percent(low)} to {percent(high)})"
