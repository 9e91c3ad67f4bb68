"""Read and write TREC run files, and read the official JSON of predictions.

A TREC run has one line per hit: ``query-id Q0 corpus-id rank score tag``. Ranks begin at 1, scores never increase, and
ties are broken by corpus id. A file may be gzipped, whatever its name. The official predictions are one JSON
object, ``{query id: [passage ids, best first]}``.
"""

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from builders.core.errors import InputError, log
from builders.core.files import (
    BOM,
    LONGEST_LINE,
    atomic_text,
    expect_id,
    first_character,
    id_of,
    integer,
    line_too_long,
    open_text,
    read_whole,
    shown,
)
from builders.core.typed import object_of_lists

if TYPE_CHECKING:
    import pandas as pd

Array = npt.NDArray[Any]
Hit = tuple[str, float]  # corpus id, score
_BLOCK = 32 << 20  # bytes parsed at a time
_UNUSUAL = (BOM, b"\t", b"\r", b"\v", b"\f", b"\0")  # Arrow's CSV reader treats these bytes differently from _by_line
_TEXT = {name: pa.large_string() for name in ("query", "corpus", "rank")} | {"q0": pa.large_binary()}
_TYPES = pa.schema({**_TEXT, "tag": pa.large_binary(), "score": pa.float64()})
_NAMES = ["query", "q0", "corpus", "rank", "score", "tag"]
_TABLE = pa.schema({"query": pa.large_string(), "corpus": pa.large_string(), "score": pa.float64(), "rank": pa.int64()})


@dataclass(frozen=True)
class Columns:
    """Hits as columns, ordered by query.

    Attributes:
        queries: the ids of the queries, without repetition.
        counts: the number of hits of each query.
        corpus_ids: Arrow strings. The hits of each query are adjacent, best first, in the order of ``queries``.
        scores: a 64-bit float for each hit, in the order of ``corpus_ids``.
    """

    queries: Sequence[str]
    counts: Array
    corpus_ids: pa.Array
    scores: Array

    def rankings(self) -> dict[str, list[str]]:
        """Return corpus ids, best first, by query id."""
        return self._by_query(self.corpus_ids.to_pylist())

    def hits(self) -> dict[str, list[Hit]]:
        """Return (corpus id, score) pairs, best first, by query id."""
        return self._by_query(list(zip(self.corpus_ids.to_pylist(), self.scores.tolist(), strict=True)))

    def scores_by_query(self) -> dict[str, Array]:
        """Return the scores, best first, by query id."""
        return self._by_query(self.scores)

    def _by_query(self, values: Any) -> dict[str, Any]:
        limits = pairwise([0, *np.cumsum(self.counts).tolist()])
        return {query: values[begin:end] for query, (begin, end) in zip(self.queries, limits, strict=True)}


