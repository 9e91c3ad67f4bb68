"""The latency of queries: percentiles of the times that single queries take.

A manifest has the latency under ``query_latency``, with the keys of :meth:`Latency.to_json`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MANIFEST_KEY = "query_latency"
_PERCENTILES = (50, 95, 99)
_DIGITS = 3  # a microsecond


@dataclass(frozen=True)
class Latency:
    """Percentiles of the times of single queries, in milliseconds, interpolated linearly between two times.

    Attributes:
        p50, p95, p99: 50, 95 or 99 percent of the queries take at most this time.
        queries: the number of measured queries.
    """

    p50: float
    p95: float
    p99: float
    queries: int

    @classmethod
    def of_seconds(cls, seconds: Sequence[float]) -> "Latency":
        """Return the percentiles, in milliseconds, of the times ``seconds``, which are at least one."""
        milliseconds = 1_000 * np.asarray(seconds, np.float64)
        p50, p95, p99 = np.percentile(milliseconds, _PERCENTILES).tolist()
        return cls(p50, p95, p99, len(milliseconds))

    def to_json(self) -> dict[str, float]:
        """Return the JSON object for a manifest. Times are in milliseconds."""
        return {
            "p50_ms": round(self.p50, _DIGITS),
            "p95_ms": round(self.p95, _DIGITS),
            "p99_ms": round(self.p99, _DIGITS),
            "queries": self.queries,
        }

    def to_text(self) -> str:
        """Return one line, for example "p50 3.2 ms, p95 5.0 ms, p99 9.1 ms (16 queries)"."""
        noun = "query" if self.queries == 1 else "queries"
        return f"p50 {self.p50:.1f} ms, p95 {self.p95:.1f} ms, p99 {self.p99:.1f} ms ({self.queries} {noun})"
