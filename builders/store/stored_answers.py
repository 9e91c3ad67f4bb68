"""Read and count the config ``answers``."""

from collections.abc import Callable, Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from builders.core.errors import InputError, log
from builders.core.results import Table
from builders.core.tables import align_rows
from builders.store.judgments import labelled_queries
from builders.store.layout import SETS, SPLITS
from builders.store.reader import Release

_COUNTED_COLUMNS = ("question_type", "fact_or_opinion", "source")


def read_answers(release: Release, set_name: str, split: str) -> dict[str, dict[str, Any]]:
    """Return the rows of the config ``answers`` (:data:`.layout.ANSWERS`) for the queries of a set, by query id.

    A translated or perturbed query has the row of its original. A query may have no row, or a row without answers.
    Raises :class:`InputError` if the set has no answers, or the release has none of the split.
    """
    if not _has_answers(set_name):
        raise InputError(
            f"the set {set_name} has no answers; expected main, crosslingual or stress-KIND", path=release.path
        )
    dataset_set = SETS[set_name]
    if ("answers", split) not in release.splits():
        raise InputError(f"has no answers/{split}; `python -m builders add answers` adds the config", path=release.path)
    answer_rows = {row["query_id"]: row for row in release.table("answers", split).to_pylist()}
    if not dataset_set.original_column:
        return answer_rows
    rows_by_query = {}
    for query in release.table(dataset_set.queries, split).to_pylist():
        original_id = query[dataset_set.original_column]
        if original_id in answer_rows:
            rows_by_query[query["_id"]] = answer_rows[original_id]
    return rows_by_query


def _has_answers(set_name: str) -> bool:
    """True for the set ``main`` and the sets that search its passages."""
    dataset_set = SETS.get(set_name)
    return dataset_set is not None and dataset_set.corpus == SETS["main"].corpus


def find_answer_texts(release: Release, set_name: str, split: str) -> dict[str, list[str]]:
    """Return the answers of each query of a split by query id. Queries without an answer are left out.

    The result is empty if the set has no answers, or the release has none of the split.
    """
    if not _has_answers(set_name) or ("answers", split) not in release.splits():
        return {}
    answer_rows = read_answers(release, set_name, split)
    return {query_id: row["answers"] for query_id, row in answer_rows.items() if row["answers"]}


def answer_counts(
    splits: Collection[tuple[str, str]], read_split: Callable[[str, str], pa.Table]
) -> dict[str, dict[str, Any]]:
    """Return the counts of the config ``answers`` by split. Splits without answers are left out.

    ``splits`` are the (config, split) pairs of the release, and ``read_split`` returns the rows of a pair.
    A split's counts are:

    - ``queries``: the rows, one for each query;
    - ``answered``: the queries with an answer;
    - ``unanswered``: the queries with a positive passage, but without an answer;
    - ``answers``: the answers of all queries;
    - ``in_passages``: the answers that a judged passage contains;
    - ``question_type``, ``fact_or_opinion`` and ``source``: the number of queries of each value. The empty value means
      unknown.
    """
    counts: dict[str, dict[str, Any]] = {}
    for split in SPLITS:
        if ("answers", split) not in splits:
            continue
        rows = read_split("answers", split)
        lengths = pc.list_value_length(rows["answers"])
        # People gave no answer to some queries, whose list is empty.
        answered_ids = rows.filter(pc.greater(lengths, 0))["query_id"].to_pylist()
        # A split without labels, such as test, has no unanswered queries.
        labelled_ids: list[str] = []
        if ("qrels", split) in splits:
            labelled_ids = labelled_queries(read_split("qrels", split))
        passages_per_answer = pc.list_value_length(pc.list_flatten(rows["answer_passages"]))
        counts[split] = {
            "queries": rows.num_rows,
            "answered": len(answered_ids),
            "unanswered": len(set(labelled_ids) - set(answered_ids)),
            "answers": pc.sum(lengths).as_py() or 0,
            "in_passages": pc.sum(pc.greater(passages_per_answer, 0)).as_py() or 0,
        }
        for name in _COUNTED_COLUMNS:
            # Sorted, so that the bytes of stats.json do not depend on the order of the rows.
            value_counts = pc.value_counts(rows[name]).to_pylist()
            counts[split][name] = dict(sorted((item["values"], item["counts"]) for item in value_counts))
    return counts


def warn_of_gaps(counts_by_split: dict[str, dict[str, Any]]) -> None:
    """Warn about queries without a known type, and about queries with a positive passage but no answer.

    ``counts_by_split`` is the result of :func:`answer_counts`.
    """
    for split, split_counts in counts_by_split.items():
        unknown_types = split_counts["question_type"].get("", 0)
        if unknown_types:
            log.warning("%s: the type of %d of %d queries is unknown", split, unknown_types, split_counts["queries"])
        if split_counts["unanswered"]:
            log.warning("%s: %d queries have a positive passage, but no answer", split, split_counts["unanswered"])


def answer_counts_table(counts_by_split: dict[str, dict[str, Any]]) -> Table:
    """Return the result of :func:`answer_counts` as a table with a column for each split."""
    all_counts = counts_by_split.values()
    rows = []
    for name in ("queries", "answered", "unanswered", "answers", "in_passages"):
        numbers = [split_counts[name] for split_counts in all_counts]
        rows.append([name.replace("_", " "), *numbers])
    # A value may be missing in some splits, whose count is then 0.
    for name in _COUNTED_COLUMNS:
        values: set[str] = set()
        for split_counts in all_counts:
            values.update(split_counts[name])
        for value in sorted(values):
            numbers = [split_counts[name].get(value, 0) for split_counts in all_counts]
            rows.append([f"{name} {value or 'unknown'}", *numbers])
    return Table(["answers", *counts_by_split], rows)


def answers_text(counts_by_split: dict[str, dict[str, Any]]) -> str:
    """Format the result of :func:`answer_counts` as aligned text."""
    table = answer_counts_table(counts_by_split)
    lines = [list(table.columns)]
    for title, *numbers in table.rows:
        lines.append([title, *(f"{number:,}" for number in numbers)])
    return "\n".join(align_rows(lines, widths=(32, 11)))