class LazyHits(Mapping[str, Sequence[Hit]]):
    """The (corpus id, score) pairs of each query, best first, which are made from columns at each access."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        ends = np.cumsum(columns.counts).tolist()
        self._spans = dict(zip(columns.queries, pairwise([0, *ends]), strict=True))

    def __getitem__(self, query_id: str) -> list[Hit]:
        begin, end = self._spans[query_id]
        passage_ids = self._columns.corpus_ids[begin:end].to_pylist()
        return list(zip(passage_ids, self._columns.scores[begin:end].tolist(), strict=True))

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def __contains__(self, query_id: object) -> bool:
        return query_id in self._spans


class Run:
    """The passages retrieved for each query. ``hits`` and ``rankings`` are computed on first use.

    Without ``hits``, the file at ``path`` is read on first use: a verb returns the run that it wrote in this form.
    :meth:`in_memory` makes a run that has no file.

    Attributes:
        path: the run's file. The path of a run in memory is only its name, for messages and tables.
        is_in_memory: True if the run has no file.
        manifest: the manifest of a run in memory. The manifest of a file lies beside the file.
    """

    is_in_memory = False
    manifest: dict[str, Any] | None = None

    def __init__(self, path: str | Path, hits: Mapping[str, Sequence[Hit]] | Columns | None = None) -> None:
        self.path = Path(path)
        self._given = hits

    @classmethod
    def in_memory(cls, name: str, hits: Mapping[str, Sequence[Hit]], manifest: dict[str, Any] | None = None) -> "Run":
        """Return a run without a file. ``hits`` has (corpus id, score) pairs, best first, by query id.

        Queries without hits are dropped, because a TREC file has no line for them. Hits that are not in the order of
        their scores are sorted, with a warning, as :func:`read_run` does.
        """
        run = Run(name, _sort_contradictions(name, without_empty(hits)))
        run.is_in_memory = True
        run.manifest = manifest
        return run

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @functools.cached_property
    def _columns(self) -> Columns:
        if self._given is None:
            return read_run(self.path)._columns
        return self._given if isinstance(self._given, Columns) else columns_of([*self._given.items()])

    @functools.cached_property
    def hits(self) -> dict[str, list[Hit]]:
        """(corpus id, score) pairs, best first, by query id. A passage may occur twice."""
        return self._columns.hits()

    @functools.cached_property
    def rankings(self) -> dict[str, list[str]]:
        """Corpus ids, best first, by query id."""
        return self._columns.rankings()

    @functools.cached_property
    def lazy_hits(self) -> Mapping[str, Sequence[Hit]]:
        """The same as ``hits``, but the hits of a query are made at each access. A large run needs half the memory."""
        if self._given is not None and not isinstance(self._given, Columns):
            return self._given
        return LazyHits(self._columns)

    @functools.cached_property
    def scores(self) -> dict[str, Array]:
        """64-bit scores of the hits, best first, by query id. The scores need less memory than ``hits``."""
        return self._columns.scores_by_query()

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Return query id -> corpus id -> score, best first. A repeated passage has its first score."""
        scores_by_query = {}
        for query_id, hits in self.hits.items():
            scores: dict[str, float] = {}
            for passage_id, score in hits:
                scores.setdefault(passage_id, score)
            scores_by_query[query_id] = scores
        return scores_by_query

    def to_pandas(self) -> "pd.DataFrame":
        """Return a data frame with a row per hit: query_id, passage_id, rank (from 1) and score."""
        import pandas as pd

        rows: list[tuple[str, str, int, float]] = []
        for query_id, hits in self.hits.items():
            for rank, (passage_id, score) in enumerate(hits, start=1):
                rows.append((query_id, passage_id, rank, score))
        return pd.DataFrame(rows, columns=["query_id", "passage_id", "rank", "score"])


def _sort_contradictions(name: str, hits: Mapping[str, Sequence[Hit]]) -> dict[str, Sequence[Hit]]:
    """Return hits in the order of their scores. Equal scores keep their order. Warn about queries in another order."""
    sorted_hits: dict[str, Sequence[Hit]] = {}
    contradicted = []
    for query_id, ranking in hits.items():
        sorted_hits[query_id] = ranking
        if any(lower[1] > upper[1] for upper, lower in pairwise(ranking)):
            contradicted.append(query_id)
            sorted_hits[query_id] = sorted(ranking, key=lambda hit: -hit[1])
    if contradicted:
        _warn_of_order(name, contradicted, len(sorted_hits))
    return sorted_hits


def without_empty(hits: Mapping[str, Sequence[Hit]]) -> dict[str, Sequence[Hit]]:
    """Return the hits of the queries that have hits."""
    return {query_id: ranking for query_id, ranking in hits.items() if ranking}


def probability(logit: float) -> float:
    """Return the sigmoid of a logit: the probability that a cross-encoder predicts."""
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))


def best_first(hits: Iterable[Hit]) -> list[Hit]:
    """Sort hits by falling score, then by corpus id."""
    return sorted(hits, key=lambda hit: (-hit[1], hit[0]))


def columns_of(hits: Sequence[tuple[str, Sequence[Hit]]]) -> Columns:
    """Convert (query id, hits in order) pairs to columns."""
    every = [hit for _, ranking in hits for hit in ranking]
    return Columns(
        [query for query, _ in hits],
        np.array([len(ranking) for _, ranking in hits], np.int64),
        pa.array([corpus for corpus, _ in every], pa.large_string()),
        np.array([score for _, score in every], np.float64),
    )


