"""Commands in forks of a process that has loaded what trainings load: each begins at once, in a session of its own.

A line of stdin is {"words", "environment", "stdout", "stderr"}: what `python -m` is given, all variables, and the files
that it prints into. Lines of stdout are the process, and the code that it has ended with. What libraries read of the
environment when they are imported is that of :class:`Loaded`: the hub, and its caches.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

from commands import ROOT, Done

_IMPORTS = (
    *("datasets", "duckdb", "faiss", "jieba", "matplotlib.backends.backend_agg", "matplotlib.figure", "torch._dynamo"),
    *("sentence_transformers.cross_encoder", "transformers.models.bert.modeling_bert"),
    *("baselines.train.train", "baselines.reproduce"),
)


class Started:
    """A command that runs, as a ``subprocess.Popen``."""

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
    """``with Loaded(**environment) as loaded``: the process that forks. One command at a time."""

    def __init__(self, **environment: str) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
        own = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        script = [sys.executable, __file__]
        self._process = subprocess.Popen(script, cwd=ROOT, env=os.environ | own | environment, text=True, **pipes)

    def __enter__(self) -> Loaded:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def start(self, *words: object, stderr: Path, stdout: Path = Path(os.devnull), **environment: str) -> Started:
        """``python -m WORDS...``, with the variables of ``environment`` beside the present ones."""
        assert self._process.stdin
        asked = {"words": [str(word) for word in words], "environment": os.environ | environment}
        self._process.stdin.write(json.dumps(asked | {"stdout": str(stdout), "stderr": str(stderr)}) + "\n")
        self._process.stdin.flush()
        return Started(self._process)

    def run(self, *words: object, code: int | None = 0, **environment: str) -> Done:
        """As :func:`commands.process`."""
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            found = self.start(*words, stdout=out, stderr=err, **environment).wait()
            done = Done(found, out.read_text("utf-8"), err.read_text("utf-8"))
        assert code is None or done.code == code, f"exit code {done.code}: {done.stderr}"
        return done


def _command(words: list[str], environment: dict[str, str], stdout: str, stderr: str) -> None:
    """What a fork does."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    flags = os.O_WRONLY | os.O_CREAT
    for number, stream in enumerate((os.open(os.devnull, os.O_RDWR), os.open(stdout, flags), os.open(stderr, flags))):
        os.dup2(stream, number)
    sys.argv[1:] = words[1:]
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def _main() -> None:
    for name in _IMPORTS:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is loaded is not looked through by every fork
    for line in sys.stdin:
        if not (child := os.fork()):
            _command(**json.loads(line))
            sys.exit()
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(0)


if __name__ == "__main__":
    _main()
