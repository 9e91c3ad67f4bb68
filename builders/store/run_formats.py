"""Detect the format of a run's file by its content, and read the formats that are not lines of columns.

Formats of a run:

- a TREC run, or MS MARCO's TSV (:mod:`.run_lines`);
- predictions, the official JSON: ``{query id: [passage ids, best first]}``;
- BEIR's results in JSON: ``{query id: {passage id: score}}``;
- mteb's predictions in JSON: ``{subset: {split: {query id: {passage id: score}}}}``, with the key ``mteb_model_meta``;
- JSON lines of ``export --format rag``: ``{"query_id": ..., "passages": [{"docid": ..., "score": ...}]}``;
- Parquet with a row per hit, and the columns of :data:`QUERY_COLUMNS`, :data:`PASSAGE_COLUMNS`, score and rank.

Hits are ordered by score. Equal scores keep the order of the ranks, or of the file.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from builders.core.errors import InputError, log, shown_value
from builders.core.read_files import (
    BOM,
    LONGEST_LINE,
    begins_as_parquet,
    convert_read_errors,
    expect_id,
    first_character,
    open_text,
    raw_lines,
    read_whole,
    rereadable_path,
)
from builders.core.typed import convert_to, count_keys, expect_unique_keys, json_of, unique_json_of
from builders.store.run_lines import (
    HITS_SCHEMA,
    TREC,
    LineFormat,
    find_repeated_rank,
    format_of_line,
    is_judgment,
    with_rank_scores,
)

_Hit = tuple[str, float]  # corpus id, score
# Names of the columns of Parquet files and data frames: ours, and those of ir-measures, PyTerrier and BEIR.
QUERY_COLUMNS = ("query_id", "qid", "query-id")
PASSAGE_COLUMNS = ("passage_id", "doc_id", "docno", "docid", "corpus-id")
_JSON_FORMS = "{query id: {passage id: score}} or {query id: [passage ids, best first]}"
_JSON_REMEDY = f"expected {_JSON_FORMS}"
_OTHER_FORMATS = f"MS MARCO's TSV (query-id, corpus-id, rank), Parquet, or JSON: {_JSON_FORMS}"
_MTEB_META = "mteb_model_meta"  # a key of mteb's files that is no subset
# Levels of objects above a score.
_RESULTS_DEPTH = 2  # query, passage
_MTEB_DEPTHS = (3, 4)  # split or subset, then the levels of results; or subset and split
_RAG_PASSAGES = b'"passages"'


class RunFormat(NamedTuple):
    """The format of a run's file. In a file of lines, ``lines`` has their columns. It is None for the other formats."""

    name: Literal["lines", "json", "rag", "parquet"]
    lines: LineFormat | None = None

    @property
    def is_trec(self) -> bool:
        return self.lines is TREC


class _RagPassage(msgspec.Struct):
    docid: str
    score: float


class _RagLine(msgspec.Struct):
    """The fields that are read from a line of ``export --format rag``."""

    query_id: str
    passages: list[_RagPassage]


def detect_run_format(run_path: Path) -> RunFormat:
    """Return the format of a run's file by its content. Raise :class:`InputError` if the file is no run."""
    if begins_as_parquet(run_path):
        return RunFormat("parquet")
    character = first_character(run_path)
    if character == "{":
        return RunFormat("rag" if _begins_with_rag_line(run_path) else "json")
    for line_number, line in raw_lines(run_path):
        if not line.strip():
            continue
        problem = _describe_other_line(line, character)
        if problem:
            raise InputError(problem, path=run_path, line=line_number)
        return RunFormat("lines", format_of_line(line))
    raise InputError("is empty", path=run_path)


