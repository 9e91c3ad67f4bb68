"""Run commands in forks of a process that has imported their libraries, so that each command begins at once.

A line of stdin is {"words", "environment", "stdout", "stderr", "at"}: the words after `python -m`, all environment
variables, two output files, and the number of the point at which the command kills itself (0: count the points; null:
do not count them). A point is a call that changes a file, a name or a connection, or reads an answer. Two lines of
stdout follow: the process id, and the exit code. With ``at``, the last line of stderr is the number of points.
Libraries that read environment variables on import see the variables of :class:`Loaded`, such as the hub's address.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, Self

from commands import ROOT, Done

# The modules that trainings import.
TRAINING = (
    "datasets",
    "duckdb",
    "faiss",
    "jieba",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "torch._dynamo",
    "sentence_transformers.cross_encoder",
    "transformers.models.bert.modeling_bert",
    "baselines.train.training",
    "baselines.reproduce.run_tables",
)
# The modules that annotation rounds import.
ANNOTATION = (
    "filelock",
    "multiprocessing",
    "openai.resources.chat.completions",
    "pandas",
    "pyarrow.parquet",
    "rensa",
    "tqdm",
    "statsmodels.stats.inter_rater",
    "builders.__main__",
    "builders.annotate",
    "builders.similar.remove",
)
_FILE_CALLS = {"open", "write", "flush", "close", "fsync", "replace", "rename", "unlink", "remove", "mkdir", "rmdir"}
_CONNECTION_CALLS = {"connect", "send", "sendall", "recv", "recv_into"}
# The functions whose calls are points.
_POINTS = _FILE_CALLS | _CONNECTION_CALLS


class Started:
    """A command that was started in a fork of :class:`Loaded`."""

    def __init__(self, forking_process: subprocess.Popen[str]) -> None:
        assert forking_process.stdout
        self._answer_lines = forking_process.stdout
        self.pid = int(self._answer_lines.readline())
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while the command runs."""
        if Path("/proc", str(self.pid)).exists():
            return None
        return self.wait()

    def wait(self) -> int:
        """Return the exit code when the command has ended."""
        if self._exit_code is None:
            self._exit_code = int(self._answer_lines.readline())
        return self._exit_code


class Loaded:
    """The process that forks, for a ``with`` block. It runs one command at a time."""

    def __init__(self, modules: Sequence[str] = TRAINING, **environment: str) -> None:
        python_path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
        variables = os.environ | {"PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"} | environment
        self._process = subprocess.Popen(
            [sys.executable, __file__, *modules],
            cwd=ROOT,
            env=variables,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def start(
        self, *words: object, stderr: Path, stdout: Path = Path(os.devnull), at: int | None = None, **environment: str
    ) -> Started:
        """Start ``python -m WORDS...`` with the variables of ``environment`` and of this process."""
        assert self._process.stdin
        request = {
            "words": [str(word) for word in words],
            "environment": os.environ | environment,
            "stdout": str(stdout),
            "stderr": str(stderr),
            "at": at,
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Started(self._process)

    def run(self, *words: object, code: int | None = 0, at: int | None = None, **environment: str) -> Done:
        """Run ``python -m WORDS...`` to its end. Fail if the exit code is not ``code`` (None: accept any)."""
        with tempfile.TemporaryDirectory() as folder:
            stdout_path = Path(folder, "out")
            stderr_path = Path(folder, "err")
            started = self.start(*words, stdout=stdout_path, stderr=stderr_path, at=at, **environment)
            exit_code = started.wait()
            done = Done(exit_code, stdout_path.read_text("utf-8"), stderr_path.read_text("utf-8"))
        assert code is None or done.code == code, f"exit code {done.code}: {done.stderr}"
        return done


def _run_command(words: list[str], environment: dict[str, str], stdout: str, stderr: str, at: int | None) -> None:
    """Run a command in this process, which is a fork, with the request's variables and output files."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    # Replace stdin, stdout and stderr, whose numbers are 0, 1 and 2.
    write_flags = os.O_WRONLY | os.O_CREAT
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(os.open(stdout, write_flags), 1)
    os.dup2(os.open(stderr, write_flags), 2)
    sys.argv[1:] = words[1:]
    points = count(1)

    def count_point(_: object, event: str, function: Any) -> None:
        is_point = event == "c_call" and function.__name__ in _POINTS
        if is_point and next(points) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    if at is not None:
        threading.setprofile(count_point)
        sys.setprofile(count_point)
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        if at is not None:
            print(f"\n{next(points) - 1}", end="", file=sys.stderr, flush=True)


def _main() -> None:
    """Import the modules of the command line, and fork for each line of stdin."""
    for module_name in sys.argv[1:]:
        importlib.import_module(module_name)
    importlib.import_module("builders.core.words").word_cutter()  # loads its dictionary
    gc.collect()
    gc.freeze()  # the garbage collector of a fork skips the loaded objects
    for line in sys.stdin:
        child_pid = os.fork()
        if child_pid == 0:
            _run_command(**json.loads(line))
            sys.exit()
        print(child_pid, flush=True)
        _, wait_status = os.waitpid(child_pid, 0)
        print(os.waitstatus_to_exitcode(wait_status), flush=True)
    os._exit(0)


if __name__ == "__main__":
    _main()
