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

TRAINING = (
    *("datasets", "duckdb", "faiss", "jieba", "matplotlib.backends.backend_agg", "matplotlib.figure", "torch._dynamo"),
    *("sentence_transformers.cross_encoder", "transformers.models.bert.modeling_bert"),
    *("baselines.train.training", "baselines.reproduce.run_tables"),
)
ANNOTATION = (
    *("filelock", "multiprocessing", "openai.resources.chat.completions", "pandas", "pyarrow.parquet", "rensa", "tqdm"),
    *("statsmodels.stats.inter_rater", "builders.__main__", "builders.annotate", "builders.similar.remove"),
)
_POINTS = {"open", "write", "flush", "close", "fsync", "replace", "rename", "unlink", "remove", "mkdir", "rmdir"}
_POINTS |= {"connect", "send", "sendall", "recv", "recv_into"}


class Started:
    def __init__(self, loaded: subprocess.Popen[str]) -> None:
        assert loaded.stdout
        self._answers = loaded.stdout
        self.pid = int(self._answers.readline())
        self._code: int | None = None

    def poll(self) -> int | None:
        return None if Path("/proc", str(self.pid)).exists() else self.wait()

    def wait(self) -> int:
        if self._code is None:
            self._code = int(self._answers.readline())
        return self._code


class Loaded:
    """The process that forks, for a ``with`` block. It runs one command at a time."""

    def __init__(self, modules: Sequence[str] = TRAINING, **environment: str) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
        variables = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | environment
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        script = [sys.executable, __file__, *modules]
        self._process = subprocess.Popen(script, cwd=ROOT, env=variables, text=True, **pipes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def start(
        self, *words: object, stderr: Path, stdout: Path = Path(os.devnull), at: int | None = None, **environment: str
    ) -> Started:
        """Start ``python -m WORDS...`` with the variables of ``environment`` and of this process."""
        assert self._process.stdin
        asked = {"words": [str(word) for word in words], "environment": os.environ | environment, "at": at}
        self._process.stdin.write(json.dumps(asked | {"stdout": str(stdout), "stderr": str(stderr)}) + "\n")
        self._process.stdin.flush()
        return Started(self._process)

    def run(self, *words: object, code: int | None = 0, at: int | None = None, **environment: str) -> Done:
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            found = self.start(*words, stdout=out, stderr=err, at=at, **environment).wait()
            done = Done(found, out.read_text("utf-8"), err.read_text("utf-8"))
        assert code is None or done.code == code, f"exit code {done.code}: {done.stderr}"
        return done


def _command(words: list[str], environment: dict[str, str], stdout: str, stderr: str, at: int | None) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    flags = os.O_WRONLY | os.O_CREAT
    for number, stream in enumerate((os.open(os.devnull, os.O_RDWR), os.open(stdout, flags), os.open(stderr, flags))):
        os.dup2(stream, number)
    sys.argv[1:] = words[1:]
    points = count(1)

    def note(_: object, event: str, called: Any) -> None:
        if event == "c_call" and called.__name__ in _POINTS and next(points) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    if at is not None:
        threading.setprofile(note)
        sys.setprofile(note)
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        if at is not None:
            print(f"\n{next(points) - 1}", end="", file=sys.stderr, flush=True)


def _main() -> None:
    for name in sys.argv[1:]:
        importlib.import_module(name)
    importlib.import_module("builders.core.words").cutter()  # loads its dictionary
    gc.collect()
    gc.freeze()  # the garbage collector of a fork skips the loaded objects
    for line in sys.stdin:
        if not (child := os.fork()):
            _command(**json.loads(line))
            sys.exit()
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(0)


if __name__ == "__main__":
    _main()
