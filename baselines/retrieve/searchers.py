"""Search a release by a user's own engine, check its hits, and measure the time of every query.

An engine is an object with ``search(queries, top_k)`` (:class:`.model_protocols.Searcher`). The calls that make the run
also measure its latency. Each call has one query, in the caller's thread. Before these calls, the first
query is searched once without being measured. The engine stays in one thread, because some clients work only in the
thread that opened them.
"""

import contextlib
import inspect
import math
import numbers
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from baselines.core.latency import MANIFEST_KEY, Latency
from baselines.core.model_protocols import SearchFunction
from baselines.core.passages import CachedPassages
from baselines.core.run_manifest import describe_run, describe_search, tag_of, write_manifest
from baselines.retrieve.own_models import name_of
from baselines.retrieve.own_search import SearchedTexts
from builders.core.errors import InputError, UsageError, log, shown_value
from builders.core.exit_codes import raise_if_stopped
from builders.core.paths import check_file
from builders.core.progress import show_progress
from builders.store.runs import Hit, Run, write_ranked_hits

_HITS_EXPECTED = "a list of (passage id, score)"
MEASURED = "each query alone, in one thread, after one search of the first query"
SLOW_SECONDS = 30.0  # a query that takes longer is named in a warning
_LONGEST_STEP = 1.0  # seconds between two looks at the query that is searched
Query = tuple[str, str]  # id, text


class FunctionSearcher:
    """A searcher that calls a function for each query."""

    def __init__(self, function: SearchFunction) -> None:
        self._function = function
        self.__name__ = name_of(function)

    def search(self, queries: list[str], top_k: int) -> list[Sequence[tuple[str, float]]]:
        return [self._function(query, top_k) for query in queries]


def make_searcher(function: SearchFunction) -> FunctionSearcher:
    """Return a searcher that calls a function of one query: ``function(query, top_k)`` -> [(passage id, score), ...].

    Raises:
        InputError: the argument is no function.
    """
    if not callable(function) or inspect.isclass(function):
        raise UsageError(f"make_searcher: expected a function of (query, top_k), found {shown_value(function)}")
    return FunctionSearcher(function)


@dataclass(frozen=True)
class SearcherRun:
    """The hits of a search engine, and the times of its queries.

    Attributes:
        run: the run. Equal scores keep the engine's order.
        hits: the hits of every query, also of queries without hits.
        latency: the times of single queries. None if several queries were searched per call.
    """

    run: Run
    hits: dict[str, list[Hit]]
    latency: Latency | None


def search_by_searcher(
    searcher: Any, texts: SearchedTexts, *, top_k: int, batch_size: int = 1, out: Path | None = None
) -> SearcherRun:
    """Search by the queries of ``texts``. Write the run and its manifest, unless ``out`` is None.

    ``batch_size`` is the number of queries per call. The latency is measured if each call has one query. Raises
    :class:`InputError` that names the query for wrong hits, and for a search that fails.
    """
    if out is not None:
        check_file(out)
    queries = texts.queries()
    if not queries:
        raise InputError(f"the split {texts.split!r} has no queries", path=texts.release.path)
    engine = _CheckedEngine(searcher, texts.passages(), top_k)
    hits_by_query, seconds = _search_all(engine, queries, batch_size)
    if not any(hits_by_query.values()):
        raise InputError(f"{engine.name}: expected hits, found none for all {len(queries)} queries")
    latency = Latency.of_seconds(seconds) if batch_size == 1 else None

    # The times are no part of the record, so that two equal runs have the same tag.
    search = describe_search(
        texts.release,
        kind="searcher",
        set_name=texts.set_name,
        split=texts.split,
        top_k=top_k,
        own_queries=texts.own_queries,
    )
    run_record = describe_run({"name": engine.name, "commit": None}, search, packages=())
    tag = tag_of(run_record)
    manifest = dict(run_record)
    if latency is not None:
        manifest[MANIFEST_KEY] = {**latency.to_json(), "measured": MEASURED}
        log.info("%s: latency of a query: %s", engine.name, latency.to_text())
    run = Run.in_memory(engine.name, hits_by_query, manifest)
    if out is not None:
        line_count = write_ranked_hits(out, hits_by_query.items(), tag)
        write_manifest(out, manifest, tag, len(queries), line_count)
        log.info("%s: %d lines for %d queries", out, line_count, len(queries))
    return SearcherRun(run, hits_by_query, latency)


