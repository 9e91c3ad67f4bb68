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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from builders.core.command import main
from builders.core.parser import parse_words
from builders.core.verbs import load_function, verb_spec

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "builders" / "sample"


class Done(NamedTuple):
    """A finished command: its exit code and output."""

    code: int
    stdout: str
    stderr: str

    @property
    def error(self) -> str:
        """The error without "error: ". Fails if the exit code is not 1, or stderr has another line than the error."""
        stderr_lines = self.stderr.strip().split("\n")
        assert self.code == 1, self.stderr
        assert len(stderr_lines) == 1, self.stderr
        assert stderr_lines[0].startswith("error: "), self.stderr
        return stderr_lines[0].removeprefix("error: ")


def error_of(done: Done) -> str:
    """Return the only error line, which is the last line of stderr. Warnings and logs may come before."""
    assert done.code == 1
    stderr_lines = done.stderr.splitlines()
    (error_line,) = [line for line in stderr_lines if line.startswith("error: ")]
    assert stderr_lines[-1] == error_line
    return error_line


def flat_words(words: Iterable[object]) -> list[str]:
    """Return words as texts. A list or tuple of words stands for its words."""
    texts = []
    for word in words:
        if isinstance(word, list | tuple):
            texts += flat_words(word)
        else:
            texts.append(str(word))
    return texts


def run(program: str, *words: object, code: int | None = 0) -> Done:
    """Run ``python -m PROGRAM WORDS...`` in this process. Fail if the exit code is not ``code`` (None: accept any).

    A list or tuple among the words stands for its words.
    """
    verbs: Mapping[str, str] = importlib.import_module(f"{program}.__main__").VERBS
    # The same function that ``python -m`` calls, without a new process.
    stdout = io.StringIO()
    stderr = io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr), _logging_as_it_was():
        exit_code = main(program, "", verbs, flat_words(words))
    done = Done(exit_code, stdout.getvalue(), stderr.getvalue())
    assert code is None or done.code == code, f"exit code {done.code}: {done.stderr}"
    return done


def parse(program: str, verb: str, *words: str) -> None:
    """Parse the words of a command without running it. Raise an error for a wrong command line."""
    target = importlib.import_module(f"{program}.__main__").VERBS[verb]
    option_words = list(words)
    if ":" not in target:  # a verb with steps: the first word names the step
        target = importlib.import_module(target).STEPS[option_words.pop(0)]
    parse_words(verb_spec(load_function(target)), option_words)


@contextlib.contextmanager
def _logging_as_it_was() -> Iterator[None]:
    """Restore pytest's log handlers after a command, which configures logging itself."""
    root_logger = logging.getLogger()
    earlier_handlers = root_logger.handlers[:]
    earlier_level = root_logger.level
    try:
        yield
    finally:
        root_logger.handlers[:] = earlier_handlers
        root_logger.setLevel(earlier_level)


def names(folder: Path) -> list[str]:
    """List the names of the files and folders directly in a folder."""
    return sorted(path.name for path in folder.iterdir())


def tree(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below a folder, by its relative path."""
    sha256_by_path = {}
    for path in folder.rglob("*"):
        if path.is_file():
            sha256_by_path[path.relative_to(folder).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return sha256_by_path


def command(program: str, *words: object) -> list[str]:
    """Return the words that start a command in a new process."""
    return [sys.executable, "-m", program, *flat_words(words)]


def process(program: str, *words: object, code: int | None = 0, timeout: float = 300, **environment: str) -> Done:
    """Like :func:`run`, but in a new process. ``environment``: additional variables."""
    completed = subprocess.run(
        command(program, *words),
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=timeout,
        check=False,
    )
    exit_code = completed.returncode
    assert code is None or exit_code == code, f"exit code {exit_code}: {completed.stderr}"
    return Done(exit_code, completed.stdout, completed.stderr)


def output(words: Sequence[object], cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """Run a program, and return its stdout. Fail with its stderr."""
    completed = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def run_python(code: str, folder: Path, env: Mapping[str, str], interpreter: Path | str = sys.executable) -> Any:
    """Run code in a new process that works in ``folder``. Return the JSON value that the code prints last."""
    # The process exits at once, because a Parquet reader of `datasets` that is stopped while it streams can abort an
    # interpreter that shuts down (issue 45214 of apache/arrow).
    program_text = f"import json, os, sys\n{code}\nsys.stdout.flush()\nos._exit(0)"
    folder.mkdir(exist_ok=True)
    stdout_lines = output([interpreter, "-c", program_text], folder, env).splitlines()
    return json.loads(stdout_lines[-1])
