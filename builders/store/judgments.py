"""Judgments of a split, files of hard negatives, and the label overlap of test and training queries."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.errors import InputError
from builders.core.results import Table
from builders.core.tables import align_rows
from builders.core.typed import json_lines
from builders.store.layout import QRELS, SETS
from builders.store.names import TESTED_SPLITS
from builders.store.reader import Release

# Query id -> passage id -> score; a score above 0 means positive.
Judgments = Mapping[str, Mapping[str, int]]

_SHARE_DIGITS = 6  # decimals of a share in stats.json


def read_judged(release: Release, config: str, split: str) -> dict[str, dict[str, int]]:
    """Return a split's judgments from a qrels config, in file order. Empty if the release lacks the split."""
    judged: dict[str, dict[str, int]] = {}
    if (config, split) not in release.splits():
        return judged
    for batch in release.batches(config, split):
        query_ids = batch.column("query-id").to_pylist()
        passage_ids = batch.column("corpus-id").to_pylist()
        scores = batch.column("score").to_pylist()
        for query_id, passage_id, score in zip(query_ids, passage_ids, scores, strict=True):
            judged.setdefault(query_id, {})[passage_id] = score
    return judged


def texts_of_judged(release: Release, judged: Judgments) -> dict[str, str]:
    """Return the texts of all judged passages by id. Raise :class:`InputError` if the corpus lacks a passage."""
    judged_ids: set[str] = set()
    for scores in judged.values():
        judged_ids.update(scores)
    texts = release.texts("corpus", "corpus", judged_ids)
    absent_ids = judged_ids - texts.keys()
    if absent_ids:
        raise InputError(f"the corpus lacks passage {min(absent_ids)!r}, which has a judgment", path=release.path)
    return texts


def joined_row(
    query_id: str, query_text: str, scores: Mapping[str, int], passage_texts: Mapping[str, str]
) -> dict[str, Any]:
    """Return a joined row: a query with its judged passages.

    ``scores`` are the query's judgments by passage id. ``passage_texts`` maps passage ids to texts.
    """
    positives = []
    negatives = []
    for passage_id, score in scores.items():
        # The benchmark drops titles.
        passage = {"docid": passage_id, "title": "", "text": passage_texts[passage_id]}
        if score > 0:
            positives.append(passage)
        else:
            negatives.append(passage)
    return {
        "query_id": query_id,
        "query": query_text,
        "positive_passages": positives,
        "negative_passages": negatives,
    }


def qrels_table(judged: Judgments) -> pa.Table:
    """Return judgments as rows of a qrels config."""
    query_ids: list[str] = []
    passage_ids: list[str] = []
    scores: list[int] = []
    for query_id, query_scores in judged.items():
        query_ids += [query_id] * len(query_scores)
        passage_ids += query_scores.keys()
        scores += query_scores.values()
    columns = {"query-id": query_ids, "corpus-id": passage_ids, "score": scores}
    return pa.table(columns, schema=QRELS)


class _NegativesLine(msgspec.Struct):
    """A line of hard negatives."""

    query_id: str = msgspec.field(name="query-id")
    negative_ids: list[str] = msgspec.field(name="negative-ids")
    labelled_by: str | None = msgspec.field(name="labelled-by", default=None)


def read_negative_ids(negatives_path: Path) -> list[tuple[str, list[str], int]]:
    """Read hard negatives from a file of `baselines mine`.

    Returns (query id, ids of the query's negatives, line number) for every line. Raises :class:`InputError` with the
    number of the first invalid line.
    """
    remedy = 'expected {"query-id": ID, "negative-ids": [ID, ...]}'
    negatives = []
    for line_number, line in json_lines(negatives_path, _NegativesLine, remedy):
        if line.labelled_by is not None:
            problem = "is a file of a machine's labels, which `train --machine-labels` reads; expected hard negatives"
            raise InputError(problem, path=negatives_path, line=line_number)
        negatives.append((line.query_id, line.negative_ids, line_number))
    if not negatives:
        raise InputError("is empty; expected JSON lines with hard negatives from `baselines mine`", path=negatives_path)
    return negatives


