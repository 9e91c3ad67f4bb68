"""The run of a model, with a report of the model's settings and the run's measures. This module imports no PyTorch."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baselines.measure.evaluate import evaluate_runs
from builders.core.errors import log
from builders.core.results import Report, Table
from builders.store.layout import SETS
from builders.store.reader import Release
from builders.store.runs import Hit, Run, without_empty

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
        self.stages = stages

    @functools.cached_property
    def report(self) -> Report:
        """The settings and the measures. With a first stage, the measures of both stages."""
        lines = setting_lines(self.manifest, self.stages)
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
