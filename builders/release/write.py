"""Write the Parquet files of a release from the selected rows (see :mod:`.select`). Each file is one task.

A task's result is a folder with the file and its manifest entry. The folder gets its name when both files are complete.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from builders.core.folders import task_folder
from builders.core.shares import report_share
from builders.release.answer_records import answers_table, merge_records
from builders.release.label import Places, rows_at
from builders.release.select import ReleaseSelection, SplitSelection
from builders.store import layout
from builders.store.draft import ParquetFile
from builders.store.layout import CORPUS, JOINED, PASSAGES, QRELS, QUERIES, schema_of
from builders.text.answer_spans import AT_ONCE
from builders.text.span_options import SpanOptions

_SHARD_FILE = "rows.parquet"
_ENTRY_FILE = "entry.json"
_JOINED_ROWS_AT_A_TIME = 8_192


def _no_places() -> Places:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class NewFile:
    """A Parquet file to write, with the places of its queries and passages. ``number`` is the file's number in a split.

    Files of ``corpus`` have only passages. Files of ``queries`` have only queries. Row i of ``qrels`` has
    ``queries[i]`` and ``passages[i]``. Joined row i has ``queries[i]`` and
    ``passages[passage_ends[i - 1] : passage_ends[i]]``. Row i of ``answers`` also has the raw rows
    ``raw_rows[raw_row_ends[i - 1] : raw_row_ends[i]]``. For example, two queries with three and one passages have
    ``passage_ends = [3, 4]``.
    """

    config: str
    split: str
    number: int
    queries: Places = field(default_factory=_no_places)
    passages: Places = field(default_factory=_no_places)
    passage_ends: Places = field(default_factory=_no_places)
    raw_rows: Places = field(default_factory=_no_places)
    raw_row_ends: Places = field(default_factory=_no_places)

    @property
    def row_count(self) -> int:
        """The number of rows of the file."""
        return self.queries.size or self.passages.size

    def part(self, rows: slice, number: int) -> "NewFile":
        """Return a file with the rows of a slice, which has a start and a stop, and with another ``number``."""
        passages, passage_ends = _slice_groups(self.passages, self.passage_ends, rows)
        raw_rows, raw_row_ends = _slice_groups(self.raw_rows, self.raw_row_ends, rows)
        return NewFile(
            config=self.config,
            split=self.split,
            number=number,
            queries=self.queries[rows],
            passages=passages,
            passage_ends=passage_ends,
            raw_rows=raw_rows,
            raw_row_ends=raw_row_ends,
        )


def _slice_groups(values: Places, ends: Places, rows: slice) -> tuple[Places, Places]:
    """Return the values of some rows, and where the values of each row end.

    Row i has ``values[ends[i - 1] : ends[i]]``. If ``ends`` is empty, each row has one value. For example, the rows 1
    to 2 of ``values = [a, b, c, d]`` and ``ends = [1, 3, 4]`` are ``[b, c, d]`` with the ends ``[2, 3]``.
    """
    if not ends.size:
        return values[rows], ends
    row_ends = ends[rows]
    first_value = ends[rows.start - 1] if rows.start else 0
    return values[first_value : row_ends[-1]], row_ends - first_value


def configs_of(split: str, rows: SplitSelection) -> list[str]:
    """Return the configs of a split: joined rows, queries, answers, and, if the split has labels, qrels."""
    configs = [split, "queries", "answers"]
    if rows.passages.size:
        configs.append("qrels")
    return configs


def files_of(selection: ReleaseSelection) -> Iterator[NewFile]:
    """Yield all files of the release."""
    yield from _divide(NewFile("corpus", "corpus", 0, passages=selection.corpus))
    for split, rows in selection.splits.items():
        for config in configs_of(split, rows):
            yield from _divide(_rows_of_config(config, split, rows))


def _rows_of_config(config: str, split: str, rows: SplitSelection) -> NewFile:
    """Return all rows of one split as one file."""
    if config == "queries":
        return NewFile(config, split, 0, queries=rows.queries)
    if config == "qrels":
        query_of_judgment = rows.queries[rows.judged_queries]
        return NewFile(config, split, 0, queries=query_of_judgment, passages=rows.passages)
    # Judgments and raw rows are sorted by query, so the last position of each query's number ends its group.
    query_numbers = np.arange(rows.queries.size)
    joined_rows = NewFile(
        config,
        split,
        0,
        queries=rows.queries,
        passages=rows.passages,
        passage_ends=np.searchsorted(rows.judged_queries, query_numbers, "right"),
    )
    if config != "answers":
        return joined_rows
    raw_row_ends = np.searchsorted(rows.raw_row_queries, query_numbers, "right")
    return replace(joined_rows, raw_rows=rows.raw_rows, raw_row_ends=raw_row_ends)


def _divide(all_rows: NewFile) -> Iterator[NewFile]:
    """Divide the rows of one split into files. The layout sets the number of rows per file."""
    shard_size = layout.rows_per_shard(schema_of(all_rows.config))
    # Files with many texts per row have fewer rows, so that all files have a similar size.
    for number, start in enumerate(range(0, all_rows.row_count, shard_size)):
        yield all_rows.part(slice(start, start + shard_size), number)


def write_file(new_file: NewFile, work_folder: Path, options: SpanOptions) -> tuple[Path, dict[str, Any]]:
    """Write one file, unless an earlier, killed build finished it.

    Return its path, and its ``bytes``, ``rows`` and ``sha256`` for the manifest.
    """
    folder = work_folder / "files" / f"{new_file.config}-{new_file.split}-{new_file.number:05d}"
    if not folder.exists():
        with task_folder(folder) as half_folder:
            shard = ParquetFile(half_folder / _SHARD_FILE, schema_of(new_file.config))
            for table in _make_tables(new_file, work_folder, options):
                shard.write(table)
                report_share(shard.rows / new_file.row_count)
            (half_folder / _ENTRY_FILE).write_text(json.dumps(shard.close()), encoding="utf-8")
    return folder / _SHARD_FILE, json.loads((folder / _ENTRY_FILE).read_text(encoding="utf-8"))


def _make_tables(new_file: NewFile, work_folder: Path, options: SpanOptions) -> Iterator[pa.Table]:
    """Yield the rows of a file. Few rows with many texts are in memory at once."""
    if new_file.config == "answers":
        batch_size = AT_ONCE
    elif new_file.passage_ends.size:
        batch_size = _JOINED_ROWS_AT_A_TIME
    else:
        batch_size = layout.ROWS_PER_GROUP
    for start in range(0, new_file.row_count, batch_size):
        stop = min(start + batch_size, new_file.row_count)
        batch = new_file.part(slice(start, stop), new_file.number)
        if new_file.config == "corpus":
            # docid becomes _id.
            yield _passage_table(batch.passages, work_folder).rename_columns(CORPUS.names)
        elif new_file.config == "queries":
            yield _query_table(batch.queries, work_folder)
        elif new_file.config == "qrels":
            yield _qrels_table(batch, work_folder)
        elif new_file.config == "answers":
            yield _answer_table(batch, work_folder, options)
        else:
            yield _joined_table(batch, work_folder)


def _table(schema: pa.Schema, *columns: Any) -> pa.Table:
    return pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema)


def _query_table(places: Places, work_folder: Path) -> pa.Table:
    questions = rows_at(places, work_folder, "questions", ["query_id", "text"])
    return _table(QUERIES, questions["query_id"], questions["text"])


def _passage_table(places: Places, work_folder: Path) -> pa.Table:
    passages = rows_at(places, work_folder, "passages", ["docid", "text"])
    empty_titles = [""] * len(passages)
    schema = pa.schema(list(PASSAGES.value_type))
    return _table(schema, passages["docid"], empty_titles, passages["text"])


def _qrels_table(batch: NewFile, work_folder: Path) -> pa.Table:
    query_ids = rows_at(batch.queries, work_folder, "questions", ["query_id"])["query_id"]
    passage_ids = rows_at(batch.passages, work_folder, "passages", ["docid"])["docid"]
    # Raw DuReader has only positives.
    return _table(QRELS, query_ids, passage_ids, [1] * len(passage_ids))


def _joined_table(batch: NewFile, work_folder: Path) -> pa.Table:
    """Return queries with their positive passages. A release from raw rows has no negative passages."""
    queries = _query_table(batch.queries, work_folder)
    passages = _passage_table(batch.passages, work_folder).to_struct_array().combine_chunks()
    offsets = pa.array([0, *batch.passage_ends], pa.int32())
    positives = pa.ListArray.from_arrays(offsets, passages, type=PASSAGES)
    negatives = pa.array([[]] * len(queries), PASSAGES)
    return _table(JOINED, queries["_id"], queries["text"], positives, negatives)


def _answer_table(batch: NewFile, work_folder: Path, options: SpanOptions) -> pa.Table:
    """Return the rows of the config ``answers`` for the queries of a batch."""
    query_ids = rows_at(batch.queries, work_folder, "questions", ["query_id"])["query_id"].to_pylist()
    # A question may have several raw rows, whose records are merged below.
    records = rows_at(batch.raw_rows, work_folder, "questions", ["record"])["record"].to_pylist()
    passages = rows_at(batch.passages, work_folder, "passages", ["docid", "text"])
    passage_ids = passages["docid"].to_pylist()
    passage_texts = passages["text"].to_pylist()
    rows = []
    first_passage = 0
    first_record = 0
    for query_id, passage_end, record_end in zip(query_ids, batch.passage_ends, batch.raw_row_ends, strict=True):
        judged_ids = passage_ids[first_passage:passage_end]
        judged_texts = passage_texts[first_passage:passage_end]
        record = merge_records(records[first_record:record_end])
        rows.append((query_id, record, dict(zip(judged_ids, judged_texts, strict=True))))
        first_passage = passage_end
        first_record = record_end
    return answers_table(rows, options)