def write_columns(path: Path, parts: Iterable[Columns], tag: str = "dureader_retrieval") -> int:
    """Write a TREC run from columns, as :func:`write_run` does. Return the number of lines."""
    return write_run(path, (pair for part in parts for pair in part.hits().items()), tag)


def write_run(path: Path, rankings: Iterable[tuple[str, Iterable[Hit]]], tag: str = "dureader_retrieval") -> int:
    """Write a TREC run from (query id, hits in any order) pairs. Return the number of lines.

    Hits are sorted by falling score, then by corpus id. Scores are printed with all digits, so that different scores
    stay different in the file. The file appears only when all lines are written.
    """
    sorted_rankings = (
        (query_id, best_first((passage_id, float(score)) for passage_id, score in hits)) for query_id, hits in rankings
    )
    return write_ranked_hits(path, sorted_rankings, tag)


def write_ranked_hits(
    path: Path, rankings: Iterable[tuple[str, Sequence[Hit]]], tag: str = "dureader_retrieval"
) -> int:
    """Write a TREC run as :func:`write_run` does, but keep the order of the hits, which must be best first."""
    line_count = 0
    with atomic_text(path) as file:
        for query_id, hits in rankings:
            ids = [query_id, *(passage_id for passage_id, _ in hits)]
            if " ".join(ids).split() != ids or not all(math.isfinite(score) for _, score in hits):
                raise InputError(
                    f"cannot hold the hits of query {query_id!r}: a TREC run needs finite scores, and ids without "
                    "blanks",
                    path=path,
                )
            for rank, (passage_id, score) in enumerate(hits, start=1):
                file.write(f"{query_id} Q0 {passage_id} {rank} {score!r} {tag}\n")
            line_count += len(hits)
    return line_count


def expect_run_file(run: Run) -> Path:
    """Return the run's file. Raises :class:`InputError` for a run in memory, because a caller records the checksum."""
    if run.is_in_memory:
        raise InputError("is not in a file; write the run first, because its checksum is recorded", path=run.path)
    return run.path


def read_run(path: Path | Run) -> Run:
    """Read a TREC run or the official JSON of predictions. A :class:`Run` is returned as it is.

    JSON begins with ``{``, perhaps after blanks. A query that occurs twice in JSON is an error.

    The hits of a TREC run are ordered by score, then by the rank column. A warning counts the queries whose ranks
    contradict the scores. Predictions have no scores and get 1/rank. Raises :class:`InputError` with file and line.
    """
    if isinstance(path, Run):
        return path
    if first_character(path) == "{":
        remedy = "expected {query id: [passage ids, best first]}"
        predictions = object_of_lists(read_whole(path), dict[str, list[str]], path, remedy)
        for query, passages in predictions.items():
            for identifier in (query, *passages):
                expect_id(identifier, path)
        return Run(path, {q: [(p, 1 / rank) for rank, p in enumerate(ids, 1)] for q, ids in predictions.items()})
    return Run(path, _ordered(_table(path), path))


def _ordered(table: pa.Table, path: Path) -> Columns:
    """Sort the hits of the run ``path``.

    Queries are in the order of their first lines. Hits are ordered by falling score, then by rank, then by line.
    """
    queries = table["query"].combine_chunks().dictionary_encode()
    numbers = queries.indices.to_numpy(zero_copy_only=False)
    scores, corpus = table["score"].to_numpy(), table["corpus"].combine_chunks()
    ranks = table["rank"].to_numpy()
    order = np.lexsort((ranks, -scores, numbers))
    query_ids = queries.dictionary.to_pylist()
    warn_of_contradictions(path, query_ids, numbers[order], ranks[order])
    counts = np.bincount(numbers, minlength=len(query_ids))
    return Columns(query_ids, counts, corpus.take(pa.array(order)), scores[order])


