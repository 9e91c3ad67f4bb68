"""Run the steps of a plan, each once: one whose output is there, whole, and from the same input is not run again.

Beside an output, ``.NAME.step.json`` says what it was made from: the command, the release's bytes that it reads, the
steps before it, the recipe. It is written last; so an output without it, or with another's, is made again. Trainings
take up where they were killed by themselves.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from baselines.reproduce.matrix import Step
from baselines.train.recipe import FROM_RECIPE, Recipe, read_recipe
from builders.common.command import InputError, log, main
from builders.common.files import sha256_of, write_text
from builders.store.layout import SETS
from builders.store.reader import Release


def run_steps(
    plan: Mapping[str, Step], release: Release, *, resume: bool = True, quiet: bool = False, here: bool = False
) -> None:
    """Run every step of ``plan``, in its order.

    Args:
        plan: what :meth:`baselines.reproduce.matrix.Matrix.plan` gives.
        release: the release that the commands name.
        resume: leave out steps that are done.
        quiet: have the steps log warnings and errors only.
        here: in this process, not in one each: the libraries are loaded once, but nothing is given back in between.

    Raises:
        InputError: a step failed; the steps before it stay done.
    """
    outputs = {str(step.output): name for name, step in plan.items()}
    keys: dict[str, str] = {}
    for name, step in plan.items():
        read = [keys[outputs[word]] for word in step.command if outputs.get(word) in keys]
        keys[name] = key = _key(step, read, release, plan, keys)
        if resume and _is_done(step.output, key):
            log.info("done already: %s", step.output)
            continue
        call(step.command, quiet, here)
        stamp = {"key": key, "command": step.command, "files": _listing(step.output)}
        write_text(_stamp(step.output), json.dumps(stamp, ensure_ascii=False, indent=1) + "\n")


def call(command: list[str], quiet: bool, here: bool = False) -> None:
    """Run one command of the project; an :class:`InputError` naming it where it fails."""
    log.info("running: %s", shown(command))
    started = time.monotonic()
    words = [*command, *(["--quiet"] if quiet else [])]
    # stdout carries the caller's table alone: what a step prints goes to stderr.
    if here:
        verbs = importlib.import_module(f"{command[0]}.__main__").VERBS
        with contextlib.redirect_stdout(sys.stderr):
            code = main(command[0], "", verbs, words[1:])
    else:
        code = subprocess.run([sys.executable, "-m", *words], stdout=2, check=False).returncode
    if code:
        raise InputError(f"this step failed with exit code {code}: {shown(command)}")
    log.info("took %.0f s", time.monotonic() - started)


def shown(command: list[str]) -> str:
    """A command as one types it."""
    return "python -m " + shlex.join(command)


def _key(step: Step, read: list[str], release: Release, plan: Mapping[str, Step], keys: Mapping[str, str]) -> str:
    """Names everything that the step's output depends on."""
    about: dict[str, Any] = {"command": [w for w in step.command if w != str(release.path)], "read": read}
    set_name = step.command[step.command.index("--set") + 1] if "--set" in step.command else "main"
    if step.command[1] == "train":
        words = step.command
        overrides = [value for option, value in itertools.pairwise(words) if option == "--set"]
        recipe = read_recipe(words[2], overrides)
        about["recipe"] = recipe.resolved()
        set_name = recipe.data.set
        about["start"] = [keys[name] for name in plan if plan[name].output == _start(recipe, step.output)]
    configs = SETS[set_name]
    wanted = {configs.corpus, configs.queries, configs.qrels, "queries"}
    about["data"] = [[*split, release.fingerprint(*split)] for split in release.splits() if split[0] in wanted]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _start(recipe: Recipe, output: Path) -> Path | None:
    """The checkpoint beside ``output`` that a training starts from, which stands in no word of its command."""
    start = recipe.model.start
    return output.with_name(start.removeprefix(FROM_RECIPE)) if start.startswith(FROM_RECIPE) else None


def _stamp(output: Path) -> Path:
    return output.with_name(f".{output.name}.step.json")


def _is_done(output: Path, key: str) -> bool:
    try:
        stamp = json.loads(_stamp(output).read_text(encoding="utf-8"))
        return bool(stamp["key"] == key and output.exists() and stamp["files"] == _listing(output))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _listing(output: Path) -> dict[str, Any]:
    """A file's SHA-256; for a directory, its files' sizes."""
    if output.is_file():
        return {output.name: sha256_of(output)}
    files = sorted(path for path in output.rglob("*") if path.is_file())
    return {path.relative_to(output).as_posix(): path.stat().st_size for path in files}