def _search_all(
    engine: "_CheckedEngine", queries: Sequence[Query], batch_size: int
) -> tuple[dict[str, list[Hit]], list[float]]:
    """Return the hits by query id, and the seconds of each call, without the first search of a single query."""
    hits_by_query: dict[str, list[Hit]] = {}
    seconds = []
    with _SlowQueryWatch(engine.name) as watch, show_progress(total=len(queries), unit="query", label="search") as bar:
        if batch_size == 1:
            # The first search often opens connections or loads models. Its time does not count.
            with watch.follow(queries[0]):
                engine.search(queries[:1])
        for start in range(0, len(queries), batch_size):
            raise_if_stopped()
            batch = queries[start : start + batch_size]
            with watch.follow(batch[0]):
                hits, call_seconds = engine.search(batch)
            hits_by_query |= hits
            seconds.append(call_seconds)
            bar.update(len(batch))
    return hits_by_query, seconds


class _CheckedEngine:
    """A user's engine whose hits are checked."""

    def __init__(self, searcher: Any, passages: CachedPassages, top_k: int) -> None:
        self.name = name_of(searcher)
        self._searcher = searcher
        self._passages = passages
        self._top_k = top_k

    def search(self, queries: Sequence[Query]) -> tuple[dict[str, list[Hit]], float]:
        """Search by queries in one call. Return the checked hits by query id, and the seconds of the call."""
        query_texts = [query_text for _, query_text in queries]
        start_time = time.perf_counter()
        try:
            results = self._searcher.search(query_texts, self._top_k)
        except Exception as error:  # the engine is any code
            problem = f"the search failed with {type(error).__name__}: {error}"
            raise self._error(queries[0], problem, len(queries)) from error
        seconds = time.perf_counter() - start_time
        self._expect_list(queries[0], results, "a list with the hits of each query")
        if len(results) != len(queries):
            # The first query without a list, or the first query of the call.
            query = queries[len(results)] if len(results) < len(queries) else queries[0]
            raise self._error(query, f"expected {len(queries)} lists of hits, one per query, found {len(results)}")
        hits_by_query = {}
        for query, hits in zip(queries, results, strict=True):
            hits_by_query[query[0]] = self._check_hits(query, hits)
        return hits_by_query, seconds

    def _expect_list(self, query: Query, value: Any, expected: str) -> None:
        """Raise :class:`InputError` unless ``value`` is a list or tuple. ``expected`` describes it in the error."""
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                # Otherwise Python warns that the coroutine was never awaited.
                value.close()
            raise self._error(query, f"expected {expected}, found a coroutine; pass a search that is not async")
        if not isinstance(value, list | tuple):
            raise self._error(query, f"expected {expected}, found {_describe(value)}")

    def _check_hits(self, query: Query, hits: Any) -> list[Hit]:
        """Return a query's hits as (passage id, score) pairs, in the engine's order.

        Raises :class:`InputError` for more than ``top_k`` hits, a wrong, repeated or unknown passage, or rising scores.
        """
        self._expect_list(query, hits, _HITS_EXPECTED)
        if len(hits) > self._top_k:
            raise self._error(query, f"expected at most {self._top_k} hits (top_k), found {len(hits)}")
        checked_hits: list[Hit] = []
        ranks: dict[str, int] = {}
        for rank, hit in enumerate(hits, start=1):
            passage_id, score = self._check_hit(query, rank, hit)
            if passage_id in ranks:
                problem = (
                    f"the passage {passage_id!r} is at rank {ranks[passage_id]} and at rank {rank}; expected it once"
                )
                raise self._error(query, problem)
            ranks[passage_id] = rank
            checked_hits.append((passage_id, score))
        for rank, (hit_above, hit_below) in enumerate(pairwise(checked_hits), start=2):
            if hit_below[1] > hit_above[1]:
                raise self._error(
                    query,
                    f"the scores rise from {hit_above[1]!r} to {hit_below[1]!r} at rank {rank}; expected the best hit "
                    "first, and high scores for good hits; change the signs of distances",
                )
        self._expect_known(query, list(ranks))
        return checked_hits

    def _check_hit(self, query: Query, rank: int, hit: Any) -> Hit:
        """Return a hit as a text and a float. Raises :class:`InputError` for another value."""
        if not isinstance(hit, list | tuple) or len(hit) != 2:
            raise self._error(query, f"expected {_HITS_EXPECTED}, found {shown_value(hit)} at rank {rank}")
        passage_id, score = hit
        if not isinstance(passage_id, str):
            raise self._error(query, f"expected ids of the corpus, which are texts, found {shown_value(passage_id)}")
        # True and False are numbers of Python, but no scores.
        is_number = isinstance(score, numbers.Real) and not isinstance(score, bool)
        if not is_number or not math.isfinite(score):
            raise self._error(
                query, f"passage {passage_id!r}: expected a finite number as the score, found {shown_value(score)}"
            )
        return str(passage_id), float(score)

    def _expect_known(self, query: Query, passage_ids: list[str]) -> None:
        """Raise :class:`InputError` for the first passage that the corpus lacks."""
        if not passage_ids:
            return
        for passage_id, row in zip(passage_ids, self._passages.rows(passage_ids).tolist(), strict=True):
            if row < 0:
                problem = f"the corpus has no passage {passage_id!r}; expected the ids of Release.passages()"
                raise self._error(query, problem)

    def _error(self, query: Query, problem: str, query_count: int = 1) -> InputError:
        """Return an error that names the engine and the query, and the number of further queries of the call."""
        query_id, query_text = query
        description = f"query {query_id!r} ({shown_value(query_text)})"
        if query_count > 1:
            description += f" and {query_count - 1} more in one call"
        return InputError(f"{self.name}: {description}: {problem}")


