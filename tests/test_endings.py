"""How commands end: stopped by a signal, without a reader, on a full disk, without memory, without /dev/shm."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import ROOT, SAMPLE, command, run
from small_disks import small_disk
from stopping import InDestructor, heeded  # noqa: F401

from builders.core import jobs
from builders.core.errors import InputError
from builders.core.exit_codes import exit_code
from builders.core.files import new_file, write_text
from builders.core.folders import work_beside
from builders.core.limits import DiskFull, writing
from builders.core.progress import progress


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_command_cleans_up(tmp_path: Path, number: int, code: int, capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        with new_file(tmp_path / "run") as beside, work_beside(tmp_path / "out") as folder:
            beside.write_text("half")
            (folder / "half").touch()
            os.kill(os.getpid(), number)
            time.sleep(60)
        return 0

    assert exit_code(work) == code
    assert capfd.readouterr().err == "interrupted\n"
    assert names(tmp_path) == []


@pytest.mark.usefixtures("heeded")
def test_what_a_library_makes_of_a_signal_is_no_fault(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        except KeyboardInterrupt:
            raise RuntimeError("Query interrupted") from None  # as DuckDB does
        return 0

    assert exit_code(work) == 143
    assert capfd.readouterr().err == "interrupted\n"


def _at_a_step(steps: list[int]) -> None:
    for step in progress(range(5)):
        steps.append(step)
        if step == 2:
            InDestructor()


def _at_an_update(steps: list[int]) -> None:
    with progress(total=5) as bar:
        for step in range(5):
            steps.append(step)
            if step == 2:
                InDestructor()
            bar.update()


def _at_a_task(steps: list[int]) -> None:
    for step in jobs.in_threads(lambda step: step, range(5), threads=1, ahead=1):
        steps.append(step)
        if step == 2:
            InDestructor()


def _after_the_last(steps: list[int]) -> None:
    steps += range(3)
    InDestructor()


@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize("loop", [_at_a_step, _at_an_update, _at_a_task, _after_the_last])
def test_a_signal_inside_a_destructor_stops_at_the_next_step(
    loop: Callable[[list[int]], None], capfd: pytest.CaptureFixture[str]
) -> None:
    steps: list[int] = []

    def work() -> int:
        loop(steps)
        return 0

    assert exit_code(work) == 143
    assert steps == [0, 1, 2] and capfd.readouterr().err == "interrupted\n"
    assert list(progress(range(2))) == [0, 1]  # what this process does next is not stopped, too


@pytest.mark.usefixtures("heeded")
def test_a_signal_inside_a_destructor_stops_an_inner_command_and_its_outer_one() -> None:
    codes: list[int] = []

    def inner() -> int:
        InDestructor()
        return 0

    def work() -> int:
        codes.append(exit_code(inner))
        return 0

    assert exit_code(work) == 143 and codes == [143]


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

signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background, a shell's process ignores Ctrl-C
sys.exit(exit_code(globals()[sys.argv[1]]))
"""


def _signalled(*words: object) -> subprocess.CompletedProcess[str]:
    given = [sys.executable, "-c", _SIGNALLED, *map(str, words)]
    return subprocess.run(given, cwd=ROOT, capture_output=True, text=True, check=False, timeout=50)


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_a_second_signal_always_ends_a_command(number: str) -> None:
    done = _signalled("second", number)
    assert (done.returncode, done.stdout) == (-getattr(signal, number), "dropped\n")


def test_signals_that_come_together_are_one(tmp_path: Path) -> None:
    """timeout(1) stops the process that it started, then the whole group; the process is to clean up all the same."""
    done = _signalled("together", tmp_path / "out")
    assert (done.returncode, done.stderr) == (130, "interrupted\n") and names(tmp_path) == []


def test_a_build_is_terminated_with_nothing_left(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("builders", "release", "--raw", SAMPLE, "--out", tmp_path / "out", "--workers", 1),
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / ".out.building").exists():
        assert process.poll() is None
        time.sleep(0.005)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143 and said.splitlines()[-1] == "interrupted"
    assert set(names(tmp_path)) <= {".out.building"}  # its finished blocks, for the next one
    run("builders", "release", "--quiet", "--raw", SAMPLE, "--out", tmp_path / "out")
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_lead_nowhere(sample_release: Path, tmp_path: Path, closed: str) -> None:
    """The first file that is opened would take the place of stdout, and what is printed would be written into it."""
    words = command("builders", "export", "--format", "trec", "--release", sample_release, "--out", tmp_path / "trec")
    assert subprocess.run(["bash", "-c", f'"$@" {closed}', "bash", *words], cwd=ROOT, check=False).returncode == 0
    run("builders", "export", "--format", "trec", "--release", sample_release, "--out", tmp_path / "open")
    for path in (tmp_path / "open").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "trec" / path.relative_to(tmp_path / "open")).read_bytes()