def warn_of_contradictions(name: Path | str, query_ids: Sequence[str], query_numbers: Array, ranks: Array) -> None:
    """Warn about queries whose ranks contradict their scores, for example because the scores are distances.

    Args:
        name: the run's name in the warning.
        query_ids: the ids of the queries.
        query_numbers: the position of each hit's query in ``query_ids``. The hits are sorted by query, then by falling
            score, then by rank.
        ranks: the rank of each hit, in the same order.
    """
    # Equal scores are sorted by rank, so the rank falls only from a hit to a hit with a lower score.
    falls = (query_numbers[1:] == query_numbers[:-1]) & (ranks[1:] < ranks[:-1])
    contradicted = np.unique(query_numbers[1:][falls])
    if len(contradicted):
        _warn_of_order(name, [query_ids[number] for number in contradicted], len(query_ids))


def _warn_of_order(name: Path | str, contradicted: Sequence[str], query_count: int) -> None:
    log.warning(
        "%s: the ranks of %d of %d queries contradict their scores, for example of query %r; the hits are ordered by "
        "score, the highest first; if the lowest score is the best, change the signs of the scores",
        *(name, len(contradicted), query_count, contradicted[0]),
    )


def _table(path: Path) -> pa.Table:
    """Read the columns of a TREC run. Arrow parses the blocks. A block in an unusual format is parsed line by line."""
    tables, number = [], 1
    for block in _blocks(path):
        if len(block) > LONGEST_LINE and b"\n" not in block[:-1]:
            raise line_too_long(path, number)
        tables.append(_parsed(block) or _by_line(block, path, number))
        number += block.count(b"\n")
    return pa.concat_tables(tables)


def _blocks(path: Path) -> Iterator[bytes]:
    rest = b""
    with open_text(path) as file:
        while read := file.read(_BLOCK):
            whole, end, rest = (rest + read).rpartition(b"\n")
            if whole:
                yield whole + end
            if len(rest) > LONGEST_LINE:
                break  # the caller refuses the line
    if rest:
        yield rest


def _parsed(block: bytes) -> pa.Table | None:
    """Parse a block in the format of :func:`write_run`: six columns and single spaces. None for another format."""
    if any(text in block for text in _UNUSUAL):
        return None
    options = pyarrow.csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=_NAMES)
    parsing = pyarrow.csv.ParseOptions(delimiter=" ", quote_char=False, double_quote=False)
    converting = pyarrow.csv.ConvertOptions(column_types=_TYPES, null_values=[], strings_can_be_null=False)
    try:
        table = pyarrow.csv.read_csv(pa.py_buffer(block), options, parsing, converting)
    except pa.ArrowInvalid:
        return None
    if any(pc.min(pc.binary_length(table[name])).as_py() == 0 for name in _NAMES if name != "score"):
        return None
    # Arrow would parse 0x10 as a number.
    whole = pc.all(pc.match_substring_regex(table["rank"], "^[0-9]{1,18}$")).as_py()
    if not (whole and pc.all(pc.is_finite(table["score"])).as_py()):
        return None
    return table.select(["query", "corpus", "score"]).append_column("rank", table["rank"].cast(pa.int64()))


def _by_line(block: bytes, path: Path, first: int) -> pa.Table:
    """Parse a block line by line into the columns of :func:`_parsed`. ``first`` is the block's first line number.

    Raises :class:`InputError` for the first invalid line.
    """
    rows = []
    for number, line in enumerate(block.split(b"\n"), first):
        # Joined files may have a byte order mark in any line. Bytes are split only at ASCII white space, because ids
        # may contain Unicode blanks.
        fields = line.removeprefix(BOM).split()
        if not fields:
            continue
        if len(fields) != 6:
            expected = "6 columns (query-id Q0 corpus-id rank score tag)"
            problem = f"expected {expected}, found {len(fields)}"
            if fields[0].startswith(b"["):
                problem = f"is a JSON list; expected {expected} or {{query id: [passage ids, best first]}}"
            raise InputError(problem, path=path, line=number)
        query, corpus = id_of(fields[0], path, number), id_of(fields[2], path, number)
        rows.append((query, corpus, _finite(fields[4], path, number), integer(fields[3], "rank", path, number)))
    return pa.table([[row[n] for row in rows] for n in range(len(_TABLE))], schema=_TABLE)


def _finite(field: bytes, path: Path, line: int) -> float:
    with contextlib.suppress(ValueError):
        if math.isfinite(score := float(field)):
            return score
    raise InputError(f"expected a finite number as the score, found {shown(field)}", path=path, line=line)
