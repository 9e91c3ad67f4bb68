"""Run the steps of a plan. A step is skipped if its output is complete and was made from the same input.

Beside an output, ``.NAME.step.json`` records the step's key (:func:`key_of_step`). The key covers the arguments, the
data that the step reads, earlier steps, the recipe and the starting checkpoint. The output's files are recorded last.
If files are missing or differ, the step runs again. Trainings resume.
"""

import contextlib
import hashlib
import json
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from baselines.core.checkpoint import check_hashes, weights_sha256, write_json
from baselines.reproduce.plan import Step
from baselines.reproduce.verb_calls import call_verb
from baselines.retrieve.hub_models import model_commit
from baselines.train.recipe import FROM_RECIPE, FROM_RELEASE, MADE, Recipe
from baselines.train.resume import start_commit, states_of
from builders.core.errors import InputError, log
from builders.core.files import sha256_of
from builders.core.typed import read_json
from builders.store.layout import REMOVED, SETS, base_set, set_of
from builders.store.reader import Release

_CHECKOUT = Path(__file__).resolve().parents[2]


class Stamp(Struct):
    """The record of a step beside its output.

    ``files`` lists the output's files if the step is finished. ``seconds`` and ``processes`` describe the step's run.
    """

    key: str = ""
    command: list[str] = []
    files: dict[str, Any] = {}
    seconds: float = 0.0
    processes: int = 1


def run_steps(
    steps: Mapping[str, Step], release: Release, *, one_process: bool = False, processes: int = 1
) -> dict[str, Stamp]:
    """Run every step of a plan that is not finished, and return the stamps of all steps.

    Args:
        steps: the steps in the order in which they run, by name.
        release: the release that the steps read.
        one_process: run every step in this process. Libraries load once, but memory is not released between steps.
        processes: number of processes of a training. The result does not depend on this number.

    Raises:
        InputError: a step failed. The outputs of earlier steps are complete.
    """
    keys: dict[str, str] = {}
    for name, step in steps.items():  # before any step runs, so that a missing starting checkpoint fails at once
        keys[name] = _known_key(step, [keys[other] for other in step.needs], release)
    stamps: dict[str, Stamp] = {}
    for name, step in steps.items():
        stamp = _done(step.output, keys[name])
        if stamp:
            log.info("skipped, already done: %s", step.output)
        else:
            stamp = Stamp(keys[name], step.words(), processes=processes if step.verb == "train" else 1)
            _begin(step, stamp)
            started = time.monotonic()
            call(step, here=one_process, processes=stamp.processes)
            stamp.files = _listing(step.output)
            stamp.seconds = round(time.monotonic() - started, 1)
            write_json(_stamp(step.output), to_builtins(stamp))
        stamps[name] = stamp
    return stamps


def sample_command(release: Path) -> Step:
    """Return the step that builds the embedded sample."""
    raw = _CHECKOUT / "builders" / "sample"
    if raw.is_relative_to(Path.cwd()):
        raw = raw.relative_to(Path.cwd())
    return Step("sample", "release", {"raw": [str(raw)], "out": str(release)}, release)


def call(step: Step, quiet: bool = False, here: bool = False, processes: int = 1) -> None:
    """Run one step, in this process if ``here``. Raises :class:`InputError` with the command if the step fails.

    The step logs only warnings and errors if ``quiet``, or if this process does.

    A training in one process gets only the first visible GPU. With several GPUs, transformers would wrap the model in
    torch's DataParallel, which breaks the cached loss. Torchrun starts several ``processes``.
    """
    quiet = quiet or not log.isEnabledFor(logging.INFO)
    command = shell_line(step, processes)
    log.info("running: %s", command)
    started = time.monotonic()
    # stdout is for the report, so the output of a step goes to stderr.
    if here and processes == 1:
        with contextlib.redirect_stdout(sys.stderr):
            code = call_verb(step.verb, step.arguments, quiet=quiet)
    else:
        environment = dict(os.environ)
        if step.verb == "train" and processes == 1:
            environment["CUDA_VISIBLE_DEVICES"] = environment.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        words = [*step.words(), *(["--quiet"] if quiet else [])]
        code = _wait(subprocess.Popen([sys.executable, *_run(words, processes)], stdout=2, env=environment))
    if here and code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
        raise KeyboardInterrupt  # the step has cleaned up by now
    if code:
        raise InputError(f"this step failed with exit code {code}: {command}")
    log.info("finished after %.0f s", time.monotonic() - started)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for a step's process and return its exit code. If this process is stopped, terminate the step."""
    try:
        return process.wait()
    except BaseException:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)  # Ctrl-C in a terminal reaches both processes
        process.terminate()
        process.wait()
        raise