class _MachineLine(msgspec.Struct):
    """A line of labels. ``labelled_by`` is not used, but required, so that a file of another kind is an error."""

    query_id: str = msgspec.field(name="query-id")
    labelled_by: str = msgspec.field(name="labelled-by")
    positive_ids: list[str] = msgspec.field(name="positive-ids")
    negative_ids: list[str] = msgspec.field(name="negative-ids", default_factory=list)
    query: str | None = None


@dataclass(frozen=True)
class MachineLabels:
    """A question's positives and negatives that a machine labelled, not a person.

    Attributes:
        query_id: the question.
        query: its text. None if the question is in the release.
        positive_ids, negative_ids: passages of the collection.
        line: number of the line in the file.
    """

    query_id: str
    query: str | None
    positive_ids: list[str]
    negative_ids: list[str]
    line: int


def read_machine_labels(path: Path) -> list[MachineLabels]:
    """Read a file of `baselines mine` with hidden positives, or with labels of questions that had no labels.

    A question must occur only once, and must have at least one positive. No passage may be both positive and negative.
    Raises :class:`InputError` with the number of the first invalid line.
    """
    remedy = 'expected {"query-id": ID, "labelled-by": MODEL, "positive-ids": [ID, ...], "negative-ids": [ID, ...]}'
    labels = []
    query_ids = set()
    for line_number, line in json_lines(path, _MachineLine, remedy):
        problem = ""
        if line.query_id in query_ids:
            problem = f"the question {line.query_id!r} occurs twice; expected every question once"
        elif not line.positive_ids:
            problem = f"the question {line.query_id!r} has no positive-ids; expected at least one"
        elif not set(line.positive_ids).isdisjoint(line.negative_ids):
            problem = f"a passage of the question {line.query_id!r} is both positive and negative"
        elif line.query is not None and not line.query.strip():
            problem = f"the question {line.query_id!r} has an empty text; expected a text"
        if problem:
            raise InputError(problem, path=path, line=line_number)
        query_ids.add(line.query_id)
        labels.append(MachineLabels(line.query_id, line.query, line.positive_ids, line.negative_ids, line_number))
    if not labels:
        raise InputError("is empty; expected JSON lines with a machine's labels from `baselines mine`", path=path)
    return labels


def label_overlap(train_qrels: pa.Table, test_qrels: pa.Table | None) -> dict[str, Any]:
    """Return the number (``overlapping``) and share (``overlapping_share``) of test queries with a known answer.

    These test queries share a positive passage with a training query. The share is of the test queries that have a
    positive passage, and is None if there are none. Both values are None if ``test_qrels`` is None, because the test
    queries have no labels.

    A model has already seen the answers of such queries (Zhan et al., arXiv 2204.11447). One shared passage suffices.
    The published script (compute_label_overlap.py) requires two shared passages.
    """
    if test_qrels is None:
        return {"overlapping": None, "overlapping_share": None}
    train_positives = _positive_rows(train_qrels)
    test_positives = _positive_rows(test_qrels)
    # Compare by passage: the queries of the two splits are different in any case.
    train_passage_ids = pc.unique(train_positives["corpus-id"])
    shared_positives = test_positives.filter(pc.is_in(test_positives["corpus-id"], train_passage_ids))
    overlapping = pc.count_distinct(shared_positives["query-id"]).as_py()
    query_count = pc.count_distinct(test_positives["query-id"]).as_py()
    overlapping_share = None
    if query_count:
        overlapping_share = round(overlapping / query_count, _SHARE_DIGITS)
    return {"overlapping": overlapping, "overlapping_share": overlapping_share}


def _positive_rows(qrels: pa.Table) -> pa.Table:
    return qrels.filter(pc.greater(qrels["score"], 0))


