"""The result of ``baselines.evaluate``: the measures of a run, with intervals and the values of every query."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from baselines.core.latency import Latency
from baselines.measure.measures import IR_MEASURES, PAPER, values_of
from builders.core.errors import InputError
from builders.core.results import Table
from builders.core.tables import format_percent, text_table

if TYPE_CHECKING:
    import pandas as pd

_SHARES = (*PAPER.values(), *IR_MEASURES)  # the measures of every run that are means over queries
_COLUMNS = ["measure", "mean", "95 % interval"]


def measures_with_intervals(chosen: Sequence[str]) -> list[str]:
    """Return the measures of every run and the measures ``chosen``, each once."""
    return list(dict.fromkeys([*_SHARES, *chosen]))


def intervals_of_means(
    by_query: pa.Table, chosen: Sequence[str] = (), *, level: float = 0.95, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Return the bootstrap interval (low, high) of each mean, by measure (:func:`.significance.of_means`).

    ``by_query`` is the table of :func:`.measures.measure_run` with the measures ``chosen``. Means and limits are
    fractions.
    """
    from baselines.measure.significance import of_means

    names = measures_with_intervals(chosen)
    value_columns = np.column_stack([values_of(by_query, name) for name in names])
    intervals = of_means(value_columns, seed=seed, level=level)
    return dict(zip(names, intervals, strict=True))


class RunMeasures(dict[str, float]):
    """The measures of a run by name, as fractions, and ``QueriesRanked``, the number of queries in the run.

    Attributes:
        run: the name of the run.
        query_count: the number of queries with a positive passage, over which every mean is taken.
        tied_query_count: the number of these queries with ties around a positive passage (docs/evaluate.md).
        latency: the times of single queries, None unless the call has searched with a searcher, one query at a time.
    """

    def __init__(self, means: dict[str, Any], by_query: pa.Table, latency: Latency | None = None) -> None:
        """Keep the result of :func:`.measures.measure_run`: the means, and the table of values by query."""
        chosen = means.get("measures", {})
        super().__init__(means["official"] | means["ir_measures"] | chosen)
        self.run: str = means["run"]
        self.query_count: int = means["queries"]
        self.tied_query_count: int = means["ties"]["queries"]
        self.latency = latency
        self._by_query = by_query
        self._chosen = tuple(chosen)

    def intervals(self, level: float = 0.95, seed: int = 0) -> dict[str, tuple[float, float]]:
        """Return the bootstrap interval (low, high) of each mean, by measure (:func:`.significance.of_means`).

        ``level`` is the share of the resampled means inside the interval. Raises :class:`InputError` unless ``level``
        is between 0 and 1.
        """
        if not 0 < level < 1:
            raise InputError(f"level: expected a number between 0 and 1, found {level!r}")
        return intervals_of_means(self._by_query, self._chosen, level=level, seed=seed)

    def per_query(self) -> dict[str, dict[str, float]]:
        """Return query id -> measure -> value, as fractions, for every query with a positive passage."""
        query_ids = self._by_query["query_id"].to_pylist()
        values_by_query: dict[str, dict[str, float]] = {query_id: {} for query_id in query_ids}
        for name in measures_with_intervals(self._chosen):
            column = values_of(self._by_query, name).tolist()
            for query_id, value in zip(query_ids, column, strict=True):
                values_by_query[query_id][name] = value
        return values_by_query

    def to_pandas(self) -> "pd.DataFrame":
        """Return a data frame with a row per query: query_id, the measures as fractions, first_positive_rank."""
        import pandas as pd

        columns = measures_with_intervals(self._chosen)
        frame = pd.DataFrame.from_dict(self.per_query(), orient="index", columns=columns)
        frame = frame.rename_axis("query_id").reset_index()
        # None for a list without a positive.
        first_ranks = self._by_query["first_positive_rank"].to_pylist()
        frame["first_positive_rank"] = pd.array(first_ranks, dtype="Int64")
        return frame

    def to_text(self) -> str:
        """Return the measures and their intervals in percent, and the latency, as a table for people."""
        text = f"{self._title()}\n{text_table(_COLUMNS, self._rows())}"
        if self.latency is not None:
            text += f"\n{self._describe_latency()}"
        return text

    def to_markdown(self) -> str:
        """Return the measures and their intervals in percent, and the latency, as Markdown."""
        markdown = Table(_COLUMNS, self._rows(), title=self._title()).to_markdown()
        if self.latency is not None:
            markdown += f"\n\n{self._describe_latency()}"
        return markdown

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def _title(self) -> str:
        return f"{self.run}, {self.query_count} queries, percent"

    def _rows(self) -> list[list[str]]:
        """Return the cells of ``_COLUMNS`` for each measure, in percent."""
        rows = []
        for name, (low, high) in self.intervals().items():
            rows.append([name, format_percent(self[name]), f"{format_percent(low)} to {format_percent(high)}"])
        return rows

    def _describe_latency(self) -> str:
        assert self.latency is not None
        return f"latency of a query, searched alone: {self.latency.to_text()}"
