"""The cost of a run: texts per second and the latency of a query, for the run's manifest.

Verbs search queries in batches, by several threads or devices. The time of a batch says nothing about the wait of one
user. So after a search, a fixed sample of its queries is searched again, one query at a time, by the opened model and
the opened index. The sample is :data:`MEASURED_QUERIES` queries, drawn by a hash of their ids. Measuring ends early
when it has taken :data:`_SHARE_OF_SEARCH` of the time of the search, but never within its first second.

A model behind an endpoint costs money, so its queries are not sent again. The latency is then measured during the run,
while other requests are on their way.

Work far below a verb reports its texts with :func:`report_texts`, and single queries with :func:`report_query`. The
verb collects the reports in the block of :func:`collect_costs`. Times are in no release, and do not change a run.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from baselines.core.latency import MANIFEST_KEY, Latency
from builders.core.errors import InputError, log
from builders.core.exit_codes import raise_if_stopped
from builders.core.quiet import quiet_call
from builders.core.sampling import draw_in_order

THROUGHPUT_KEY = "throughput"
# Of baselines/retrieve/cut_texts.py; stated here for modules that do not import PyTorch.
CUT_KEY = "texts_cut"
# Keys of a manifest whose values differ between two equal calls.
TIMED_KEYS = (THROUGHPUT_KEY, MANIFEST_KEY)
ALONE = "each query alone, after the run"
MEASURED_QUERIES = 100
_SHARE_OF_SEARCH = 0.05
_SHORTEST_BUDGET = 1.0  # seconds
_SEED = 0  # of the sample
_RATE_DIGITS = 1
_SECONDS_DIGITS = 3
Query = TypeVar("Query")


@dataclass
class Throughput:
    """The number of texts that a step has processed, and the seconds it took."""

    texts: int = 0
    seconds: float = 0.0

    @property
    def texts_per_second(self) -> float | None:
        """None if the clock measured no time."""
        return self.texts / self.seconds if self.seconds > 0 else None


@dataclass
class RunCosts:
    """The reports of one run.

    Attributes:
        throughput: texts and seconds by the kind of text: passages (encoded), queries (searched), pairs (scored).
        preparing_seconds: the time in which this process opened models while it processed texts.
        query_seconds: the times of single queries.
        measured: how the single queries were measured.
    """

    throughput: dict[str, Throughput] = field(default_factory=dict)
    preparing_seconds: float = 0.0
    query_seconds: list[float] = field(default_factory=list)
    measured: str = ALONE

    def add_texts(self, kind: str, count: int, seconds: float) -> None:
        """Add ``count`` texts of a kind, which took ``seconds``. Nothing is added for 0 texts."""
        if count:
            total = self.throughput.setdefault(kind, Throughput())
            total.texts += count
            total.seconds += seconds

    def measure_queries(self, search: Callable[[Query], object], queries: Mapping[str, Query]) -> None:
        """Search a sample of the queries one by one, and keep the times. ``queries`` are by id.

        The first query is searched twice, because its first search may prepare something. A search that fails, for
        example because a server is gone, ends the measurement with a warning.
        """
        searched_seconds = sum(total.seconds for total in self.throughput.values())
        sample_ids = draw_in_order(queries, MEASURED_QUERIES, _SEED)
        sample = [queries[query_id] for query_id in sample_ids]
        # Reports of the repeated searches are dropped, because their queries are no texts of the run.
        token = _present_costs.set(None)
        try:
            self.query_seconds += time_queries(search, sample, _SHARE_OF_SEARCH * searched_seconds)
        except InputError as error:
            log.warning("the latency of a query is not measured: %s", error)
        finally:
            _present_costs.reset(token)

    def to_json(self) -> dict[str, Any]:
        """Return the entries ``throughput`` and ``query_latency`` of a manifest. An empty entry is omitted."""
        entries: dict[str, Any] = {}
        if self.throughput:
            throughput: dict[str, Any] = {}
            for kind, total in self.throughput.items():
                rate = total.texts_per_second
                throughput[kind] = {
                    "texts": total.texts,
                    "seconds": round(total.seconds, _SECONDS_DIGITS),
                    "texts_per_second": None if rate is None else round(rate, _RATE_DIGITS),
                }
            entries[THROUGHPUT_KEY] = throughput
        if self.query_seconds:
            latency = Latency.of_seconds(self.query_seconds)
            entries[MANIFEST_KEY] = {**latency.to_json(), "measured": self.measured}
        return entries


def time_queries(search: Callable[[Query], object], sample: Sequence[Query], budget: float) -> list[float]:
    """Return the seconds of each call ``search(query)``, in the order of the sample.

    The first query is also searched once before the measurement. No query begins after ``budget`` seconds, or after one
    second if the budget is smaller, so the result may be shorter than the sample. Progress of the searches, and log
    lines below warnings, are hidden.
    """
    if not sample:
        return []
    all_seconds: list[float] = []
    with quiet_call():
        search(sample[0])
        end_time = time.perf_counter() + max(budget, _SHORTEST_BUDGET)
        for query in sample:
            raise_if_stopped()
            start_time = time.perf_counter()
            search(query)
            now = time.perf_counter()
            all_seconds.append(now - start_time)
            if now >= end_time:
                break
    return all_seconds


_present_costs: ContextVar[RunCosts | None] = ContextVar("present_costs", default=None)


@contextlib.contextmanager
def collect_costs() -> Iterator[RunCosts]:
    """Collect the reports of the block. Reports of other threads and processes are lost."""
    costs = RunCosts()
    token = _present_costs.set(costs)
    try:
        yield costs
    finally:
        _present_costs.reset(token)


@contextlib.contextmanager
def report_texts(kind: str, count: int) -> Iterator[None]:
    """Report that the block processes ``count`` texts of a kind. Outside of :func:`collect_costs`, nothing happens.

    The seconds exclude the blocks of :func:`preparing` in this process. Worker processes open their models within the
    reported seconds.
    """
    costs = _present_costs.get()
    if costs is None:
        yield
        return
    start_time = time.perf_counter()
    earlier_preparing = costs.preparing_seconds
    yield
    seconds = time.perf_counter() - start_time
    costs.add_texts(kind, count, seconds - (costs.preparing_seconds - earlier_preparing))


@contextlib.contextmanager
def preparing() -> Iterator[None]:
    """Let the time of the block, which opens a model, not count as time for texts."""
    start_time = time.perf_counter()
    yield
    costs = _present_costs.get()
    if costs is not None:
        costs.preparing_seconds += time.perf_counter() - start_time


def report_query(seconds: float, measured: str) -> None:
    """Report the time of one query. ``measured`` is a phrase for people that says how the time was measured.

    Outside of :func:`collect_costs`, nothing happens.
    """
    costs = _present_costs.get()
    if costs is not None:
        costs.query_seconds.append(seconds)
        costs.measured = measured
