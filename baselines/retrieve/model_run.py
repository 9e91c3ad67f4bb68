"""The run of a model, with a report of the model's settings and the run's measures."""

import functools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baselines.core.run_manifest import tag_of, write_manifest
from baselines.core.settings import ModelOptions
from baselines.measure.evaluate import evaluate_runs
from baselines.measure.qrels import read_queries
from baselines.retrieve.devices import Work
from baselines.retrieve.families import prepare_search
from baselines.retrieve.models import shown_name
from baselines.retrieve.second_stage import rescore_run
from builders.core.errors import InputError, log
from builders.core.results import Report, Table
from builders.store.layout import SETS
from builders.store.reader import Release
from builders.store.runs import Hit, Run, best_first, read_run, without_empty, write_run

Line = tuple[str, str, str]  # name, value, source
_TITLES = {"truncate_dim": "dimensions kept", "normalize": "unit length"}


@dataclass(frozen=True)
class SearchedSplit:
    """The queries of a search: a split of a set of a release."""

    release: Release
    set_name: str
    split: str

    @property
    def is_judged(self) -> bool:
        return (SETS[self.set_name].qrels, self.split) in self.release.splits()


class ModelRun(Run):
    """The run of a model. ``report`` has the model's settings and, if the split has judgments, the measures."""

    manifest: dict[str, Any]

    def __init__(
        self,
        path: Path,
        hits: Mapping[str, Sequence[Hit]] | None,
        *,
        manifest: dict[str, Any],
        searched: SearchedSplit,
        first_stage: Run | None = None,
        stages: Sequence[Line] = (),
    ) -> None:
        super().__init__(path, None if hits is None else without_empty(hits))
        self.is_in_memory = hits is not None
        self.manifest = manifest
        self._searched = searched
        self._first_stage = first_stage
        self._stages = stages

    @functools.cached_property
    def report(self) -> Report:
        """The settings and the measures. With a first stage, the measures of both stages."""
        lines = setting_lines(self.manifest, self._stages)
        value: dict[str, Any] = {"manifest": self.manifest, "evaluation": None}
        text = header(lines)
        settings_table = Table(("setting", "value", "source"), lines, title="settings", text_columns=3)
        runs: list[Run] = [self] if self._first_stage is None else [self._first_stage, self]
        tables = [settings_table]
        if self._searched.is_judged:
            evaluation = evaluate_runs(
                runs,
                release=self._searched.release,
                set=self._searched.set_name,
                split=self._searched.split,
            )
            text += f"\n\n{evaluation}"
            tables = [*evaluation.all_tables(), settings_table]
            value["evaluation"] = evaluation.value[-1]
        else:
            evaluation = None
            path, split = self._searched.release.path, self._searched.split
            log.warning("%s: the split %s has no judgments, so nothing is evaluated", path, split)
        if self._first_stage is not None:
            value["first_stage"] = evaluation and evaluation.value[0]
        return Report(value, text, tables)


def search_passages(
    model: str,
    searched: SearchedSplit,
    *,
    options: ModelOptions,
    work: Work,
    top_k: int,
    out: Path | None = None,
    index: Path | None = None,
) -> ModelRun:
    """Search all passages by a model. Write ``out`` and its manifest, unless ``out`` is None.

    ``index`` is the directory of the index (None: in the cache). Raises :class:`InputError`.
    """
    release, configs = searched.release, SETS[searched.set_name]
    queries = read_queries(release, searched.split, configs.queries)
    if not queries:
        raise InputError(f"the split {searched.split!r} has no queries", path=release.path)
    search = prepare_search(
        model=model,
        options=options,
        work=work,
        release=release,
        set_name=searched.set_name,
        split=searched.split,
        top_k=top_k,
        index=index,
    )
    hits = search.retriever.hits(release, configs.corpus, search.index_folder, queries, top_k)
    if out is None:
        hits_by_query = {query: best_first(ranking) for query, ranking in hits}
        return ModelRun(Path(shown_name(model)), hits_by_query, manifest=search.record, searched=searched)
    tag = tag_of(search.record)
    line_count = write_run(out, hits, tag=tag)
    manifest = write_manifest(out, search.record, tag, len(queries), line_count)
    log.info("%s: %d lines for %d queries; settings: %s.manifest.json", out, line_count, len(queries), out)
    return ModelRun(out, None, manifest=manifest, searched=searched)


def search_run(
    model: str,
    first_run: Run | Path,
    searched: SearchedSplit,
    *,
    options: ModelOptions,
    work: Work,
    top_k: int,
    out: Path | None = None,
    index: Path | None = None,
) -> ModelRun:
    """Score the best passages of a run by a model, as :func:`.second_stage.rescore_run` does."""
    first_stage = read_run(first_run)
    start = time.perf_counter()
    rescored = rescore_run(
        first_stage,
        model=model,
        options=options,
        work=work,
        release=searched.release,
        set_name=searched.set_name,
        split=searched.split,
        top_k=top_k,
        out=out,
        index=index,
    )
    seconds = time.perf_counter() - start
    stages = [
        ("first stage", first_stage.path.name, "0 passages encoded"),
        ("second stage", f"top {top_k}", f"{rescored.cost}, {seconds:.1f} s"),
    ]
    hits = rescored.run.hits if out is None else None
    return ModelRun(
        rescored.run.path,
        hits,
        manifest=rescored.manifest,
        searched=searched,
        first_stage=first_stage,
        stages=stages,
    )


def setting_lines(record: dict[str, Any], stages: Sequence[Line] = ()) -> list[Line]:
    """Return a line for each setting in a run's record: name, value and source. ``stages`` are the last lines."""
    model = record["model"]
    commit = f" at {model['commit'][:8]}" if model.get("commit") else ""
    family = "" if model.get("family", "none") == "none" else f"models.toml, {model['family']}"
    lines = [("model", f"{model['name']}{commit}", family), ("kind", record["kind"], "")]
    for key, setting in record.get("used", {}).items():
        if setting["value"] is not None:
            name = _TITLES.get(key, key.replace("_", " "))
            lines.append((name, format_setting(setting["value"]), setting["says"]))
    if "computed_in" in model:
        lines.append(("precision", model["computed_in"], ""))
    return [*lines, *stages]


def header(lines: Sequence[Line]) -> str:
    """Format the lines of :func:`setting_lines` as aligned text."""
    width = max(len(value) for _, value, _ in lines if len(value) <= 40)
    return "\n".join(f"{name:<16} {value:<{width}}  {source}".rstrip() for name, value, source in lines)


def format_setting(value: Any) -> str:
    """Format a value for people. Prompts are quoted, with line breaks as ``\\n``."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and (value == "" or not value.isidentifier()):
        return json.dumps(value, ensure_ascii=False) if value else "none"
    return str(value)
