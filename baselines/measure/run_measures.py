"""The result of ``baselines.evaluate``: the measures of a run, with intervals and the values of every query."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from baselines.measure.measures import IR_MEASURES, PAPER, values_of
from builders.core.errors import InputError
from builders.core.results import Table
from builders.core.tables import format_percent

if TYPE_CHECKING:
    import pandas as pd

SHARES = (*PAPER.values(), *IR_MEASURES)  # the measures that are means over queries


def intervals_of_means(by_query: pa.Table, *, level: float = 0.95, seed: int = 0) -> dict[str, tuple[float, float]]:
    """Return the bootstrap interval (low, high) of each mean, by measure (:func:`.significance.of_means`).

    ``by_query`` is the table of :func:`.measures.measure_run`. Means and limits are fractions.
    """
    from baselines.measure.significance import of_means

    value_columns = np.column_stack([values_of(by_query, name) for name in SHARES])
    intervals = of_means(value_columns, seed=seed, level=level)
    return dict(zip(SHARES, intervals, strict=True))


class RunMeasures(dict[str, float]):
    """The measures of a run by name, as fractions, and ``QueriesRanked``, the number of queries in the run.

    Attributes:
        run: the name of the run.
        query_count: the number of queries with a positive passage, over which every mean is taken.
        tied_query_count: the number of these queries with ties around a positive passage (docs/evaluate.md).
    """

    def __init__(self, means: dict[str, Any], by_query: pa.Table) -> None:
        """Keep the result of :func:`.measures.measure_run`: the means, and the table of values by query."""
        super().__init__(means["official"] | means["ir_measures"])
        self.run: str = means["run"]
        self.query_count: int = means["queries"]
        self.tied_query_count: int = means["ties"]["queries"]
        self._by_query = by_query

    def intervals(self, level: float = 0.95, seed: int = 0) -> dict[str, tuple[float, float]]:
        """Return the bootstrap interval (low, high) of each mean, by measure (:func:`.significance.of_means`).

        ``level`` is the share of the resampled means inside the interval. Raises :class:`InputError` unless ``level``
        is between 0 and 1.
        """
        if not 0 < level < 1:
            raise InputError(f"level: expected a number between 0 and 1, found {level!r}")
        return intervals_of_means(self._by_query, level=level, seed=seed)

    def per_query(self) -> dict[str, dict[str, float]]:
        """Return query id -> measure -> value, as fractions, for every query with a positive passage."""
        query_ids = self._by_query["query_id"].to_pylist()
        values_by_query: dict[str, dict[str, float]] = {query_id: {} for query_id in query_ids}
        for name in SHARES:
            column = values_of(self._by_query, name).tolist()
            for query_id, value in zip(query_ids, column, strict=True):
                values_by_query[query_id][name] = value
        return values_by_query

    def to_pandas(self) -> "pd.DataFrame":
        """Return a data frame with a row per query: query_id, the measures as fractions, first_positive_rank."""
        import pandas as pd

        frame = pd.DataFrame.from_dict(self.per_query(), orient="index", columns=list(SHARES))
        frame = frame.rename_axis("query_id").reset_index()
        # None for a list without a positive.
        first_ranks = self._by_query["first_positive_rank"].to_pylist()
        frame["first_positive_rank"] = pd.array(first_ranks, dtype="Int64")
        return frame

    def to_markdown(self) -> str:
        """Return the measures and their intervals in percent, as Markdown."""
        rows = []
        for name, (low, high) in self.intervals().items():
            rows.append([name, format_percent(self[name]), f"{format_percent(low)} to {format_percent(high)}"])
        title = f"{self.run}, {self.query_count} queries, percent"
        return Table(["measure", "mean", "95 % interval"], rows, title=title).to_markdown()

    def _repr_markdown_(self) -> str:
        return self.to_markdown()
