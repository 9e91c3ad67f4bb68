"""Run the steps of a plan, each once: one whose output is there, whole, and from the same input is not run again.

Beside an output, ``.NAME.step.json`` says what it was made from: the command, the release's bytes that it reads, the
steps before it, the recipe, the weights that it starts from. What was written is added at the end; so an output without
it, or with another's, is made again. Trainings take up where they were killed by themselves.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct

from baselines.models.libraries import model_commit
from baselines.reproduce.matrix import Step
from baselines.train.recipe import FROM_RECIPE, FROM_RELEASE, SCRATCH, Recipe, read_recipe
from baselines.train.record import commit_begun_from
from baselines.train.start import weights_sha256
from baselines.train.state import states_of
from builders.common.command import InputError, log, main
from builders.common.files import sha256_of, write_text
from builders.common.typed import read_json
from builders.store.layout import REMOVED, SETS, base_set, set_of
from builders.store.reader import Release


@dataclass(frozen=True)
class Finished:
    """What a step's stamp says of the run that finished it: how long it took, in how many processes."""

    seconds: float
    processes: int


def run_steps(
    plan: Mapping[str, Step],
    release: Release,
    *,
    resume: bool = True,
    quiet: bool = False,
    here: bool = False,
    processes: int = 1,
) -> dict[str, Finished]:
    """Run every step of ``plan``, in its order.

    Args:
        plan: what :meth:`baselines.reproduce.matrix.Matrix.plan` gives.
        release: the release that the commands name.
        resume: leave out steps that are done.
        quiet: have the steps log warnings and errors only.
        here: in this process, not in one each: the libraries are loaded once, but nothing is given back in between.
        processes: that a training runs in; its result does not depend on it.

    Raises:
        InputError: a step failed; the steps before it stay done.
    """
    keys: dict[str, str] = {}
    for name, step in plan.items():  # before any runs: a start that cannot be had is said at once
        keys[name] = _known_key(step, [keys[other] for other in step.needs], release, resume)
    finished: dict[str, Finished] = {}
    for name, step in plan.items():
        key = keys[name]
        if resume and (done := _done(step.output, key)):
            log.info("done already: %s", step.output)
        else:
            started = time.monotonic()
            used = processes if step.command[1] == "train" else 1
            stamp = _begin(step, key)
            call([*step.command, *["--no-resume"] * (step.command[1] == "train" and not resume)], quiet, here, used)
            done = Finished(round(time.monotonic() - started, 1), used)
            _write(_stamp(step.output), stamp | asdict(done) | {"files": _listing(step.output)})
        finished[name] = done
    return finished


def call(command: list[str], quiet: bool, here: bool = False, processes: int = 1) -> None:
    """Run one command of the project; an :class:`InputError` naming it where it fails.

    A training is given one graphics card, the first that is visible: on several in one process, transformers would
    wrap the model in torch's DataParallel, which breaks the cached loss. ``processes`` of them are torchrun's.
    """
    log.info("running: %s", shown(command, processes))
    started = time.monotonic()
    words = [*command, *(["--quiet"] if quiet else [])]
    # stdout carries the caller's table alone: what a step prints goes to stderr.
    if here and processes == 1:
        verbs = importlib.import_module(f"{command[0]}.__main__").VERBS
        with contextlib.redirect_stdout(sys.stderr):
            code = main(command[0], "", verbs, words[1:])
    else:
        environment = dict(os.environ)
        if command[1] == "train" and processes == 1:
            environment["CUDA_VISIBLE_DEVICES"] = environment.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        code = _wait(subprocess.Popen([sys.executable, *_run(words, processes)], stdout=2, env=environment))
    if here and code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
        raise KeyboardInterrupt  # the step has cleaned up
    if code:
        raise InputError(f"this step failed with exit code {code}: {shown(command, processes)}")
    log.info("took %.0f s", time.monotonic() - started)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a step's process, which is stopped where this one is: it cleans up after itself."""
    try:
        return process.wait()
    except BaseException:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)  # Ctrl-C in a terminal reaches both
        process.terminate()
        process.wait()
        raise


def _run(command: list[str], processes: int) -> list[str]:
    """The words after ``python``: of a command, or of torchrun with several processes of it."""
    if processes == 1:
        return ["-m", *command]
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m", *command]


def shown(command: list[str], processes: int = 1) -> str:
    """A command as one types it."""
    return "python " + shlex.join(_run(command, processes))


def _known_key(step: Step, read: list[str], release: Release, resume: bool) -> str:
    """:func:`_key`; of a training that is done, whose start nobody can be asked for now, with the commit it began from.

    Raises :class:`InputError` where it is not done.
    """
    try:
        return _key(step, read, release)
    except InputError as error:
        commit = _started_from(step) if resume else None
        key = _key(step, read, release, commit) if commit else ""
        if not _done(step.output, key):
            raise
        log.warning("%s; %s began from the commit %s", error, step.output, commit)
        return key


def _started_from(step: Step) -> str | None:
    """The commit of its start on the hub that a training's output names."""
    return commit_begun_from(step.output, _recipe(step).model.start) if step.command[1] == "train" else None


def _recipe(step: Step) -> Recipe:
    words = step.command
    return read_recipe(words[2], [value for option, value in itertools.pairwise(words) if option == "--set"])


def _key(step: Step, read: list[str], release: Release, commit: str | None = None) -> str:
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
    if start == SCRATCH or start.startswith(FROM_RECIPE):
        return None
    if Path(start).is_dir():
        return weights_sha256(Path(start))
    return model_commit(
        start, recipe.model.revision, f"--settings FILE with [{recipe.name}] model.start = DIR does without"
    )


def _stamp(output: Path) -> Path:
    return output.with_name(f".{output.name}.step.json")


def _begin(step: Step, key: str) -> dict[str, Any]:
    """The stamp of a step that begins. The states of a training that this place was for before are removed first."""
    stamp, path = {"key": key, "command": step.command}, _stamp(step.output)
    if path.exists() and _read(path).key != key:
        shutil.rmtree(states_of(step.output), ignore_errors=True)
    _write(path, stamp)
    return stamp


class _Stamp(Struct):
    """What is read of a stamp; earlier versions wrote neither ``seconds`` nor ``processes``."""

    key: str = ""
    files: dict[str, Any] = {}
    seconds: float = 0.0
    processes: int = 1


def _read(path: Path) -> _Stamp:
    """A stamp; an empty one, which is of no step, where there is none or it is damaged."""
    try:
        return read_json(path, _Stamp)
    except (OSError, InputError):
        return _Stamp()


def _write(path: Path, stamp: dict[str, Any]) -> None:
    write_text(path, json.dumps(stamp, ensure_ascii=False, indent=1) + "\n")


def _done(output: Path, key: str) -> Finished | None:
    """What the stamp says of a step that left just this; None where it has to be run."""
    stamp = _read(_stamp(output))
    if stamp.key != key or not output.exists() or stamp.files != _listing(output):
        return None
    return Finished(stamp.seconds, stamp.processes)


def _listing(output: Path) -> dict[str, Any]:
    """A file's SHA-256; for a directory, its files' sizes."""
    if output.is_file():
        return {output.name: sha256_of(output)}
    files = sorted(path for path in output.rglob("*") if path.is_file())
    return {path.relative_to(output).as_posix(): path.stat().st_size for path in files}
