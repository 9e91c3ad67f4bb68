"""Run steps. A verb returns at once if the same call has finished its output.

``steps.json`` in the folder of ``reproduce --out`` records how long each step took.
"""

import contextlib
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, to_builtins

from baselines.core.checkpoint import write_json
from baselines.reproduce.steps import Step
from baselines.retrieve.hub_models import model_commit
from builders.core.errors import InputError, log
from builders.core.exit_codes import exit_code
from builders.core.finished_outputs import is_finished
from builders.core.typed import Count, NotNegativeNumber, read_json

_RUNS = "steps.json"
_CTRL_C_SECONDS = 0.5  # time for a step to end by itself before it is terminated


class StepRun(Struct):
    """The duration of a step in seconds, and the number of its processes. The defaults stand for a missing record."""

    seconds: NotNegativeNumber = 0.0
    processes: Count = 1


def run_steps(
    steps: Mapping[str, Step], out: Path, *, one_process: bool = False, processes: int = 1
) -> dict[str, StepRun]:
    """Run every step that is not finished, and return the durations of all steps, by name.

    A step that was finished before has its recorded duration, or 0 without a record.

    Args:
        steps: the steps in the order in which they run, by name.
        out: the folder of `reproduce --out`.
        one_process: run every step in this process. Libraries load once, but memory is not released between steps.
        processes: number of processes of a training. The result does not depend on this number.

    Raises:
        InputError: a step failed. The outputs of earlier steps are complete.
    """
    # Before any step runs, so that a missing starting checkpoint fails at once.
    for step in steps.values():
        expect_start(step)
    runs = _read_runs(out)
    for name, step in steps.items():
        if is_finished(step.function, step.arguments):
            log.info("skipped, already done: %s", step.output)
            continue
        process_count = processes if step.verb == "train" else 1
        started = time.monotonic()
        run_step(step, here=one_process, processes=process_count)
        runs[name] = StepRun(round(time.monotonic() - started, 1), process_count)
        write_json(out / _RUNS, to_builtins(runs))
    return {name: runs.get(name, StepRun()) for name in steps}


def expect_start(step: Step) -> None:
    """Raise :class:`InputError` if a training starts from a model that is neither a folder nor on the hub.

    A finished training needs no hub.
    """
    if step.verb != "train":
        return
    recipe = step.recipe()
    start = recipe.model.start
    if recipe.model.is_pretrained and not Path(start).is_dir() and not is_finished(step.function, step.arguments):
        remedy = f"--settings FILE with [{recipe.name}] model.start = DIR uses a local folder instead"
        model_commit(start, recipe.model.revision, remedy)


def _read_runs(out: Path) -> dict[str, StepRun]:
    """Return the durations of earlier steps. A damaged or missing file has none."""
    try:
        return read_json(out / _RUNS, dict[str, StepRun])
    except (OSError, InputError):
        return {}


def run_step(step: Step, *, here: bool = False, processes: int = 1) -> None:
    """Run one step, in this process if ``here``. Raises :class:`InputError` with the command if the step fails.

    The step logs only warnings and errors if this process does. A training in several ``processes`` runs under
    torchrun, never in this process.
    """

    def call() -> int:
        step.function(**step.arguments)
        return 0

    command = step.shell_line(processes)
    log.info("running: %s", command)
    started = time.monotonic()
    # stdout is for the report, so the output of a step goes to stderr.
    if here and processes == 1:
        with contextlib.redirect_stdout(sys.stderr):
            code = exit_code(call)
        if code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
            raise KeyboardInterrupt  # the step has cleaned up by now
    else:
        code = _run_process(step, processes)
    if code:
        raise InputError(f"this step failed with exit code {code}: {command}")
    log.info("finished after %.0f s", time.monotonic() - started)


def _run_process(step: Step, processes: int) -> int:
    """Run a step in a new process, and return the exit code. If this process is stopped, terminate the step."""
    words = [sys.executable, *step.shell_words(processes)]
    if not log.isEnabledFor(logging.INFO):
        words.append("--quiet")
    process = subprocess.Popen(words, stdout=2)  # 2 is the file descriptor of stderr
    try:
        return process.wait()
    except BaseException:
        with contextlib.suppress(subprocess.TimeoutExpired):
            # Ctrl-C in a terminal reaches both processes, and this process must soon end.
            process.wait(timeout=_CTRL_C_SECONDS)
        process.terminate()
        process.wait()
        raise