def _describe(value: Any) -> str:
    if value is None:
        return "None"
    return f"a value of type {type(value).__name__}"


class _SlowQueryWatch:
    """Warn while a query takes longer than :data:`SLOW_SECONDS`, also if its search never returns.

    A thread watches, and the engine stays in the caller's thread. Only the first slow query is reported.
    """

    def __init__(self, engine_name: str) -> None:
        self._engine_name = engine_name
        self._query: Query | None = None
        self._start_time = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "_SlowQueryWatch":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    @contextlib.contextmanager
    def follow(self, query: Query) -> Iterator[None]:
        """Watch the search of a query, which the block runs."""
        # The time first, because the watching thread reads it as soon as there is a query.
        self._start_time = time.perf_counter()
        self._query = query
        try:
            yield
        finally:
            self._query = None

    def _watch(self) -> None:
        """Warn of the first slow query, then end. Runs in the watching thread."""
        step = min(_LONGEST_STEP, SLOW_SECONDS / 2)
        while not self._ended.wait(step):
            query = self._query
            if query is not None and time.perf_counter() - self._start_time >= SLOW_SECONDS:
                query_id, query_text = query
                log.warning(
                    "%s: query %r (%s): the search takes longer than %g s; Ctrl-C ends it; further slow queries "
                    "are not reported",
                    self._engine_name,
                    query_id,
                    shown_value(query_text),
                    SLOW_SECONDS,
                )
                return