def _describe_other_line(line: bytes, character: str) -> str:
    """Describe why the first line of a file is no hit; empty if the line is a hit.

    ``character`` is the first character of the file.
    """
    if character == "[":
        return f"is a JSON list; expected {TREC.expected} or {_OTHER_FORMATS}"
    if is_judgment(line.split()):
        return f"is a file of judgments; expected a run: {TREC.expected} or {_OTHER_FORMATS}"
    if format_of_line(line) is None:
        return f"expected {TREC.expected}, found {len(line.split())}; a run may also be {_OTHER_FORMATS}"
    return ""


def _begins_with_rag_line(run_path: Path) -> bool:
    """True if the first line is complete JSON with the fields of :class:`_RagLine`."""
    with open_text(run_path) as file:
        line = file.readline(LONGEST_LINE)
        while line and not line.strip():
            line = file.readline(LONGEST_LINE)
    if _RAG_PASSAGES not in line:
        return False
    try:
        value = json_of(line.removeprefix(BOM), dict[str, Any], run_path)
    except InputError:  # not complete in this line; the caller reports other faults
        return False
    return isinstance(value.get("passages"), list) and "query_id" in value


def read_json_run(run_path: Path) -> dict[str, Sequence[_Hit]]:
    """Read predictions, BEIR's results or mteb's predictions. Return the hits of each query, best first.

    Predictions have no scores and get 1, 1/2, 1/3 ... Raises :class:`InputError` with the line of a repeated key, or
    with the field of a wrong value.
    """
    content = read_whole(run_path)
    value = json_of(content, dict[str, Any], run_path, remedy=_JSON_REMEDY)
    expect_unique_keys(content, count_keys(value), run_path)
    value.pop(_MTEB_META, None)
    depth = _score_depth(value)
    if depth is None:
        predictions = convert_to(value, dict[str, list[str]], run_path, remedy=_JSON_REMEDY)
        return _score_by_rank(predictions, run_path)
    if depth in _MTEB_DEPTHS:
        parts = _mteb_parts(value, depth, run_path)
        return _sort_results(_merge_parts(parts, run_path), run_path)
    results = convert_to(value, dict[str, dict[str, float]], run_path, remedy=_JSON_REMEDY)
    return _sort_results(results, run_path)


def _score_depth(value: Mapping[str, Any]) -> int | None:
    """Return the number of objects above a score, or None for predictions, which have lists of passages.

    One score or list decides, because all have the same depth in a correct file. Empty objects are skipped, because a
    query of any format may have no hit. If all objects are empty, the depth is that of BEIR's results.
    """
    # Values to visit, with the number of objects above each.
    waiting: list[tuple[Any, int]] = [(value, 0)]
    while waiting:
        current, depth = waiting.pop()
        if isinstance(current, dict):
            waiting += [(inner, depth + 1) for inner in current.values()]
        elif isinstance(current, list) and depth == 1:
            return None
        else:
            return depth
    return _RESULTS_DEPTH


