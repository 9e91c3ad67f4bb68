"""The pages of a published release: a row as an example, a table of systems' scores, and ``eval.yaml``.

``eval.yaml`` makes a dataset of the hub a benchmark, on whose page models are ranked. Its tasks:
:func:`builders.store.layout.parts_of`. The hub shows the ranking once it has the dataset on its list (its page on
evaluation results says where to ask). It knows frameworks by the names in huggingface.js, packages/tasks/src/eval.ts.
This project is not among them, so none is named unless the user names one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec

from builders.check.paper import published
from builders.core.errors import InputError
from builders.core.files import read_whole
from builders.core.hub import as_yaml
from builders.core.tables import as_code, as_text
from builders.core.typed import json_of
from builders.store.card import Configs, is_official, pretty_name, rows_of, shown_config
from builders.store.judgments import labelled
from builders.store.layout import JOINED, MEASURES, SETS, part_id, parts_of, schema_of, task_id
from builders.store.manifest import Build
from builders.store.reader import Release

_CUT = 60  # characters of a text


def example(release: Release, configs: Configs) -> str:
    """The first row of the joined rows that has an answer, cut short, as JSON in a code block."""
    config = shown_config(configs)
    split = next(iter(configs[config]))
    rows = (row for batch in release.batches(config, split, rows=64) for row in batch.to_pylist())
    if set(JOINED.names) <= set(schema_of(config).names):
        rows = (row for row in rows if row["positive_passages"])
    row = next(rows, None)
    if row is None:
        return ""
    shown = json.dumps(_cut(row), ensure_ascii=False, indent=1).replace("```", r"\u0060``")  # no line of it is a fence
    # Nothing in it moves the terminal's cursor.
    plain = "".join(each if each == "\n" or each.isprintable() else json.dumps(each)[1:-1] for each in shown)
    return f"`{config}`, {split}:\n\n```json\n{plain}\n```\n"


def _cut(value: Any) -> Any:
    """Texts at their first characters, lists at their first element."""
    if isinstance(value, str):
        return value if len(value) <= _CUT else f"{value[:_CUT]}…"
    if isinstance(value, list):
        return [_cut(each) for each in value[:1]]
    return {key: _cut(each) for key, each in value.items()} if isinstance(value, dict) else value


class _Official(msgspec.Struct):
    mrr: float = msgspec.field(name="MRR@10")
    first: float = msgspec.field(name="recall@1")
    fifty: float = msgspec.field(name="recall@50")


class Scored(msgspec.Struct):
    """A run's scores, as `evaluate --format json` prints them."""

    run: str
    queries: int
    official: _Official


def read_scores(path: Path) -> list[Scored]:
    """Return what `python -m baselines evaluate --format json` printed; :class:`InputError` for any other file."""
    return json_of(read_whole(path), list[Scored], path)


def scores_table(release: Release, builds: Collection[Build], given: dict[str, Path]) -> str:
    """Return a table of systems' scores, the paper's too if the release was made of the official archives.

    Args:
        release: the release that the runs were measured on.
        builds: the builds that its manifest lists.
        given: by part (``dev``, ``cmedqa_test``), the file of :func:`read_scores`.

    Raises:
        InputError: the release has no such part, or the scores are of another number of queries.
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
    """Yield (system, part, scores in percent, source) of the runs that were measured on a part of the release."""
    parts = {part_id(*part): part for part in parts_of({*release.splits()})}
    if name not in parts:
        have = ", ".join(parts) or "no judged dev or test split"
        raise InputError(f"--scores {name}=...: expected a judged split; the release has {have}")
    set_name, split = parts[name]
    found = SETS[set_name]
    queries = len(labelled(release.table(found.qrels, split)))
    for run in read_scores(path):
        if not found.translated and run.queries != queries:
            raise InputError(f"{run.run} was measured on {run.queries:,} queries; {name} has {queries:,}", path=path)
        values = [100 * value for value in msgspec.structs.astuple(run.official)]
        yield as_text(Path(run.run).name), name, values, "measured on this release"


def eval_yaml(configs: Configs, is_reading: bool, framework: str = "") -> str:
    """Return the content of ``eval.yaml``; empty for a release without a judged development or test split.

    Args:
        configs: of the release.
        is_reading: the passages are those of a reading comprehension set.
        framework: ``evaluation_framework``, one that the hub knows; empty: none is named.
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
