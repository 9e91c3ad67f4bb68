"""Run the steps of a plan. A verb returns at once if the same call has finished its output.

``steps.json`` in the folder of ``reproduce --out`` records how long each step took.
"""

import contextlib
import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, to_builtins

from baselines.core.checkpoint import write_json
from baselines.reproduce.plan import Step
from baselines.reproduce.verb_calls import call_verb, find_function
from baselines.retrieve.hub_models import model_commit
from builders.core.errors import InputError, log
from builders.core.finished_outputs import NotFinished, only_if_finished
from builders.core.typed import read_json

# Seconds until a step is terminated. Ctrl-C in a terminal reaches both processes, and this process must soon end.
_CTRL_C = 0.5
_CHECKOUT = Path(__file__).resolve().parents[2]
_RUNS = "steps.json"
# The verbs that know a finished output. Other verbs take seconds, and run each time.
_KEEPING = ("bm25", "mine", "train", "encode", "search", "rerank")


class StepRun(Struct):
    """The duration of a step in seconds, and the number of its processes."""

    seconds: float = 0.0
    processes: int = 1


def run_steps(
    steps: Mapping[str, Step], out: Path, *, one_process: bool = False, processes: int = 1
) -> dict[str, StepRun]:
    """Run every step of a plan that is not finished, and return the durations of all steps.

    Args:
        steps: the steps in the order in which they run, by name.
        out: the folder of `reproduce --out`.
        one_process: run every step in this process. Libraries load once, but memory is not released between steps.
        processes: number of processes of a training. The result does not depend on this number.

    Raises:
        InputError: a step failed. The outputs of earlier steps are complete.
    """
    for step in steps.values():  # before any step runs, so that a missing starting checkpoint fails at once
        expect_start(step)
    runs = _read_runs(out)
    for name, step in steps.items():
        if is_finished(step):
            log.info("skipped, already done: %s", step.output)
            continue
        process_count = processes if step.verb == "train" else 1
        started = time.monotonic()
        call(step, here=one_process, processes=process_count)
        runs[name] = StepRun(round(time.monotonic() - started, 1), process_count)
        write_json(out / _RUNS, to_builtins(runs))
    return {name: runs.get(name, StepRun()) for name in steps}


def is_finished(step: Step) -> bool:
    """True if an equal call of the step's verb has finished the step's output."""
    if step.verb not in _KEEPING:
        return False
    try:
        with only_if_finished():
            find_function(step.verb)(**step.arguments, quiet=True)
    except (NotFinished, InputError):  # an input of the step may be the output of a step that has not run
        return False
    return True


def expect_start(step: Step) -> None:
    """Raise :class:`InputError` if a training starts from a model that is neither a folder nor on the hub.

    A finished training needs no hub.
    """
    if step.verb != "train":
        return
    recipe = step.recipe()
    start = recipe.model.start
    if recipe.model.is_pretrained and not Path(start).is_dir() and not is_finished(step):
        remedy = f"--settings FILE with [{recipe.name}] model.start = DIR uses a local folder instead"
        model_commit(start, recipe.model.revision, remedy)


def _read_runs(out: Path) -> dict[str, StepRun]:
    """Return the durations of earlier steps. A damaged or missing file has none."""
    try:
        return read_json(out / _RUNS, dict[str, StepRun])
    except (OSError, InputError):
        return {}


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
            code = call_verb(step.verb, step.arguments)
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
            process.wait(timeout=_CTRL_C)
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
