"""The run of a model, with a report of the model's settings and the run's measures. This module imports no PyTorch."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baselines.core.latency import MANIFEST_KEY
from baselines.core.run_costs import CUT_KEY, THROUGHPUT_KEY
from baselines.measure.evaluate import evaluate_runs
from baselines.measure.qrels import read_queries
from builders.core.errors import InputError, log
from builders.core.results import Report, Table
from builders.core.tables import format_percent
from builders.store.layout import SETS
from builders.store.own_queries import OwnQueries
from builders.store.reader import Release
from builders.store.runs import Hit, Run, without_empty

Line = tuple[str, str, str]  # name, value, source
# Titles that are printed instead of the settings' names.
_TITLES = {
    "truncate_dim": "dimensions kept",
    "normalize": "unit length",
    "query_input_type": "query type",
    "passage_input_type": "passage type",
}
_LONGEST_ALIGNED_VALUE = 40  # longer values, for example prompts, do not widen the column of values
_SHOWN_COMMIT = 8  # first digits of a commit


@dataclass(frozen=True)
class SearchedSplit:
    """The queries of a search: a split of a set of a release, or queries that the release lacks.

    Attributes:
        release: the release, whose passages are searched.
        set_name: a key of :data:`.layout.SETS`.
        split: split of the queries. Unused with ``own_queries``.
        own_queries: queries that the release lacks, in place of the split's.
    """

    release: Release
    set_name: str
    split: str
    own_queries: OwnQueries | None = None

    def expect_texts(self) -> None:
        """Raise :class:`InputError` if the release lacks the passages or the queries. Nothing is read."""
        configs = SETS[self.set_name]
        self.release.shards(configs.corpus, "corpus")
        if self.own_queries is None:
            self.release.shards(configs.queries, self.split)

    def read_queries(self) -> list[tuple[str, str]]:
        """Return (id, text) of every query. Raises :class:`InputError` for a split without queries."""
        if self.own_queries is not None:
            return self.own_queries.rows
        queries = read_queries(self.release, self.split, SETS[self.set_name].queries)
        if not queries:
            raise InputError(f"the split {self.split!r} has no queries", path=self.release.path)
        return queries

    @property
    def is_judged(self) -> bool:
        """True if the release has judgments of the queries."""
        if self.own_queries is not None:
            return False
        return (SETS[self.set_name].qrels, self.split) in self.release.splits()


class ModelRun(Run):
    """The run of a model. ``report`` has the model's settings and, if the split has judgments, the measures.

    Args:
        path: the run's file.
        hits: the run's hits by query id, or None to read the file on first use.
        manifest: the run's manifest.
        searched_split: the queries of the run.
        first_stage: the run that the model has re-ranked (default: None).
        stages: lines (name, value, costs) about the stages of a re-ranking, for the report (default: none).
    """

    manifest: dict[str, Any]

    def __init__(
        self,
        path: Path,
        hits: Mapping[str, Sequence[Hit]] | None,
        *,
        manifest: dict[str, Any],
        searched_split: SearchedSplit,
        first_stage: Run | None = None,
        stages: Sequence[Line] = (),
    ) -> None:
        super().__init__(path, None if hits is None else without_empty(hits))
        self.is_in_memory = hits is not None
        self.manifest = manifest
        self._searched_split = searched_split
        self._first_stage = first_stage
        self.stages = stages

    @functools.cached_property
    def report(self) -> Report:
        """The settings and the measures. With a first stage, the measures of both stages."""
        searched_split = self._searched_split
        lines = setting_lines(self.manifest, self.stages)
        text = settings_header(lines)
        tables: list[Table] = []
        evaluated_runs: list[Run] = [self] if self._first_stage is None else [self._first_stage, self]
        measures: list[Any] = [None] * len(evaluated_runs)
        if searched_split.is_judged:
            evaluation = evaluate_runs(
                evaluated_runs, release=searched_split.release, set=searched_split.set_name, split=searched_split.split
            )
            text += f"\n\n{evaluation}"
            tables.extend(evaluation.all_tables())
            measures = evaluation.value
        elif searched_split.own_queries is not None:
            log.info("%s: these queries have no judgments, so nothing is evaluated", searched_split.own_queries.name)
        else:
            log.warning(
                "%s: the split %s has no judgments, so nothing is evaluated",
                searched_split.release.path,
                searched_split.split,
            )
        tables.append(Table(("setting", "value", "source"), lines, title="settings", text_columns=3))
        value = {"manifest": self.manifest, "evaluation": measures[-1]}
        if self._first_stage is not None:
            value["first_stage"] = measures[0]
        return Report(value, text, tables)


def setting_lines(run_record: dict[str, Any], stages: Sequence[Line] = ()) -> list[Line]:
    """Return lines (name, value, source) of a run's record: the model, its settings, ``stages`` and, last, the costs.

    ``stages`` are lines about the stages of a re-ranking.
    """
    model = run_record["model"]
    model_name = str(model["name"])
    if model.get("commit"):
        model_name += f" at {model['commit'][:_SHOWN_COMMIT]}"
    family_source = ""
    if model.get("family", "none") != "none":
        family_source = f"models.toml, {model['family']}"
    lines = [("model", model_name, family_source), ("kind", run_record["kind"], "")]
    for key, setting in run_record.get("used", {}).items():
        if setting["value"] is not None:
            title = _TITLES.get(key, key.replace("_", " "))
            lines.append((title, format_setting(setting["value"]), setting["says"]))
    if "computed_in" in model:
        lines.append(("precision", model["computed_in"], ""))
    if "endpoint" in run_record:
        lines.append(("endpoint", describe_costs(run_record["endpoint"]), ""))
    lines.extend(stages)
    lines.extend(cost_lines(run_record))
    return lines


def cost_lines(manifest: Mapping[str, Any]) -> list[Line]:
    """Return a line for each kind of cut texts, each throughput and the latency in a run's manifest."""
    lines = []
    for kind, counts in manifest.get(CUT_KEY, {}).items():
        value = f"{format_percent(counts['share'])} %"
        if "interval" in counts:
            low, high = counts["interval"]
            value += f" ({format_percent(low)} to {format_percent(high)})"
        lines.append((f"{kind} cut", value, f"of {counts['read']:,} {kind}, by the model's length"))
    for kind, step in manifest.get(THROUGHPUT_KEY, {}).items():
        if step["texts_per_second"] is not None:
            lines.append(("speed", f"{step['texts_per_second']:,.1f} {kind}/s", f"{step['texts']:,} {kind}"))
    latency = manifest.get(MANIFEST_KEY)
    if latency is not None:
        value = ", ".join(f"{name} {latency[f'{name}_ms']:.1f} ms" for name in ("p50", "p95", "p99"))
        lines.append(("query latency", value, f"{latency['queries']:,} queries, {latency['measured']}"))
    return lines


def describe_costs(costs: dict[str, Any]) -> str:
    """Describe the costs of an endpoint in a run's record (:meth:`.service_client.ServiceCosts.values`)."""
    tokens = "unknown tokens" if costs["tokens"] is None else _count(costs["tokens"], "token")
    texts = f"{_count(costs['texts'], 'text')} ({costs['kept_texts']:,} kept from earlier)"
    return f"{texts}, {_count(costs['requests'], 'request')}, {tokens}, {costs['request_seconds']:,.1f} s of requests"


def _count(number: int, noun: str) -> str:
    """Return a number with its noun, for example ``1 request``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def settings_header(lines: Sequence[Line]) -> str:
    """Format the lines of :func:`setting_lines` as aligned text."""
    width = max(len(value) for _, value, _ in lines if len(value) <= _LONGEST_ALIGNED_VALUE)
    return "\n".join(f"{name:<16} {value:<{width}}  {source}".rstrip() for name, value, source in lines)


def format_setting(value: Any) -> str:
    """Format a value for people. Prompts are quoted, with line breaks as ``\\n``."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == "":
        return "none"
    if isinstance(value, str) and not value.isidentifier():
        return json.dumps(value, ensure_ascii=False)
    return str(value)
