"""Read and count the config ``answers``."""

from collections.abc import Callable, Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from builders.core.errors import InputError, log
from builders.core.results import Table
from builders.core.tables import aligned
from builders.store.judgments import labelled
from builders.store.layout import SETS, SPLITS
from builders.store.reader import Release

_GROUPS = ("question_type", "fact_or_opinion", "source")


def read_answers(release: Release, set_name: str, split: str) -> dict[str, dict[str, Any]]:
    """Return the rows of the config ``answers`` by query id. A translated query has the row of its Chinese query.

    Raises :class:`InputError` if the set has no answers, or the release has none of the split.
    """
    if set_name not in ("main", "crosslingual"):
        raise InputError(f"the set {set_name} has no answers; expected main or crosslingual", path=release.path)
    if ("answers", split) not in release.splits():
        raise InputError(f"has no answers/{split}; `python -m builders add answers` adds the config", path=release.path)
    found = {row["query_id"]: row for row in release.table("answers", split).to_pylist()}
    if SETS[set_name].translated:
        queries = release.table(SETS[set_name].queries, split).to_pylist()
        return {row["_id"]: found[row["zh_id"]] for row in queries if row["zh_id"] in found}
    return found


def answer_counts(
    splits: Collection[tuple[str, str]], read: Callable[[str, str], pa.Table]
) -> dict[str, dict[str, Any]]:
    """Return the counts of each split of ``answers``.

    ``splits`` are the (config, split) pairs of the release, and ``read`` returns the rows of a pair. ``answered`` are
    the queries with an answer, and ``in_passages`` the answers that a judged passage contains. ``unanswered`` are the
    queries that have a positive passage, but no answer. ``question_type``, ``fact_or_opinion`` and ``source`` have the
    number of queries of each value; the empty value means unknown.
    """
    counts: dict[str, dict[str, Any]] = {}
    for split in SPLITS:
        if ("answers", split) not in splits:
            continue
        rows = read("answers", split)
        lengths = pc.list_value_length(rows["answers"])
        answered = rows.filter(pc.greater(lengths, 0))["query_id"]
        judged = labelled(read("qrels", split)) if ("qrels", split) in splits else []
        found = pc.list_value_length(pc.list_flatten(rows["answer_passages"]))
        counts[split] = {
            "queries": rows.num_rows,
            "answered": len(answered),
            "unanswered": len({*judged} - {*answered.to_pylist()}),
            "answers": pc.sum(lengths).as_py() or 0,
            "in_passages": pc.sum(pc.greater(found, 0)).as_py() or 0,
        }
        for name in _GROUPS:
            values = sorted((each["values"], each["counts"]) for each in pc.value_counts(rows[name]).to_pylist())
            counts[split][name] = dict(values)
    return counts


def warn_of_gaps(counts: dict[str, dict[str, Any]]) -> None:
    """Log the numbers of queries without a known type, and of queries with a positive passage but no answer."""
    for split, found in counts.items():
        if unknown := found["question_type"].get("", 0):
            log.warning("%s: the type of %d of %d queries is unknown", split, unknown, found["queries"])
        if found["unanswered"]:
            log.warning("%s: %d queries have a positive passage, but no answer", split, found["unanswered"])


def answer_counts_table(counts: dict[str, dict[str, Any]]) -> Table:
    """Return the result of :func:`answer_counts` as a table with a column for each split."""
    rows = []
    for name in ("queries", "answered", "unanswered", "answers", "in_passages"):
        rows.append([name.replace("_", " "), *(split_counts[name] for split_counts in counts.values())])
    for name in _GROUPS:
        for value in sorted({value for split_counts in counts.values() for value in split_counts[name]}):
            numbers = [split_counts[name].get(value, 0) for split_counts in counts.values()]
            rows.append([f"{name} {value or 'unknown'}", *numbers])
    return Table(["answers", *counts], rows)


def answers_text(counts: dict[str, dict[str, Any]]) -> str:
    """Format the result of :func:`answer_counts` as aligned text."""
    table = answer_counts_table(counts)
    cells = [[title, *(f"{number:,}" for number in numbers)] for title, *numbers in table.rows]
    return "\n".join(aligned([table.columns, *cells], widths=(32, 11)))
