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
from builders.core.hub import as_yaml
from builders.core.read_files import read_whole
from builders.core.tables import as_code, as_text
from builders.core.typed import json_of
from builders.store.benchmark_tasks import MEASURES, part_id, parts_of, task_id
from builders.store.card import Configs, is_official, pretty_name, rows_of, shown_config
from builders.store.judgments import labelled_queries
from builders.store.layout import JOINED, SETS, schema_of
from builders.store.manifest import Build
from builders.store.published import published_figures
from builders.store.reader import Release

_CUT = 60  # characters of a text in the example
_BATCH_ROWS = 64  # few, because usually the first row is the example


def example_block(release: Release, configs: Configs) -> str:
    """Return the first joined row with a positive passage as JSON in a code block. Texts and lists are shortened.

    A release without joined rows gives a row of its first config. "" if the release has no such row. ``configs`` has
    the shards of each split of each config.
    """
    config = shown_config(configs)
    split = next(iter(configs[config]))
    example_row = _first_row(release, config, split)
    if example_row is None:
        return ""
    # Three backticks would end the code block. Control characters could move the cursor of a terminal.
    row_text = json.dumps(_shorten(example_row), ensure_ascii=False, indent=1).replace("```", r"\u0060``")
    shown_text = "".join(map(_escape_control, row_text))
    return f"`{config}`, {split}:\n\n```json\n{shown_text}\n```\n"


def _first_row(release: Release, config: str, split: str) -> dict[str, Any] | None:
    """Return a split's first row; the first row with a positive passage if the config has passages."""
    has_passages = set(JOINED.names) <= set(schema_of(config).names)
    for batch in release.batches(config, split, rows=_BATCH_ROWS):
        for row in batch.to_pylist():
            if not has_passages or row["positive_passages"]:
                return dict(row)
    return None


def _escape_control(character: str) -> str:
    """Return a character, or its JSON escape if it cannot be printed. A line end stays."""
    if character == "\n" or character.isprintable():
        return character
    return json.dumps(character)[1:-1]  # the escape, without the quotes


def _shorten(value: Any) -> Any:
    """Return a JSON value with shortened texts, and with only the first element of each list."""
    if isinstance(value, str):
        return value if len(value) <= _CUT else f"{value[:_CUT]}…"
    if isinstance(value, list):
        return [_shorten(element) for element in value[:1]]
    if isinstance(value, dict):
        return {key: _shorten(element) for key, element in value.items()}
    return value


class _OfficialMeasures(msgspec.Struct):
    mrr_at_10: float = msgspec.field(name="MRR@10")
    recall_at_1: float = msgspec.field(name="recall@1")
    recall_at_50: float = msgspec.field(name="recall@50")


class ScoredSplit(msgspec.Struct):
    """The scores of a run in the output of `evaluate --format json`."""

    run: str
    queries: int
    official: _OfficialMeasures


def read_scores(path: Path) -> list[ScoredSplit]:
    """Read the output of `python -m baselines evaluate --format json`. Raise :class:`InputError` for other files."""
    return json_of(read_whole(path), list[ScoredSplit], path)


def scores_table(release: Release, builds: Collection[Build], score_files: dict[str, Path]) -> str:
    """Return a Markdown table of scores. A release from the official archives also gets the paper's scores.

    ``score_files`` maps a part (``dev``, ``cmedqa_test``) to a file for :func:`read_scores`. Raises
    :class:`InputError` if the release lacks the part, or if a run was measured on another number of queries than the
    part has (except for a translated or perturbed set). The result is "" if there are no scores.
    """
    # Rows of (system, part, scores in percent, source): the measured runs come first, then the paper's systems.
    rows: list[tuple[str, str, list[float], str]] = []
    for part_name, scores_path in score_files.items():
        rows += _measured_rows(release, part_name, scores_path)
    if is_official(builds):
        for paper_row in published_figures()["scores"]:
            rows.append((paper_row["system"], paper_row["split"], paper_row["values"], paper_row["source"]))
    if not rows:
        return ""
    lines = [f"| | | {' | '.join(MEASURES)} | |", "|---|---|---:|---:|---:|---|"]
    for system, part_name, values, source in rows:
        score_cells = " | ".join(f"{value:.2f}" for value in values)
        lines.append(f"| {system} | {as_code(part_name)} | {score_cells} | {source} |")
    return "\n".join(lines)


def _measured_rows(release: Release, part_name: str, scores_path: Path) -> Iterator[tuple[str, str, list[float], str]]:
    """Yield (system, part, scores in percent, source) for the runs in a file of scores.

    ``part_name`` is the part on which the runs were measured. Errors are those of :func:`scores_table`.
    """
    parts = {part_id(set_name, split): (set_name, split) for set_name, split in parts_of(set(release.splits()))}
    if part_name not in parts:
        judged_parts = ", ".join(parts) or "no judged dev or test split"
        raise InputError(f"--scores {part_name}=...: expected a judged split; the release has {judged_parts}")
    set_name, split = parts[part_name]
    configs = SETS[set_name]
    query_count = len(labelled_queries(release.table(configs.qrels, split)))
    for run in read_scores(scores_path):
        # A set with original_column is translated or perturbed, and a run may lack some of its queries.
        if not configs.original_column and run.queries != query_count:
            problem = f"{run.run} was measured on {run.queries:,} queries; {part_name} has {query_count:,}"
            raise InputError(problem, path=scores_path)
        percentages = [100 * value for value in msgspec.structs.astuple(run.official)]
        yield as_text(Path(run.run).name), part_name, percentages, f"measured on {run.queries:,} questions"


def eval_yaml(configs: Configs, is_reading: bool, framework: str = "") -> str:
    """Return the content of ``eval.yaml``; empty for a release without a judged dev or test split.

    ``configs`` has the shards of each split of each config. ``is_reading`` is True for a release from a reading
    comprehension set. ``framework`` is a value of ``evaluation_framework`` that the hub knows, or empty to omit the
    key.
    """
    all_splits: set[tuple[str, str]] = set()
    for config, files_by_split in configs.items():
        all_splits.update((config, split) for split in files_by_split)
    parts = list(parts_of(all_splits))
    if not parts:
        return ""

    # The description names the size of the collection, and of each part.
    first_set, _ = parts[0]
    passage_count = rows_of(configs[SETS[first_set].corpus]["corpus"])
    part_sizes = []
    tasks = []
    for set_name, split in parts:
        query_config = SETS[set_name].queries
        part_sizes.append(f"{rows_of(configs[query_config][split]):,} ({set_name} {split})")
        for measure in MEASURES:
            tasks.append({"id": task_id(set_name, split, measure), "config": query_config, "split": split})
    content: dict[str, Any] = {
        "name": pretty_name(is_reading),
        "description": "Chinese passage retrieval: find the passages that answer a question, in a collection of"
        f" {passage_count:,}. Questions: {', '.join(part_sizes)}. Figures are percent, higher is better: MRR@10, and"
        " the share of questions with an answer in the top 1 and the top 50.",
    }
    if framework:
        content["evaluation_framework"] = framework
    content["tasks"] = tasks
    return as_yaml(content)
