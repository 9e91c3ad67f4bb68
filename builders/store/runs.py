"""Runs: read files of every format (:mod:`.run_formats`), and write TREC run files.

A TREC run has one line per hit: ``query-id Q0 corpus-id rank score tag``. Ranks begin at 1, scores never increase, and
ties are broken by corpus id.
"""

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.errors import InputError, log
from builders.core.typed import convert_to, read_json
from builders.core.write_files import atomic_text
from builders.store.run_formats import detect_run_format, read_json_run, read_parquet_run, read_rag_run
from builders.store.run_lines import read_line_run
from builders.store.search_log import is_search_log

if TYPE_CHECKING:
    import pandas as pd

Array = npt.NDArray[Any]
Hit = tuple[str, float]  # corpus id, score


@dataclass(frozen=True)
class RunColumns:
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
        hits = list(zip(self.corpus_ids.to_pylist(), self.scores.tolist(), strict=True))
        return self._by_query(hits)

    def scores_by_query(self) -> dict[str, Array]:
        """Return the scores, best first, by query id."""
        return self._by_query(self.scores)

    def spans(self) -> dict[str, tuple[int, int]]:
        """Return the positions (begin, end) of each query's hits by query id."""
        ends = np.cumsum(self.counts).tolist()
        return dict(zip(self.queries, pairwise([0, *ends]), strict=True))

    def _by_query(self, values: Any) -> dict[str, Any]:
        return {query_id: values[begin:end] for query_id, (begin, end) in self.spans().items()}


class LazyHits(Mapping[str, Sequence[Hit]]):
    """The (corpus id, score) pairs of each query, best first, which are made from columns at each access."""

    def __init__(self, columns: RunColumns) -> None:
        self._columns = columns
        self._spans = columns.spans()

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

    def __init__(self, path: str | Path, hits: Mapping[str, Sequence[Hit]] | RunColumns | None = None) -> None:
        self.path = Path(path)
        self._initial_hits = hits

    @classmethod
    def in_memory(
        cls, run_name: str, hits_by_query: Mapping[str, Sequence[Hit]], manifest: dict[str, Any] | None = None
    ) -> "Run":
        """Return a run without a file. ``hits_by_query`` has (corpus id, score) pairs, best first, by query id.

        Queries without hits are dropped, because a TREC file has no line for them. Hits that are not in the order of
        their scores are sorted, with a warning, as :func:`read_run` does.
        """
        run = Run(run_name, sort_contradictions(run_name, without_empty(hits_by_query)))
        run.is_in_memory = True
        run.manifest = manifest
        return run

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @functools.cached_property
    def _columns(self) -> RunColumns:
        """The hits as columns. A run without ``hits`` reads its file."""
        if self._initial_hits is None:
            return read_run(self.path)._columns
        if isinstance(self._initial_hits, RunColumns):
            return self._initial_hits
        return columns_of(list(self._initial_hits.items()))

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
        if isinstance(self._initial_hits, Mapping):
            return self._initial_hits
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


class _RerankManifest(msgspec.Struct):
    """The manifest of a re-ranker's run. ``top_k`` is the number of scored passages per query (None: all passages)."""

    top_k: int | None = None


def scored_depth(run: Run) -> int | None:
    """Return the number of passages per query that a re-ranker scored, from the run's manifest.

    None means all passages. A run without a manifest counts as completely scored.
    """
    if run.is_in_memory:
        if not run.manifest:
            return None
        return convert_to(run.manifest, _RerankManifest, run.path, field="manifest").top_k
    manifest_path = run.path.with_name(f"{run.path.name}.manifest.json")
    if not manifest_path.is_file():
        return None
    return read_json(manifest_path, _RerankManifest).top_k


def sort_contradictions(run_name: Path | str, hits_by_query: Mapping[str, Sequence[Hit]]) -> dict[str, Sequence[Hit]]:
    """Return hits in the order of their scores. Equal scores keep their order. Warn about queries in another order."""
    sorted_hits: dict[str, Sequence[Hit]] = {}
    contradicted_ids = []
    for query_id, ranking in hits_by_query.items():
        sorted_hits[query_id] = ranking
        # Hits in the right order are not sorted again, because large runs have millions.
        scores_rise = any(next_hit[1] > hit[1] for hit, next_hit in pairwise(ranking))
        if scores_rise:
            contradicted_ids.append(query_id)
            sorted_hits[query_id] = sorted(ranking, key=lambda hit: -hit[1])
    if contradicted_ids:
        _warn_of_order(run_name, contradicted_ids, len(sorted_hits))
    return sorted_hits


