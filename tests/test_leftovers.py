"""What a process that is killed leaves: the next one that does the same removes it, and touches nothing else."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import ROOT

from builders.core.errors import InputError
from builders.core.files import new_file, temporary_folder, write_text
from builders.core.folders import build_once, new_directory, replace_directory, work_beside

POOL = """
import sys, time
from builders.core.exit_codes import exit_code
from builders.core.jobs import in_order, process_pool

def work():
    with process_pool(2) as pool:
        print(list(in_order(pool, abs, [-1, -2], 4)), flush=True)
        for _ in in_order(pool, time.sleep, [float(sys.argv[1])] * 4, 4):
            pass
    return 0

if __name__ == "__main__":
    sys.exit(exit_code(work))
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def killed(work: Callable[[], object]) -> None:
    """Do some work in another process, which is killed in the middle of it: by :func:`kill`."""
    process = os.fork()
    if not process:
        try:
            work()
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL


def kill(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_file_that_a_kill_left_half_is_written_anew(tmp_path: Path) -> None:
    def work() -> None:
        with new_file(tmp_path / "run.gz") as beside:
            beside.write_text("half")
            kill()

    killed(work)
    assert names(tmp_path) == [".run.gz.tmp", ".run.gz.tmp.lock"]
    write_text(tmp_path / "run.gz", "whole")
    assert names(tmp_path) == ["run.gz"]


def test_a_file_is_written_by_one_process_at_a_time(tmp_path: Path) -> None:
    with new_file(tmp_path / "run") as beside:
        with pytest.raises(InputError, match="run: is being built by another process"):
            write_text(tmp_path / "run", "second")
        beside.write_text("first")
    assert (tmp_path / "run").read_text() == "first" and names(tmp_path) == ["run"]


def test_a_temporary_folder_that_a_kill_left_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "dureader-2.0").mkdir()  # what somebody has unpacked there

    def work() -> None:
        with temporary_folder() as folder:
            (folder / "passages").write_text("gigabytes")
            kill()

    with temporary_folder() as in_use:
        killed(work)
        assert len(names(tmp_path)) == 5
        with temporary_folder() as folder:
            found = {"dureader-2.0", in_use.name, folder.name}
            assert {name for name in names(tmp_path) if name[0] != "."} == found
        assert in_use.is_dir()
    assert names(tmp_path) == ["dureader-2.0"]


@pytest.fixture
def short() -> Iterator[Path]:
    """A TMPDIR for sockets, whose paths may have some 100 bytes: those of ``tmp_path`` are near that."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_workers_are_stopped_with_their_parent(short: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(short)}
    words = [sys.executable, "-c", POOL, "600"]
    with subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"[1, 2]\n"
        process.terminate()
        assert process.communicate(timeout=300)[1] == b"interrupted\n" and process.returncode == 143
    assert names(short) == []


def test_killed_workers_leave_nothing_that_the_next_pool_does_not_remove(short: Path) -> None:
    words, environment = [sys.executable, "-c", POOL], {**os.environ, "TMPDIR": str(short)}
    process = subprocess.Popen(
        [*words, "600"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None and process.stdout.readline() == b"[1, 2]\n"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert names(short)
    assert subprocess.run([*words, "0"], cwd=ROOT, env=environment, capture_output=True, check=True).stderr == b""
    assert names(short) == []


def test_a_tmpdir_whose_path_is_too_long_for_sockets_has_workers_too(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    shown = POOL.replace("    return 0", "    print(multiprocessing.util.get_temp_dir())\n    return 0")
    words = [sys.executable, "-c", f"import multiprocessing.util\n{shown}", "0"]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "TMPDIR": str(long)}, capture_output=True, check=True)
    results, folder = done.stdout.decode().splitlines()
    assert (results, done.stderr) == ("[1, 2]", b"")
    assert Path(folder).parent == Path("/tmp") and not Path(folder).exists() and names(long) == []


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_kill_while_a_directory_is_replaced_loses_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    out, rename = tmp_path / "out", os.rename

    def write(text: str) -> None:
        with new_directory(out, "an export", "EXPORT") as folder:
            (folder / "EXPORT").write_text(text)

    def until(*given: str) -> None:
        nonlocal renames
        renames -= 1
        if renames < 0:
            kill()
        rename(*given)

    write("first")
    whole = "second" if renames == 2 else "first"
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", until)
        patch.setattr("shutil.rmtree", lambda path, **_: kill() if path.exists() else None)
        killed(lambda: write("second"))
    assert names(tmp_path) != ["out"]
    with work_beside(out):
        assert (out / "EXPORT").read_text() == whole
    assert names(tmp_path) == ["out"]


def test_what_is_whole_after_a_kill_is_not_built_again_and_nothing_stays_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"

    def build(folder: Path) -> None:
        (folder / "about").touch()

    with monkeypatch.context() as patch:
        patch.setattr("builders.core.folders._discard", kill)
        killed(lambda: build_once(kept, (kept / "about").is_file, build))
    assert names(tmp_path) == [".kept.building", ".kept.building.lock", "kept"]
    assert not build_once(kept, (kept / "about").is_file, build)
    assert names(tmp_path) == ["kept"]


def _take_turns(out: Path, times: int) -> None:
    for _ in range(times):
        with work_beside(out, wait=True) as work:
            (out.parent / "inside").mkdir()  # fails where another one is in
            (work / "about").touch()
            (out.parent / "inside").rmdir()
            replace_directory(work, out)


def test_hundreds_of_turns_in_one_place_end_without_an_error(tmp_path: Path) -> None:
    workers = [
        multiprocessing.get_context("fork").Process(target=_take_turns, args=(tmp_path / "out", 50)) for _ in "abcd"
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    assert names(tmp_path) == ["out"]


def test_a_forked_process_leaves_its_parents_temporary_folder_alone(tmp_path: Path) -> None:
    """As a loader's processes are: they would have removed the folder of their own sockets, and waited for ever."""
    script = """
import gc, multiprocessing, os, sys
from multiprocessing import util
from builders.core.jobs import can_start_processes
can_start_processes()
folder = multiprocessing.current_process()._config["tempdir"]
process = multiprocessing.get_context("fork").Process(target=gc.collect)
process.start(); process.join()
if os.fork() == 0:
    util._finalizer_registry.clear()
    sys.exit()
os.wait()
print(os.path.isdir(folder), os.path.exists(os.path.join(os.path.dirname(folder), f".{os.path.basename(folder)}.lock")))
"""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True True\n"
    assert list(tmp_path.iterdir()) == []