@pytest.mark.parametrize(
    ("words", "streams", "code"),
    [
        (("check", "--release", "RELEASE"), "| true", 141),
        (("check", "--release", "nowhere"), "2>/dev/full", 1),
        (("check", "--release", "nowhere"), "2>&-", 1),
    ],
)
def test_a_command_whose_streams_nobody_takes_says_by_its_exit_code_how_it_ended(
    sample_release: Path, words: tuple[str, ...], streams: str, code: int
) -> None:
    given = command("builders", *(sample_release if word == "RELEASE" else word for word in words))
    shell = ["bash", "-c", f'"$@" {streams}; exit ${{PIPESTATUS[0]}}', "bash", *given]
    done = subprocess.run(shell, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == code and "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_results_that_cannot_be_printed_are_an_error(sample_release: Path) -> None:
    words = command("builders", "check", "--release", sample_release)
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "error: stdout: no space left on device")
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("std::bad_alloc"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"
        ),
        RuntimeError("can't start new thread"),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    ],
)
def test_too_little_memory_is_one_line(error: Exception, capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise error

    assert exit_code(work) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: not enough memory (")


def test_a_fault_of_the_program_is_raised() -> None:
    def work() -> int:
        return int("x")

    with pytest.raises(ValueError, match="invalid literal"):
        exit_code(work)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
        OSError("1369950 requested and 86016 written"),
        ValueError("An IO error occurred: 'No space left on device (os error 28)'"),
        RuntimeError(
            "[enforce fail at inline_container.cc:858] . PytorchStreamWriter failed writing file: file write failed"
        ),
    ],
)
def test_a_full_disk_is_named_whatever_a_library_says(tmp_path: Path, error: Exception) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        (disk / "much").write_bytes(bytes((1 << 20) - 4096))
        with pytest.raises(DiskFull) as caught, writing(disk / "runs"), writing(tmp_path):
            raise error
    words = "disk quota exceeded" if error.args[0] == errno.EDQUOT else "no space left on device"
    assert str(caught.value).startswith(f"{disk}: {words} (")
    assert f"bytes are free), while writing to {disk / 'runs'}; make room there" in str(caught.value)


@pytest.mark.parametrize(
    "error", [OSError(errno.EFBIG, os.strerror(errno.EFBIG)), OSError("1369950 requested and 86016 written")]
)
def test_a_limit_on_the_size_of_files_is_no_full_disk(
    tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builders.core.limits.file_limit", lambda: 4096)
    with pytest.raises(DiskFull) as caught, writing(tmp_path):
        raise error
    limit = "file too large (ulimit -f allows 4,096 bytes); raise that limit, and run the same command again"
    assert str(caught.value) == f"{tmp_path}: {limit}"


def test_a_build_under_a_limit_on_the_size_of_files_names_the_limit(tmp_path: Path) -> None:
    words = command("builders", "release", "--quiet", "--raw", SAMPLE, "--out", tmp_path / "out")
    limited = ["bash", "-c", 'ulimit -f 20; exec "$@"', "bash", *words]
    done = subprocess.run(limited, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith(f"error: {tmp_path}")
    assert ": file too large (ulimit -f allows 20,480 bytes); raise that limit" in done.stderr
    assert names(tmp_path) in ([], [".out.building"])


def test_other_errors_are_not_those_of_a_disk(tmp_path: Path) -> None:
    for error in (OSError(errno.EACCES, "Permission denied"), ValueError("x"), InputError("y")):
        with pytest.raises(type(error)) as caught, writing(tmp_path):
            raise error
        assert caught.value is error


def test_a_file_that_does_not_fit_leaves_the_earlier_one(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 << 10) as disk:
        write_text(disk / "a.txt", "first")
        with pytest.raises(DiskFull, match=f"^{disk}: no space left on device"):
            write_text(disk / "a.txt", "x" * (1 << 20))
        assert names(disk) == ["a.txt"] and (disk / "a.txt").read_text() == "first"


def test_without_shared_memory_the_work_is_done_in_one_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", missing)
    with jobs.process_pool(4) as pool:
        assert pool is None
        assert list(jobs.in_order(pool, abs, [-1, -2], 8)) == [1, 2]
    assert "/dev/shm" in caplog.text