def without_empty(hits_by_query: Mapping[str, Sequence[Hit]]) -> dict[str, Sequence[Hit]]:
    """Return the hits of the queries that have hits."""
    return {query_id: ranking for query_id, ranking in hits_by_query.items() if ranking}


def sigmoid(logit: float) -> float:
    """Return the sigmoid of a logit: the probability that a cross-encoder predicts."""
    # exp() of a large number would overflow, so each sign has its own form of the same function.
    if logit >= 0:
        return 1 / (1 + math.exp(-logit))
    return math.exp(logit) / (1 + math.exp(logit))


def best_first(hits: Iterable[Hit]) -> list[Hit]:
    """Sort hits by falling score, then by corpus id."""
    return sorted(hits, key=lambda hit: (-hit[1], hit[0]))


def columns_of(rankings: Sequence[tuple[str, Sequence[Hit]]]) -> RunColumns:
    """Convert (query id, hits best first) pairs to columns."""
    query_ids = []
    # Plain lists become arrays at the end, because arrays cannot grow.
    hit_counts = []
    passage_ids: list[str] = []
    scores: list[float] = []
    for query_id, ranking in rankings:
        query_ids.append(query_id)
        hit_counts.append(len(ranking))
        passage_ids += [passage_id for passage_id, _ in ranking]
        scores += [score for _, score in ranking]
    return RunColumns(
        queries=query_ids,
        counts=np.array(hit_counts, np.int64),
        corpus_ids=pa.array(passage_ids, pa.large_string()),
        scores=np.array(scores, np.float64),
    )


def write_columns(run_path: Path, parts: Iterable[RunColumns], tag: str = "dureader_retrieval") -> int:
    """Write a TREC run from columns, as :func:`write_run` does. Return the number of lines.

    Each part has other queries, with all of their hits.
    """
    rankings = chain.from_iterable(_sort_columns(part) for part in parts)
    return write_ranked_hits(run_path, rankings, tag)


def _sort_columns(columns: RunColumns) -> Iterable[tuple[str, Sequence[Hit]]]:
    """Return (query id, hits) pairs. The hits are sorted by falling score, then by corpus id.

    Hits that are in this order already are not sorted again.
    """
    rankings = columns.hits().items()
    if _are_best_first(columns):
        return rankings
    return _sort_rankings(rankings)


def _are_best_first(columns: RunColumns) -> bool:
    """True if each query's hits are ordered by falling score, then by corpus id."""
    query_numbers = np.repeat(np.arange(len(columns.queries)), columns.counts)
    is_same_query = query_numbers[1:] == query_numbers[:-1]
    previous_scores, next_scores = columns.scores[:-1], columns.scores[1:]
    # NaN is in no order, because all its comparisons are false.
    if not np.all(next_scores[is_same_query] <= previous_scores[is_same_query]):
        return False
    # Among equal scores, the ids ascend. Arrow compares ids by bytes, which is the order of characters in UTF-8.
    # Without equal scores, nothing is compared, and min_count=0 lets all() of nothing be true.
    tied_rows = np.flatnonzero(is_same_query & (next_scores == previous_scores))
    first_ids = columns.corpus_ids.take(pa.array(tied_rows))
    next_ids = columns.corpus_ids.take(pa.array(tied_rows + 1))
    return bool(pc.all(pc.less(first_ids, next_ids), min_count=0).as_py())


def write_run(run_path: Path, rankings: Iterable[tuple[str, Iterable[Hit]]], tag: str = "dureader_retrieval") -> int:
    """Write a TREC run from (query id, hits in any order) pairs. Return the number of lines.

    Hits are sorted by falling score, then by corpus id. Scores are printed with all digits, so that different scores
    stay different in the file. The file appears only when all lines are written.
    """
    return write_ranked_hits(run_path, _sort_rankings(rankings), tag)


def _sort_rankings(rankings: Iterable[tuple[str, Iterable[Hit]]]) -> Iterator[tuple[str, list[Hit]]]:
    for query_id, hits in rankings:
        yield query_id, best_first((passage_id, float(score)) for passage_id, score in hits)