def overlaps_with_train(
    splits: Collection[tuple[str, str]], read_split: Callable[[str, str], pa.Table]
) -> dict[str, dict[str, Any]]:
    """Return the label overlap (:func:`label_overlap`) of every dev or test split with its training split.

    The result maps ``CONFIG/SPLIT`` of a config of judgments to ``test_queries``, ``overlapping`` and
    ``overlapping_share``. ``test_queries`` is the number of queries with a positive passage.

    ``splits`` are the (config, split) pairs of the release, and ``read_split`` returns the rows of a pair.
    """
    overlaps: dict[str, dict[str, Any]] = {}
    # Several sets have the same judgments, ``qrels``.
    qrels_configs = dict.fromkeys(dataset_set.qrels for dataset_set in SETS.values())
    for config in qrels_configs:
        if (config, "train") not in splits:
            continue
        tested_splits = [split for split in TESTED_SPLITS if (config, split) in splits]
        if not tested_splits:  # the training judgments, which may be large, need not be read
            continue
        train_qrels = read_split(config, "train")
        for split in tested_splits:
            tested_qrels = read_split(config, split)
            overlap = label_overlap(train_qrels, tested_qrels)
            overlaps[f"{config}/{split}"] = {"test_queries": len(labelled_queries(tested_qrels)), **overlap}
    return overlaps


def drawn_overlaps(
    splits: Collection[tuple[str, str]], read_split: Callable[[str, str], pa.Table]
) -> list[dict[str, Any]]:
    """Return the label overlap (:func:`label_overlap`) of each drawn training set with each of its test splits.

    Drawn training sets are the configs ``restrain-*`` and ``resttest-*``. A row has ``config``, ``test`` (the test
    split), ``train_queries``, ``test_queries``, ``overlapping`` and ``overlapping_share``. ``splits`` are the
    (config, split) pairs of the release, and ``read_split`` returns the rows of a pair.
    """
    # A restrain set is tested on the test splits of the main set.
    test_splits = [split for split in TESTED_SPLITS if ("qrels", split) in splits]
    compared = []  # (drawn config, config of the test queries, split of the test queries)
    for config, split in splits:
        if config.startswith("restrain-"):
            compared += [(config, "qrels", test_split) for test_split in test_splits]
        elif config.startswith("resttest-") and split != "train" and (config, "train") in splits:
            # A resttest set has its own test splits: `interpolation` and `extrapolation`.
            compared.append((config, config, split))
    rows = []
    for config, test_config, split in compared:
        train_qrels = read_split(config, "train")
        tested_qrels = read_split(test_config, split)
        train_count = len(labelled_queries(train_qrels))
        test_count = len(labelled_queries(tested_qrels))
        row = {"config": config, "test": split, "train_queries": train_count, "test_queries": test_count}
        rows.append(row | label_overlap(train_qrels, tested_qrels))
    return rows


def labelled_queries(qrels: pa.Table) -> list[str]:
    """Return the ids of the queries that have a positive passage, sorted."""
    return sorted(pc.unique(_positive_rows(qrels)["query-id"]).to_pylist())


def overlap_columns(overlap_rows: list[dict[str, Any]]) -> list[str]:
    """Return the keys of all rows, each once, in the order of their first use."""
    return list(dict.fromkeys(chain.from_iterable(overlap_rows)))


def overlap_report_table(overlap_rows: list[dict[str, Any]]) -> Table:
    """Return rows with the label overlap of drawn training sets as a table of a report.

    The rows are those of :func:`drawn_overlaps` or of `add restrain` and `add resttest`, which have further figures.
    """
    columns = overlap_columns(overlap_rows)
    # Shares are fractions in CSV and pandas, and percent in Markdown.
    share_columns = [column for column in columns if column.endswith("share")]
    cells = []
    for row in overlap_rows:
        cells.append([row.get(column) for column in columns])
    return Table(columns, cells, percent_columns=share_columns, text_columns=2)


def overlap_table(overlap_rows: list[dict[str, Any]]) -> str:
    """Format the rows of :func:`overlap_report_table` as an aligned table."""
    columns = overlap_columns(overlap_rows)
    lines = [[column.replace("_", " ") for column in columns]]
    for row in overlap_rows:
        lines.append([_format_value(column, row.get(column)) for column in columns])
    return "\n".join(align_rows(lines, left=2, gap="  "))


def _format_value(column: str, value: Any) -> str:
    if value is None:
        return "-"
    if column.endswith("share"):
        return f"{100 * value:.2f}%"
    return f"{value:,}" if isinstance(value, int) else str(value)
