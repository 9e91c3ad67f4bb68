"""Run the project's commands in this process, or in a new process."""

import contextlib
import hashlib
import importlib
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from builders.core.command import main
from builders.core.parser import parse_words
from builders.core.verbs import load_function, verb_spec

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "builders" / "sample"


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str

    @property
    def error(self) -> str:
        """The error, if stderr has one line and no other."""
        lines = self.stderr.strip().split("\n")
        assert self.code == 1 and len(lines) == 1 and lines[0].startswith("error: "), self.stderr
        return lines[0].removeprefix("error: ")


def error_of(done: Done) -> str:
    """Return the only error line, which is the last line of stderr. Warnings and logs may come before."""
    assert done.code == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.stderr.splitlines()[-1] == line
    return line


def run(program: str, *words: object, code: int | None = 0) -> Done:
    """Run ``python -m PROGRAM WORDS...`` in this process. Fail if the exit code is not ``code`` (None: accept any)."""
    verbs: Mapping[str, str] = importlib.import_module(f"{program}.__main__").VERBS
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _logging_as_it_was():
        exit_code = main(program, "", verbs, [str(word) for word in words])
    done = Done(exit_code, out.getvalue(), err.getvalue())
    assert code is None or done.code == code, f"exit code {done.code}: {done.stderr}"
    return done


def parse(program: str, verb: str, *words: str) -> None:
    """Parse the words of a command without running it. Raise an error for a wrong command line."""
    target = importlib.import_module(f"{program}.__main__").VERBS[verb]
    options = list(words)
    if ":" not in target:
        target = importlib.import_module(target).STEPS[options.pop(0)]
    parse_words(verb_spec(load_function(target)), options)


@contextlib.contextmanager
def _logging_as_it_was() -> Iterator[None]:
    """Restore pytest's log handlers after a command, which configures logging itself."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def tree(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def command(program: str, *words: object) -> list[str]:
    return [sys.executable, "-m", program, *map(str, words)]


def process(program: str, *words: object, code: int | None = 0, timeout: float = 300, **environment: str) -> Done:
    """Like :func:`run`, but in a new process. ``environment``: additional variables."""
    done = subprocess.run(
        command(program, *words),
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=timeout,
        check=False,
    )
    assert code is None or done.returncode == code, f"exit code {done.returncode}: {done.stderr}"
    return Done(done.returncode, done.stdout, done.stderr)


def output(words: Sequence[object], cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """Run a program, and return its stdout. Fail with its stderr."""
    given = [str(word) for word in words]
    done = subprocess.run(given, cwd=cwd, env=env, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_python(code: str, folder: Path, env: Mapping[str, str], interpreter: Path | str = sys.executable) -> Any:
    """Run code in a new process that works in ``folder``. Return the JSON value that the code prints last."""
    # The process exits at once, because a Parquet reader of `datasets` that is stopped while it streams can abort an
    # interpreter that shuts down (issue 45214 of apache/arrow).
    code = f"import json, os, sys\n{code}\nsys.stdout.flush()\nos._exit(0)"
    folder.mkdir(exist_ok=True)
    return json.loads(output([interpreter, "-c", code], folder, env).splitlines()[-1])
