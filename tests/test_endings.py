"""Ends of commands: a signal, closed streams, a full disk, too little memory, no /dev/shm."""

import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from commands import ROOT, SAMPLE, Done, command, error_of, names, run
from environments import enlarge, small_disk
from hub_server import Hub

from builders.core import jobs
from builders.core.command import run_verb
from builders.core.exit_codes import exit_code
from builders.core.folders import work_beside
from builders.core.limits import DiskFull, convert_full_disk
from builders.core.progress import show_progress
from builders.core.verbs import verb
from builders.core.write_files import new_file


@pytest.fixture
def terminal_signals() -> Iterator[None]:
    """Set signal handlers as in a terminal, because a background process of a script ignores Ctrl-C."""
    terminal_handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    earlier_handlers = {number: signal.signal(number, handler) for number, handler in terminal_handlers.items()}
    yield
    for number, handler in earlier_handlers.items():
        signal.signal(number, handler)


class InDestructor:
    """An object that sends a signal on deletion, when Python discards exceptions of the handler."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)
        time.sleep(0)


@pytest.mark.usefixtures("terminal_signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("replacement", [None, RuntimeError("Query interrupted")])  # DuckDB raises its own error
def test_a_stopped_command_cleans_up(
    tmp_path: Path, number: int, code: int, replacement: Exception | None, capfd: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        with new_file(tmp_path / "run") as beside, work_beside(tmp_path / "out") as folder:
            beside.write_text("half")
            (folder / "half").touch()
            try:
                os.kill(os.getpid(), number)
                time.sleep(60)
            except KeyboardInterrupt as stop:
                raise replacement or stop from None
        return 0

    assert exit_code(work) == code
    assert capfd.readouterr().err == "interrupted\n"
    assert names(tmp_path) == []


@verb(resumes=True)
def brew(*, again: bool = False) -> None:
    """Brew tea until Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)


