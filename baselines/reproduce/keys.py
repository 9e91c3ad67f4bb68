"""What a step's output depends on: its command, the data, the recipe, the start; and the version of the code."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from baselines.checkpoint import weights_sha256
from baselines.reproduce.code import code_of
from baselines.reproduce.matrix import Step
from baselines.retrieve.hub_models import model_commit
from baselines.train.recipe import FROM_RECIPE, FROM_RELEASE, MADE, Recipe, read_recipe
from baselines.train.resume import start_commit
from builders.store.layout import REMOVED, SETS, base_set, set_of
from builders.store.reader import Release


def code_of_steps(plan: Mapping[str, Step]) -> dict[str, str]:
    """The version of the code behind each step's output: its own, and that of the steps before it."""
    found: dict[str, str] = {}
    for name, step in plan.items():
        verbs = importlib.import_module(f"{step.command[0]}.__main__").VERBS
        own = [code_of(verbs[step.command[1]]), *(found[other] for other in step.needs)]
        found[name] = hashlib.sha256(" ".join(own).encode()).hexdigest()
    return found


def started_from(step: Step) -> str | None:
    """The commit of its start on the hub that a training's output names."""
    return start_commit(step.output, _recipe(step).model.start) if step.command[1] == "train" else None


def _recipe(step: Step) -> Recipe:
    words = step.command
    return read_recipe(words[2], [value for option, value in itertools.pairwise(words) if option == "--set"])


def key_of_step(step: Step, read: list[str], release: Release, commit: str | None = None) -> str:
    """Names everything that the step's output depends on; ``read``: the keys of the steps that it needs.

    ``commit``: of a start on the hub; None: the one that it is at now.
    """
    about: dict[str, Any] = {"command": [w for w in step.command if w != str(release.path)], "read": read}
    joined: set[str] = set()
    set_name = step.command[step.command.index("--set") + 1] if "--set" in step.command else "main"
    if step.command[1] == "train":
        recipe = _recipe(step)
        about["recipe"] = recipe.resolved()
        about["start"] = commit or _start(recipe)
        set_name = recipe.data.set
        if recipe.data.negatives == FROM_RELEASE:
            joined = {*SETS[base_set(set_name)].joined.values()}
        if recipe.data.similar:
            joined.add(REMOVED)
    if "--queries" in step.command:
        joined.add(step.command[step.command.index("--queries") + 1])
    if "--sample" in step.command:
        joined.add(step.command[step.command.index("--sample") + 1])
    configs = set_of(set_name)
    wanted = {configs.corpus, configs.queries, configs.qrels, "queries"} | joined
    about["data"] = [[*split, release.fingerprint(*split)] for split in release.splits() if split[0] in wanted]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _start(recipe: Recipe) -> str | None:
    """The weights that a recipe starts from: their SHA-256 or their commit; None where a step, or nobody, made them."""
    start = recipe.model.start
    if start in MADE or start.startswith(FROM_RECIPE):
        return None
    if Path(start).is_dir():
        return weights_sha256(Path(start))
    return model_commit(
        start, recipe.model.revision, f"--settings FILE with [{recipe.name}] model.start = DIR does without"
    )