def _mteb_parts(value: Mapping[str, Any], depth: int, run_path: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Return the results of each split or subset by its name, for example ``default/dev``.

    ``depth`` is the result of :func:`_score_depth`.
    """
    if depth == _RESULTS_DEPTH + 1:  # splits or subsets, not both
        return convert_to(value, dict[str, dict[str, dict[str, float]]], run_path, remedy=_JSON_REMEDY)
    subsets = convert_to(value, dict[str, dict[str, dict[str, dict[str, float]]]], run_path, remedy=_JSON_REMEDY)
    parts = {}
    for subset, splits in subsets.items():
        for split, results in splits.items():
            parts[f"{subset}/{split}"] = results
    return parts


def _merge_parts(parts: Mapping[str, dict[str, dict[str, float]]], run_path: Path) -> dict[str, dict[str, float]]:
    """Return the results of all splits and subsets. Raise :class:`InputError` if a query is in two of them."""
    merged: dict[str, dict[str, float]] = {}
    part_of_query: dict[str, str] = {}
    for part_name, results in parts.items():
        for query_id, scores in results.items():
            if query_id in merged:
                problem = f"query {query_id!r} is in {part_of_query[query_id]} and in {part_name}"
                raise InputError(f"{problem}; expected a file of one split: remove the others", path=run_path)
            merged[query_id] = scores
            part_of_query[query_id] = part_name
    if len(parts) > 1:
        log.info("%s: has %s; all are read", run_path, ", ".join(parts))
    return merged


def _score_by_rank(predictions: Mapping[str, list[str]], run_path: Path) -> dict[str, Sequence[_Hit]]:
    """Return the hits of predictions (query id -> passage ids, best first), with the scores 1, 1/2, 1/3 ..."""
    hits_by_query: dict[str, Sequence[_Hit]] = {}
    for query_id, passage_ids in predictions.items():
        expect_id(query_id, run_path)
        for passage_id in passage_ids:
            expect_id(passage_id, run_path)
        hits_by_query[query_id] = [(passage_id, 1 / rank) for rank, passage_id in enumerate(passage_ids, start=1)]
    return hits_by_query


def _sort_results(results: Mapping[str, Mapping[str, float]], run_path: Path) -> dict[str, Sequence[_Hit]]:
    """Return hits by falling score. Equal scores keep the order of the file, as in a dictionary from Python."""
    hits_by_query: dict[str, Sequence[_Hit]] = {}
    for query_id, scores in results.items():
        expect_id(query_id, run_path)
        for passage_id in scores:
            expect_id(passage_id, run_path)
        hits_by_query[query_id] = sorted(scores.items(), key=lambda hit: -hit[1])
    return hits_by_query


def read_rag_run(run_path: Path) -> dict[str, Sequence[_Hit]]:
    """Read the JSON lines of ``export --format rag``. Return the hits of each query, best first."""
    results: dict[str, dict[str, float]] = {}
    for line_number, query_id, scores in _rag_rows(run_path):
        if query_id in results:
            raise InputError(f"query {query_id!r} occurs twice; expected it once", path=run_path, line=line_number)
        results[query_id] = scores
    return _sort_results(results, run_path)


def _rag_rows(run_path: Path) -> Iterator[tuple[int, str, dict[str, float]]]:
    """Yield (line number, query id, passage id -> score) of each line. Raise :class:`InputError` for a wrong line."""
    remedy = 'expected {"query_id": ..., "passages": [{"docid": ..., "score": ...}]}'
    for line_number, line in raw_lines(run_path):
        if not line.strip():
            continue
        row = unique_json_of(line, _RagLine, run_path, line_number, remedy)
        scores = {}
        for passage in row.passages:
            if passage.docid in scores:
                problem = f"passage {passage.docid!r} occurs twice; expected it once"
                raise InputError(problem, path=run_path, line=line_number)
            scores[passage.docid] = passage.score
        yield line_number, row.query_id, scores


def read_parquet_run(run_path: Path) -> pa.Table:
    """Read the hits of a Parquet file, with the columns of :data:`.run_lines.HITS_SCHEMA`.

    Ids may be texts or whole numbers. Without a column ``score``, hits get 1, 1/2, 1/3 ... by ``rank``. Without a
    column ``rank``, equal scores keep the order of the rows. Raises :class:`InputError` with the column or the row.
    """
    with (
        convert_read_errors(run_path, damaged="is a damaged Parquet file"),
        pq.ParquetFile(rereadable_path(run_path)) as file,
    ):
        columns = file.schema_arrow.names
        query_column = _first_present(QUERY_COLUMNS, columns)
        passage_column = _first_present(PASSAGE_COLUMNS, columns)
        if query_column is None or passage_column is None or not {"score", "rank"} & set(columns):
            raise InputError(
                f"is a Parquet file with the columns {', '.join(columns)}; expected a row per hit with the columns"
                f" {QUERY_COLUMNS[0]}, {PASSAGE_COLUMNS[0]}, and score or rank",
                path=run_path,
            )
        number_columns = [column for column in ("score", "rank") if column in columns]
        table = file.read([query_column, passage_column, *number_columns])
    query_ids = _id_column(table[query_column], query_column, run_path)
    passage_ids = _id_column(table[passage_column], passage_column, run_path)
    zeros = pa.nulls(table.num_rows, pa.int64()).fill_null(0)
    ranks = zeros  # equal ranks keep the order of the rows
    if "rank" in columns:
        ranks = _number_column(table["rank"], "rank", pa.int64(), run_path)
    if "score" in columns:
        scores = _number_column(table["score"], "score", pa.float64(), run_path)
        return pa.table([query_ids, passage_ids, scores, ranks], schema=HITS_SCHEMA)
    # The zeros are replaced by scores of the ranks below.
    hits = pa.table([query_ids, passage_ids, zeros.cast(pa.float64()), ranks], schema=HITS_SCHEMA)
    repeated_row = find_repeated_rank(hits)
    if repeated_row is not None:
        problem = f"query {hits['query'][repeated_row].as_py()!r} has the rank {ranks[repeated_row].as_py()} twice"
        raise InputError(f"row {repeated_row + 1}: {problem}; expected every rank once", path=run_path)
    return with_rank_scores(hits)


def _first_present(names: Sequence[str], columns: Sequence[str]) -> str | None:
    """Return the first of ``names`` that is a column; None if no name is a column."""
    return next((name for name in names if name in columns), None)


def _id_column(column: pa.ChunkedArray, name: str, run_path: Path) -> pa.ChunkedArray:
    """Return ids as texts. Raise :class:`InputError` for another type, a null, or a text that is no id."""
    # Categories of pandas are written as a dictionary of ids.
    value_type = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    id_type_tests = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_integer,
    )
    if not any(is_type(value_type) for is_type in id_type_tests):
        raise InputError(f"column {name}: expected texts or whole numbers, found {column.type}", path=run_path)
    _expect_no_null(column, name, run_path)
    with convert_read_errors(run_path, damaged=f"column {name}: expected UTF-8 text"):
        ids = column.cast(value_type).cast(pa.large_string())
        ids.validate(full=True)
    is_wrong = pc.or_(pc.equal(pc.binary_length(ids), 0), pc.match_substring(ids, "\0"))
    wrong_row = pc.index(is_wrong, True).as_py()
    if wrong_row >= 0:
        found_value = shown_value(ids[wrong_row].as_py())
        raise InputError(f"row {wrong_row + 1}, column {name}: expected an id, found {found_value}", path=run_path)
    return ids


def _number_column(column: pa.ChunkedArray, name: str, number_type: pa.DataType, run_path: Path) -> pa.ChunkedArray:
    """Return numbers as ``number_type``. Raise :class:`InputError` for another type, a null, NaN or infinity."""
    if not pa.types.is_integer(column.type) and not pa.types.is_floating(column.type):
        raise InputError(f"column {name}: expected numbers, found {column.type}", path=run_path)
    _expect_no_null(column, name, run_path)
    is_finite = pc.is_finite(column.cast(pa.float64(), safe=False))
    wrong_row = pc.index(is_finite, False).as_py()
    if wrong_row >= 0:
        found_value = column[wrong_row].as_py()
        problem = f"row {wrong_row + 1}, column {name}: expected a finite number, found {found_value}"
        raise InputError(problem, path=run_path)
    # Whole numbers beyond 53 bits may be rounded as scores, but not as ranks.
    with convert_read_errors(run_path, damaged=f"column {name}: expected numbers of type {number_type}"):
        return column.cast(number_type, safe=number_type != pa.float64())


def _expect_no_null(column: pa.ChunkedArray, name: str, run_path: Path) -> None:
    if column.null_count:
        null_row = pc.index(pc.is_null(column), True).as_py()
        raise InputError(f"row {null_row + 1}, column {name}: expected a value, found null", path=run_path)
