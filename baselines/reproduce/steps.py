"""Run the steps of a plan, each once: one whose output is there, whole, and from the same input is not run again.

Beside an output, ``.NAME.step.json`` says what it was made from: the command, the release's bytes that it reads, the
steps before it, the recipe, the weights that it starts from (:mod:`.keys`), and by which version of the code. What was
written is added at the end; so an output without it, or with another's, is made again. Trainings take up where they
were killed by themselves.
"""

from __future__ import annotations

import contextlib
import importlib
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

from baselines.checkpoint import check_hashes
from baselines.reproduce.keys import code_of_steps, key_of_step, started_from
from baselines.reproduce.matrix import Step
from baselines.train.resume import states_of
from builders.core.command import main
from builders.core.errors import InputError, log
from builders.core.files import sha256_of, write_text
from builders.core.typed import read_json
from builders.store.reader import Release

_BEFORE = ".before"


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
    any_code: bool = False,
) -> dict[str, Finished]:
    """Run every step of ``plan``, in its order.

    Args:
        plan: what :meth:`baselines.reproduce.matrix.Matrix.plan` gives.
        release: the release that the commands name.
        resume: leave out steps that are done.
        quiet: have the steps log warnings and errors only.
        here: in this process, not in one each: the libraries are loaded once, but nothing is given back in between.
        processes: that a training runs in; its result does not depend on it.
        any_code: what another version of the code has made is done, too.

    Raises:
        InputError: a step failed; the steps before it stay done.
    """
    keys: dict[str, str] = {}
    for name, step in plan.items():  # before any runs: a start that cannot be had is said at once
        keys[name] = _known_key(step, [keys[other] for other in step.needs], release, resume)
    codes = code_of_steps(plan)
    if resume and not any_code:
        _warn_of_other_code(plan, keys, codes)
    finished: dict[str, Finished] = {}
    for name, step in plan.items():
        key = keys[name]
        if resume and (done := _done(step.output, key, "" if any_code else codes[name])):
            log.info("done already: %s", step.output)
        else:
            started = time.monotonic()
            used = processes if step.command[1] == "train" else 1
            stamp = _begin(step, key, codes[name], any_code)
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
    """Its key; of a training that is done, whose start nobody can be asked for now, with the commit it began from.

    Raises :class:`InputError` where it is not done.
    """
    try:
        return key_of_step(step, read, release)
    except InputError as error:
        commit = started_from(step) if resume else None
        key = key_of_step(step, read, release, commit) if commit else ""
        if not _done(step.output, key):
            raise
        log.warning("%s; %s began from the commit %s", error, step.output, commit)
        return key


def _stamp(output: Path) -> Path:
    return output.with_name(f".{output.name}.step.json")


def _warn_of_other_code(plan: Mapping[str, Step], keys: Mapping[str, str], codes: Mapping[str, str]) -> None:
    stamps = {name: _read(_stamp(step.output)) for name, step in plan.items()}
    finished = [name for name, stamp in stamps.items() if stamp.key == keys[name] and stamp.files]
    if other := [str(plan[name].output) for name in finished if stamps[name].code != codes[name]]:
        log.warning(
            "%d steps were done by another version of the code and are run again (--any-code keeps them; of a model, "
            "the earlier one stays as NAME%s): %s",
            *(len(other), _BEFORE, ", ".join(other)),
        )


def _begin(step: Step, key: str, code: str, any_code: bool) -> dict[str, Any]:
    """The stamp of a step that begins.

    The states of a training that this place was for before are removed first; of another version of the code, all that
    it has left, but a finished model, which is kept beside.
    """
    stamp, path = {"key": key, "code": code, "command": step.command}, _stamp(step.output)
    if path.exists() and (earlier := _read(path)) and (earlier.key != key or (earlier.code != code and not any_code)):
        shutil.rmtree(states_of(step.output), ignore_errors=True)
        if earlier.key == key:
            _put_away(step)
    _write(path, stamp)
    return stamp


def _put_away(step: Step) -> None:
    """What a step has left goes, since its verb would take it for done; a model is kept under another name."""
    shutil.rmtree(step.output.with_name(f".{step.output.name}.building"), ignore_errors=True)
    if step.command[1] == "train" and step.output.is_dir():
        before = step.output.with_name(step.output.name + _BEFORE)
        shutil.rmtree(before, ignore_errors=True)
        step.output.rename(before)
    elif step.output.is_dir():
        shutil.rmtree(step.output)
    else:
        step.output.unlink(missing_ok=True)


class _Stamp(Struct):
    """What is read of a stamp; earlier versions wrote neither ``seconds`` nor ``processes``, nor ``code``."""

    key: str = ""
    code: str = ""
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


def _done(output: Path, key: str, code: str = "") -> Finished | None:
    """Return the stamp of a finished step; None if the step has to be run. No ``code``: of any version.

    Raises :class:`InputError` where a file of a checkpoint is damaged.
    """
    stamp = _read(_stamp(output))
    if stamp.key != key or code not in ("", stamp.code) or not output.exists() or stamp.files != _listing(output):
        return None
    check_hashes(output)
    return Finished(stamp.seconds, stamp.processes)


def _listing(output: Path) -> dict[str, Any]:
    """A file's SHA-256; for a directory, its files' sizes."""
    if output.is_file():
        return {output.name: sha256_of(output)}
    files = sorted(path for path in output.rglob("*") if path.is_file())
    return {path.relative_to(output).as_posix(): path.stat().st_size for path in files}
