"""``eval.yaml``: what makes a dataset of the hub a benchmark, on whose page models' figures are ranked.

Its tasks: :mod:`builders.store.tasks`. The hub shows the ranking once it has the dataset on its list (its page on
evaluation results says where to ask), and knows frameworks by the names in huggingface.js,
packages/tasks/src/eval.ts: ours is not among them, so that none is named unless the user names one.
"""

from __future__ import annotations

from typing import Any

from builders.core.hub import as_yaml
from builders.store.card_head import Configs, pretty_name, rows_of
from builders.store.layout import SETS
from builders.store.tasks import parts_of, tasks_of


def eval_yaml(configs: Configs, reading: bool, framework: str = "") -> str:
    """The file's content; empty for a release without a judged development or test split.

    Args:
        configs: of the release.
        reading: the passages are those of a reading comprehension set.
        framework: ``evaluation_framework``, one that the hub knows; empty: none is named.
    """
    splits = {(config, split) for config, found in configs.items() for split in found}
    tasks = tasks_of(splits)
    if not tasks:
        return ""
    about = "Chinese passage retrieval: find the passages that answer a question, in a collection of"
    about += f" {rows_of(configs[SETS[tasks[0].set].corpus]['corpus']):,}."
    asked = ", ".join(
        f"{rows_of(configs[SETS[name].queries][split]):,} ({name} {split})" for name, split in parts_of(splits)
    )
    content: dict[str, Any] = {
        "name": pretty_name(reading),
        "description": f"{about} Questions: {asked}. Figures are percent, higher is better: MRR@10, and the share of"
        " questions with an answer in the top 1 and the top 50.",
        **({"evaluation_framework": framework} if framework else {}),
        "tasks": [{"id": task.id, "config": task.config, "split": task.split} for task in tasks],
    }
    return as_yaml(content)