def write_ranked_hits(
    run_path: Path, rankings: Iterable[tuple[str, Sequence[Hit]]], tag: str = "dureader_retrieval"
) -> int:
    """Write a TREC run as :func:`write_run` does, but keep the order of the hits, which must be best first."""
    line_count = 0
    with atomic_text(run_path) as file:
        for query_id, hits in rankings:
            ids = [query_id]
            ids += [passage_id for passage_id, _ in hits]
            are_words = " ".join(ids).split() == ids  # false if an id is empty or has a blank
            if not are_words or not all(math.isfinite(score) for _, score in hits):
                raise InputError(
                    f"cannot hold the hits of query {query_id!r}: a TREC run needs finite scores, and ids without "
                    "blanks",
                    path=run_path,
                )
            lines = []
            for rank, (passage_id, score) in enumerate(hits, start=1):
                lines.append(f"{query_id} Q0 {passage_id} {rank} {score!r} {tag}\n")
            file.write("".join(lines))
            line_count += len(hits)
    return line_count


def expect_run_file(run: Run) -> Path:
    """Return the run's file. Raises :class:`InputError` for a run in memory, because a caller records the checksum."""
    if run.is_in_memory:
        raise InputError("is not in a file; write the run first, because its checksum is recorded", path=run.path)
    return run.path


def read_run(run_or_path: Path | Run) -> Run:
    """Read a run's file in any format of :mod:`.run_formats`, whatever its name. A :class:`Run` is returned as it is.

    The hits of a query are ordered by score. Equal scores are ordered by the rank, or by their order in the file. A
    warning counts the queries whose ranks contradict the scores. Hits without scores are ordered by rank, and get
    1, 1/2, 1/3 ... Raises :class:`InputError` with file and line.
    """
    if isinstance(run_or_path, Run):
        return run_or_path
    run_path = run_or_path
    run_format = detect_run_format(run_path)
    if run_format.name == "json":
        if is_search_log(run_path):
            problem = "is a log of searches; expected a run (`python -m baselines evaluate --release DIR` reads a log)"
            raise InputError(problem, path=run_path)
        return Run(run_path, read_json_run(run_path))
    if run_format.name == "rag":
        return Run(run_path, read_rag_run(run_path))
    if run_format.name == "parquet":
        return Run(run_path, _sort_hits(read_parquet_run(run_path), run_path))
    assert run_format.lines is not None
    hits = read_line_run(run_path, run_format.lines)
    return Run(run_path, _sort_hits(hits, run_path))


def _sort_hits(table: pa.Table, run_path: Path) -> RunColumns:
    """Sort the hits of a run, a table with the columns of :data:`.run_lines.HITS_SCHEMA`.

    Queries are in the order of their first lines. Hits are ordered by falling score, then by rank, then by line.
    A warning counts the queries whose ranks contradict the scores.
    """
    # The dictionary numbers the queries in the order of their first lines.
    queries = table["query"].combine_chunks().dictionary_encode()
    query_ids = queries.dictionary.to_pylist()
    query_numbers = queries.indices.to_numpy(zero_copy_only=False)
    passage_ids = table["corpus"].combine_chunks()
    scores = table["score"].to_numpy()
    ranks = table["rank"].to_numpy()
    order = np.lexsort((ranks, -scores, query_numbers))  # the last key is the first in importance
    warn_of_contradictions(run_path, query_ids, query_numbers[order], ranks[order])
    hit_counts = np.bincount(query_numbers, minlength=len(query_ids))
    return RunColumns(query_ids, hit_counts, passage_ids.take(pa.array(order)), scores[order])


def warn_of_contradictions(run_name: Path | str, query_ids: Sequence[str], query_numbers: Array, ranks: Array) -> None:
    """Warn about queries whose ranks contradict their scores, for example because the scores are distances.

    Args:
        run_name: the run's name in the warning.
        query_ids: the ids of the queries.
        query_numbers: the position of each hit's query in ``query_ids``. The hits are sorted by query, then by falling
            score, then by rank.
        ranks: the rank of each hit, in the same order.
    """
    # Equal scores are sorted by rank, so the rank falls only from a hit to a hit with a lower score.
    is_same_query = query_numbers[1:] == query_numbers[:-1]
    rank_falls = ranks[1:] < ranks[:-1]
    contradicted = np.unique(query_numbers[1:][is_same_query & rank_falls])
    if len(contradicted):
        _warn_of_order(run_name, [query_ids[number] for number in contradicted], len(query_ids))


def _warn_of_order(run_name: Path | str, contradicted_ids: Sequence[str], query_count: int) -> None:
    """Warn about the queries ``contradicted_ids`` of a run that has ``query_count`` queries."""
    log.warning(
        "%s: the ranks of %d of %d queries contradict their scores, for example of query %r; the hits are ordered by "
        "score, the highest first; if the lowest score is the best, change the signs of the scores",
        run_name,
        len(contradicted_ids),
        query_count,
        contradicted_ids[0],
    )