def _run(command: list[str], processes: int) -> list[str]:
    """Return the words after ``python``. For several processes, torchrun runs the command."""
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    return ["-m", *torchrun * (processes > 1), *command]


def shell_line(step: Step, processes: int = 1) -> str:
    """Return a step's command as typed in a shell. ``processes`` only applies to a training."""
    return "python " + shlex.join(_run(step.words(), processes if step.verb == "train" else 1))


def _known_key(step: Step, read: list[str], release: Release) -> str:
    """Return the step's key. Offline, a finished training's key has the recorded commit of its starting checkpoint.

    Raises :class:`InputError` if the hub cannot be reached and the training is not finished.
    """
    try:
        return key_of_step(step, read, release)
    except InputError as error:
        commit = start_commit(step.output, step.recipe().model.start) if step.verb == "train" else None
        key = key_of_step(step, read, release, commit) if commit else ""
        if not _done(step.output, key):
            raise
        log.warning("%s; using %s, which started from the commit %s", error, step.output, commit)
        return key


def key_of_step(step: Step, read: list[str], release: Release, commit: str | None = None) -> str:
    """Hash everything that the step's output depends on. ``read`` has the keys of the steps that this step needs.

    ``commit`` is the commit of a starting checkpoint on the hub. None means the newest commit.
    """
    arguments = {name: value for name, value in step.arguments.items() if name != "release"}
    about: dict[str, Any] = {"verb": step.verb, "arguments": arguments, "read": read}
    set_name = arguments.get("set", "main")
    configs_read = {arguments[name] for name in ("queries", "sample") if name in arguments}
    if step.verb == "train":
        recipe = step.recipe()
        about["recipe"] = recipe.resolved()
        about["start"] = commit or _start(recipe)
        set_name = recipe.data.set
        if recipe.data.negatives == FROM_RELEASE:
            configs_read |= {*SETS[base_set(set_name)].joined.values()}
        if recipe.data.similar:
            configs_read.add(REMOVED)
    configs = set_of(set_name)
    configs_read |= {configs.corpus, configs.queries, configs.qrels, "queries"}
    about["data"] = [[*split, release.fingerprint(*split)] for split in release.splits() if split[0] in configs_read]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _start(recipe: Recipe) -> str | None:
    """Return the SHA-256 or commit of the starting checkpoint. None if a step or the training makes this checkpoint."""
    start = recipe.model.start
    if start in MADE or start.startswith(FROM_RECIPE):
        return None
    if Path(start).is_dir():
        return weights_sha256(Path(start))
    remedy = f"--settings FILE with [{recipe.name}] model.start = DIR uses a local folder instead"
    return model_commit(start, recipe.model.revision, remedy)


def _stamp(output: Path) -> Path:
    return output.with_name(f".{output.name}.step.json")


def _begin(step: Step, stamp: Stamp) -> None:
    """Write the stamp of a step that begins. First, remove the saved states of a training with other input."""
    path = _stamp(step.output)
    if path.exists() and _read(path).key != stamp.key:
        shutil.rmtree(states_of(step.output), ignore_errors=True)
    write_json(path, to_builtins(stamp))


def _read(path: Path) -> Stamp:
    try:
        return read_json(path, Stamp)
    except (OSError, InputError):
        return Stamp()


def _done(output: Path, key: str) -> Stamp | None:
    """Return the stamp of a finished step; None if the step has to run.

    Raises :class:`InputError` if a file of a checkpoint is damaged.
    """
    stamp = _read(_stamp(output))
    if stamp.key != key or not output.exists() or stamp.files != _listing(output):
        return None
    check_hashes(output)
    return stamp


def _listing(output: Path) -> dict[str, Any]:
    if output.is_file():
        return {output.name: sha256_of(output)}
    return {
        path.relative_to(output).as_posix(): path.stat().st_size for path in sorted(output.rglob("*")) if path.is_file()
    }