@pytest.mark.usefixtures("terminal_signals")
@pytest.mark.parametrize(
    ("options", "stderr"), [([], "interrupted; the same command resumes\n"), (["--again"], "interrupted\n")]
)
def test_a_stopped_verb_says_that_the_same_command_resumes(
    options: list[str], stderr: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(lambda: run_verb("baselines", "python -m baselines brew", brew, options)) == 130
    assert capfd.readouterr().err == stderr
    assert exit_code(lambda: signal.raise_signal(signal.SIGINT) or 0) == 130
    assert capfd.readouterr().err == "interrupted\n"  # another command of this process


def _send_signal_at_step_2(steps: list[int]) -> None:
    """Add the number of each step to ``steps``. The object of step 2 is deleted at once."""
    for step in show_progress(range(5)):
        steps.append(step)
        if step == 2:
            InDestructor()


@pytest.mark.usefixtures("terminal_signals")
def test_a_signal_inside_a_destructor_stops_at_the_next_step(capfd: pytest.CaptureFixture[str]) -> None:
    steps: list[int] = []
    assert exit_code(lambda: _send_signal_at_step_2(steps) or 0) == 143
    assert steps == [0, 1, 2]
    assert set(capfd.readouterr().err.splitlines()) == {"interrupted"}
    assert list(show_progress(range(2))) == [0, 1]  # the next work of this process is not stopped


_SIGNALLED = """
import os, signal, sys, time
from pathlib import Path
from builders.core.exit_codes import exit_code
from builders.core.folders import work_beside

class InDestructor:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)

def second():
    InDestructor()
    print("dropped", flush=True)
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    print("went on", flush=True)
    return 0

def together():
    both = {signal.SIGINT, signal.SIGTERM}
    with work_beside(Path(sys.argv[2])):
        signal.pthread_sigmask(signal.SIG_BLOCK, both)
        for number in both:
            os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
        time.sleep(60)
    return 0

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process of a shell ignores Ctrl-C
sys.exit(exit_code(globals()[sys.argv[1]]))
"""


def _run_script(function_name: str, argument: object) -> subprocess.CompletedProcess[str]:
    """Run a function of the script in a new process."""
    words = [sys.executable, "-c", _SIGNALLED, function_name, str(argument)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_a_second_signal_always_ends_a_command(number: str) -> None:
    done = _run_script("second", number)
    assert (done.returncode, done.stdout) == (-getattr(signal, number), "dropped\n")


def test_signals_that_come_together_are_one(tmp_path: Path) -> None:
    """timeout(1) signals its child and then the child's group, but the child must still clean up."""
    done = _run_script("together", tmp_path / "out")
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
    assert names(tmp_path) == []


def _run_in_bash(script: str, words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a script of bash, in which ``"$@"`` is the command."""
    shell = ["bash", "-c", script, "bash", *words]
    return subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("redirections", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_lead_nowhere(sample_release: Path, tmp_path: Path, redirections: str) -> None:
    options = ["--format", "trec", "--release", sample_release, "--out"]
    words = command("builders", "export", options, tmp_path / "closed")
    assert _run_in_bash(f'"$@" {redirections}', words).returncode == 0
    run("builders", "export", options, tmp_path / "open")
    # A file that is opened after stdout was closed gets its number, so print would write into the file.
    for path in (tmp_path / "open").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "closed" / path.relative_to(tmp_path / "open")).read_bytes()


@pytest.mark.parametrize(
    ("words", "redirection", "code", "last_words"),
    [
        ("check --release {release}", "| true", 141, ""),
        ("check --release nowhere", "2>/dev/full", 1, ""),
        ("check --release nowhere", "2>&-", 1, ""),
        ("check --release {release}", ">/dev/full", 1, "error: stdout: no space left on device"),
    ],
)
def test_closed_or_full_streams(sample_release: Path, words: str, redirection: str, code: int, last_words: str) -> None:
    check = command("builders", *words.format(release=sample_release).split())
    done = _run_in_bash(f'"$@" {redirection}; exit ${{PIPESTATUS[0]}}', check)
    assert done.returncode == code
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert done.stderr.strip().endswith(last_words)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("std::bad_alloc"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried 9"),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    ],
)
def test_too_little_memory_is_one_line(error: Exception, capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise error

    assert exit_code(work) == 1
    (error_line,) = capfd.readouterr().err.splitlines()
    assert error_line.startswith("error: not enough memory (")


BUILD_RELEASE = "builders release --quiet --raw {sample} --out {out}/release"
RANK_BY_BM25 = "baselines bm25 --quiet --release {release} --index {out}/index --out {out}/run"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "words", "problem"),
    [
        ("-v 2097152", BUILD_RELEASE, ""),
        ("-v 2097152", RANK_BY_BM25, ""),
        ("-f 20", BUILD_RELEASE, ": file too large; free some space there"),
    ],
)
def test_2_gb_of_addresses_are_enough(
    sample_release: Path, tmp_path: Path, limit: str, words: str, problem: str
) -> None:
    argv = words.format(sample=SAMPLE, out=tmp_path, release=sample_release).split()
    done = _run_in_bash(f'ulimit {limit}; exec "$@"', command(*argv))
    if not problem:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == 1
        assert done.stderr.startswith(f"error: {tmp_path}") and problem in done.stderr
        assert names(tmp_path) in ([], [".release.building"])


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "no space left on device"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), "disk quota exceeded"),
        (OSError("1369950 requested and 86016 written"), "no space left on device"),  # NumPy
        (ValueError("An IO error occurred: 'No space left on device (os error 28)'"), "no space left on device"),
    ],
)
def test_every_error_of_a_full_disk_names_the_disk(tmp_path: Path, error: Exception, problem: str) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        # The error does not say which disk is full, so the disk with the least free space is named.
        (disk / "much").write_bytes(bytes((1 << 20) - 4096))
        with pytest.raises(DiskFull) as caught, convert_full_disk(disk / "runs"), convert_full_disk(tmp_path):
            raise error
    advice = "free some space there, and run the same command again"
    assert str(caught.value) == f"{disk / 'runs'}: {problem}; {advice}"


def test_the_innermost_folder_of_a_disk_is_named_while_others_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrinking = itertools.count(1 << 40, -4096)  # other processes write between two measurements
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=next(shrinking)))
    with (
        pytest.raises(DiskFull, match=f"^{tmp_path / 'inner'}: "),
        convert_full_disk(tmp_path),
        convert_full_disk(tmp_path / "inner"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


_BYTES = np.random.default_rng(0).bytes(400_000)  # compression does not shorten random bytes


def _numpy(disk: Path) -> None:
    """Fill a disk by NumPy."""
    with open(disk / "a.npy", "wb") as file:
        np.save(file, np.frombuffer(_BYTES, np.uint8))


def _duckdb(disk: Path) -> None:
    """Fill a disk by DuckDB."""
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(disk / "a.duckdb")) as connection:
        connection.execute("CREATE TABLE t AS SELECT md5(range::VARCHAR) FROM range(20000)")


@pytest.mark.parametrize("write", [_numpy, _duckdb], ids=lambda write: write.__name__.strip("_"))
def test_a_disk_that_a_library_fills_is_named(write: Callable[[Path], None], tmp_path: Path) -> None:
    # On a larger disk, the library fails at a later call.
    for number, size in enumerate((4 << 10, 20 << 10, 100 << 10, 300 << 10)):
        with (
            small_disk(tmp_path / str(number), size) as disk,
            pytest.raises(DiskFull, match=f"^{disk}: no space left on device; free some space"),
            convert_full_disk(disk),
        ):
            write(disk)


def test_without_shared_memory_one_process(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    # Python fails in this way on a machine without semaphores, such as some containers.
    def raise_not_implemented(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", raise_not_implemented)
    with jobs.process_pool(4) as pool:
        assert pool is None
        assert list(jobs.in_order(pool, abs, [-1, -2], 8)) == [1, 2]
    assert "/dev/shm" in caplog.text


def test_a_pull_that_fills_the_disk(hub: Hub, call: Callable[..., Done], checkpoint: Path, tmp_path: Path) -> None:
    call("push", "--quiet", "--model", checkpoint, "--repo", "org/name", "--create")
    with small_disk(tmp_path / "disk", 40 << 10) as disk:
        error_line = error_of(call("pull", "--quiet", "org/name", "--out", disk / "out", code=1))
        assert error_line.startswith(f"error: {disk}/")
        assert ": no space left on device; free some space" in error_line
        enlarge(disk)
        call("pull", "--quiet", "org/name", "--out", disk / "out")
        assert names(disk) == ["out"]


def test_a_full_shared_memory_is_not_reported_as_a_full_disk(tmp_path: Path) -> None:
    # The message has the words of a full disk, but /dev/shm is memory.
    torch_message = "unable to allocate shared memory(shm) for file </torch_7_8_9>: No space left on device (28)"
    with pytest.raises(jobs.WorkerDied, match="/dev/shm"), convert_full_disk(tmp_path), jobs.convert_loader_errors():
        raise RuntimeError(torch_message)
