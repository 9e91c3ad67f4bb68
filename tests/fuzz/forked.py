"""Commands in forks of a process that has imported what they need: each begins at once, and kills itself at a point.

A point is a call of what changes something outside the process (a file, a name, a connection), or reads an answer. A
line of stdin is {"words", "environment", "at"}: the command, and which point is its last (0: none, but they are
counted; null: nor that). A line of stdout is {"code", "said", "points"}: how it ended, what it said, how many points
it came to.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from itertools import count
from pathlib import Path
from typing import Any

from commands import ROOT

from builders.core.words import words

_POINTS = {"open", "write", "flush", "close", "fsync", "replace", "rename", "unlink", "remove", "mkdir", "rmdir"}
_POINTS |= {"connect", "send", "sendall", "recv", "recv_into"}
_IMPORTS = (
    *("filelock", "multiprocessing", "openai.resources.chat.completions", "pandas", "pyarrow.parquet", "rensa", "tqdm"),
    *("statsmodels.stats.inter_rater", "builders.__main__", "builders.annotate.agreement", "builders.annotate.answers"),
    *(
        "builders.annotate.check",
        "builders.annotate.endpoint",
        "builders.annotate.export",
        "builders.annotate.families",
    ),
    *("builders.annotate.importing", "builders.annotate.qrels", "builders.annotate.studio"),
    *("builders.core.exit_codes", "builders.core.sampling", "builders.pool.actions", "builders.relabel.actions"),
    *("builders.similar.remove", "builders.sources.encoding"),
)


class Forks:
    """``with Forks() as forks``: the process that forks."""

    def __enter__(self) -> Forks:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen([sys.executable, __file__], cwd=ROOT, env=environment, text=True, **pipes)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, words: list[str], environment: dict[str, str], at: int | None = None) -> dict[str, Any]:
        """Run a command: up to its point number ``at``, or to its end (0: with its points counted)."""
        assert self._process.stdin and self._process.stdout
        asked = {"words": words, "environment": environment, "at": at}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


def _command(words: list[str], environment: dict[str, str], at: int | None, log: Path) -> None:
    """What a fork does."""
    os.environ.clear()
    os.environ.update(environment)
    streams = os.open(os.devnull, os.O_RDWR), os.open(log, os.O_WRONLY)
    for number, stream in enumerate((streams[0], streams[0], streams[1])):
        os.dup2(stream, number)
    points = count(1)

    def note(_: object, event: str, called: Any) -> None:
        if event == "c_call" and called.__name__ in _POINTS and next(points) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    program, *rest = words
    from builders.core.command import main

    verbs = importlib.import_module(f"{program}.__main__").VERBS
    if at is not None:
        threading.setprofile(note)
        sys.setprofile(note)
    try:
        code = main(program, "", verbs, rest)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    sys.stderr.write(f"\n{next(points) - 1}")
    sys.stderr.flush()
    os._exit(code)


def _main() -> None:
    for name in _IMPORTS:
        importlib.import_module(name)
    words("读一次词典")
    for line in sys.stdin:
        asked = json.loads(line)
        handle, name = tempfile.mkstemp()
        if not (child := os.fork()):
            try:
                _command(log=Path(name), **asked)
            finally:
                os._exit(70)  # a fault of the program
        status = os.waitpid(child, 0)[1]
        with open(handle) as log:
            said, _, points = log.read().rpartition("\n")
        os.unlink(name)
        answer = {"code": os.waitstatus_to_exitcode(status), "said": said, "points": points}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
