"""The published pages of a release: an example row, a table of scores, and ``eval.yaml``.

``eval.yaml`` registers a dataset of the hub as a benchmark with a ranking of models. It has a task for each measure of
each part (:func:`builders.store.benchmark_tasks.parts_of`). The hub shows the ranking only for datasets that the hub
has approved; its page on evaluation results explains how to apply. The hub's list of frameworks
(packages/tasks/src/eval.ts in huggingface.js) lacks this project. --framework therefore has no default.
"""

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec

from builders.core.errors import InputError
from builders.core.files import read_whole
from builders.core.hub import as_yaml
from builders.core.tables import as_code, as_text
from builders.core.typed import json_of
from builders.store.benchmark_tasks import MEASURES, part_id, parts_of, task_id
from builders.store.card import Configs, is_official, pretty_name, rows_of, shown_config
from builders.store.judgments import labelled
from builders.store.layout import JOINED, SETS, schema_of
from builders.store.manifest import Build
from builders.store.published import published
from builders.store.reader import Release

_CUT = 60  # characters of a text in the example


def example(release: Release, configs: Configs) -> str:
    """Return the first joined row with a positive passage as JSON in a code block. Texts and lists are shortened."""
    config = shown_config(configs)
    split = next(iter(configs[config]))
    rows = (row for batch in release.batches(config, split, rows=64) for row in batch.to_pylist())
    if set(JOINED.names) <= set(schema_of(config).names):
        rows = (row for row in rows if row["positive_passages"])
    row = next(rows, None)
    if row is None:
        return ""
    shown = json.dumps(_cut(row), ensure_ascii=False, indent=1).replace("```", r"\u0060``")  # ``` ends a block
    # Control characters are escaped, because they could move the cursor of a terminal.
    plain = "".join(char if char == "\n" or char.isprintable() else json.dumps(char)[1:-1] for char in shown)
    return f"`{config}`, {split}:\n\n```json\n{plain}\n```\n"


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _CUT else f"{value[:_CUT]}…"
    if isinstance(value, list):
        return [_cut(inner) for inner in value[:1]]
    return {key: _cut(inner) for key, inner in value.items()} if isinstance(value, dict) else value


class _Official(msgspec.Struct):
    mrr: float = msgspec.field(name="MRR@10")
    first: float = msgspec.field(name="recall@1")
    fifty: float = msgspec.field(name="recall@50")


class Scored(msgspec.Struct):
    """The scores of a run in the output of `evaluate --format json`."""

    run: str
    queries: int
    official: _Official


def read_scores(path: Path) -> list[Scored]:
    """Read the output of `python -m baselines evaluate --format json`. Raise :class:`InputError` for other files."""
    return json_of(read_whole(path), list[Scored], path)


def scores_table(release: Release, builds: Collection[Build], given: dict[str, Path]) -> str:
    """Return a Markdown table of scores. A release from the official archives also gets the paper's scores.

    ``given`` maps a part (``dev``, ``cmedqa_test``) to a file for :func:`read_scores`. Raises :class:`InputError` if
    the release lacks the part, or if a run was measured on another number of queries than the part has.
    """
    rows = [row for part, path in given.items() for row in _measured(release, part, path)]
    if is_official(builds):
        rows += [(row["system"], row["split"], row["values"], row["source"]) for row in published()["scores"]]
    head = [f"| | | {' | '.join(MEASURES)} | |", "|---|---|---:|---:|---:|---|"] if rows else []
    lines = [
        f"| {system} | {as_code(part)} | {' | '.join(f'{value:.2f}' for value in values)} | {source} |"
        for system, part, values, source in rows
    ]
    return "\n".join([*head, *lines])


def _measured(release: Release, name: str, path: Path) -> Iterator[tuple[str, str, list[float], str]]:
    """Yield (system, part, scores in percent, source) for the runs in a file of scores."""
    parts = {part_id(*part): part for part in parts_of({*release.splits()})}
    if name not in parts:
        known = ", ".join(parts) or "no judged dev or test split"
        raise InputError(f"--scores {name}=...: expected a judged split; the release has {known}")
    set_name, split = parts[name]
    configs = SETS[set_name]
    queries = len(labelled(release.table(configs.qrels, split)))
    for run in read_scores(path):
        if not configs.translated and run.queries != queries:
            raise InputError(f"{run.run} was measured on {run.queries:,} queries; {name} has {queries:,}", path=path)
        values = [100 * value for value in msgspec.structs.astuple(run.official)]
        yield as_text(Path(run.run).name), name, values, "measured on this release"


def eval_yaml(configs: Configs, is_reading: bool, framework: str = "") -> str:
    """Return the content of ``eval.yaml``; empty for a release without a judged dev or test split.

    ``framework`` is a value of ``evaluation_framework`` that the hub knows, or empty to omit the key.
    """
    parts = list(parts_of({(config, split) for config, found in configs.items() for split in found}))
    if not parts:
        return ""
    passages = rows_of(configs[SETS[parts[0][0]].corpus]["corpus"])
    asked = ", ".join(f"{rows_of(configs[SETS[name].queries][split]):,} ({name} {split})" for name, split in parts)
    content: dict[str, Any] = {
        "name": pretty_name(is_reading),
        "description": "Chinese passage retrieval: find the passages that answer a question, in a collection of"
        f" {passages:,}. Questions: {asked}. Figures are percent, higher is better: MRR@10, and the share of"
        " questions with an answer in the top 1 and the top 50.",
        **({"evaluation_framework": framework} if framework else {}),
        "tasks": [
            {"id": task_id(name, split, measure), "config": SETS[name].queries, "split": split}
            for name, split in parts
            for measure in MEASURES
        ],
    }
    return as_yaml(content)
