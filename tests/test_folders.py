"""Files, directories and caches appear whole or not at all, and are valid until a file changes.

What a killed process leaves is removed or resumed by the next process that does the same work."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, names
from environments import small_disk

from baselines.core.passages import Cache
from builders.core import cache as verified
from builders.core.cache import fault_once
from builders.core.errors import InputError, Unfinished
from builders.core.files import new_file, temporary_folder, write_text
from builders.core.folders import build_once, check_output, key_of, new_directory, replace_directory, work_beside
from builders.core.jobs import compiled


def test_a_file_appears_whole_or_the_earlier_one_stays(tmp_path: Path) -> None:
    write_text(tmp_path / "deep/a.txt", "first")
    with pytest.raises(InputError), new_file(tmp_path / "deep/a.txt") as beside:
        beside.write_text("half")
        raise InputError("stop")
    assert (tmp_path / "deep/a.txt").read_text() == "first" and names(tmp_path / "deep") == ["a.txt"]


def test_a_directory_replaces_an_earlier_one_when_it_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for text in ("first", "second"):
        with new_directory(out, "an export", "EXPORT") as folder:
            (folder / "EXPORT").write_text(text)
            assert not (out / "EXPORT").exists() or (out / "EXPORT").read_text() == "first"
    assert (out / "EXPORT").read_text() == "second" and names(tmp_path) == ["out"]
    with pytest.raises(KeyboardInterrupt), new_directory(out, "an export", "EXPORT"):
        raise KeyboardInterrupt
    assert (out / "EXPORT").read_text() == "second" and names(tmp_path) == ["out"]


def test_a_foreign_folder_or_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    assert check_output(tmp_path / "notes", "a release", "manifest.json") == tmp_path / "notes"  # empty
    (tmp_path / "notes/thesis").write_text("years of work")
    for place in ("notes", "notes/thesis"):
        with pytest.raises(InputError, match=r"exists and is not a release; expected a new path or an earlier release"):
            check_output(tmp_path / place, "a release", "manifest.json")


def work(out: Path, key: str, error: type[BaseException] | None, resume: bool = True) -> list[str]:
    with work_beside(out, key, resume=resume) as folder:
        found = names(folder)
        (folder / f"part-{len(found)}").touch()
        if error is not None:
            raise error("stop")
    return found


def test_work_resumes_after_a_kill_and_is_dropped_for_another_key(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for error in (KeyboardInterrupt, OSError, Unfinished):
        with pytest.raises(error):
            work(out, "one", error)
    assert work(out, "one", None) == ["part-0", "part-1", "part-2"]
    assert names(tmp_path) == []  # done: nothing is left
    for key, resume in (("two", True), ("one", True), ("one", False)):
        with pytest.raises(KeyboardInterrupt):
            work(out, "one", KeyboardInterrupt)
        assert work(out, key, None, resume) == (["part-0"] if (key, resume) == ("one", True) else [])


def _build(folder: Path) -> None:
    def build(new: Path) -> None:
        (new / "about").write_text(key_of({"a": 1}))
        with open(folder.with_name("log"), "a") as log:
            log.write("built\n")

    for _ in range(20):
        build_once(folder, (folder / "about").is_file, build)
        with work_beside(folder.with_name("turns"), wait=True) as work:
            folder.with_name("inside").mkdir()  # fails if another worker is inside
            (work / "about").touch()
            folder.with_name("inside").rmdir()
            replace_directory(work, folder.with_name("turns"))


def test_processes_and_threads_take_turns_and_build_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    kinds: list[Any] = 3 * [context.Process, threading.Thread]
    workers = [kind(target=_build, args=(tmp_path / "kept",)) for kind in kinds]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [getattr(worker, "exitcode", 0) for worker in workers] == [0] * 6
    assert (tmp_path / "log").read_text() == "built\n"
    assert names(tmp_path) == ["kept", "log", "turns"]


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


def killed(work: Callable[[], object]) -> None:
    """Do work in another process, which :func:`kill` ends."""
    process = os.fork()
    if not process:
        try:
            work()
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL


def kill(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("making", [new_file, work_beside])
def test_a_place_is_written_by_one_process_at_a_time(tmp_path: Path, making: Callable[[Path], Any]) -> None:
    out = tmp_path / "out"
    with making(out) as beside:
        with pytest.raises(InputError, match="out: is being built by another process"), making(out):
            pytest.fail("it began")
        with making(tmp_path / "other") as other:
            other.is_dir() or other.touch()
        beside.is_dir() or beside.write_text("first")
    assert names(tmp_path) == (["other", "out"] if making is new_file else [])


def test_a_temporary_folder_of_a_killed_process_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "dureader-2.0").mkdir()  # a foreign folder

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
    """A TMPDIR for sockets, whose paths have at most about 100 bytes. ``tmp_path`` is too long."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def pool(temporary: Path, seconds: float) -> subprocess.Popen[str]:
    """Start the script, and wait until its workers have printed their first results."""
    words, piped = [sys.executable, "-c", POOL, str(seconds)], {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen(words, cwd=ROOT, env=environment, text=True, start_new_session=True, **piped)  # type: ignore[call-overload]
    assert process.stdout is not None and process.stdout.readline() == "[1, 2]\n"
    return process


def test_workers_stop_with_their_parent_and_the_next_pool_removes_what_killed_workers_left(short: Path) -> None:
    process = pool(short, 600)
    process.terminate()
    assert process.communicate(timeout=300)[1] == "interrupted\n" and process.returncode == 143
    assert names(short) == []
    process = pool(short, 600)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert names(short)
    assert pool(short, 0).communicate() == ("", "")
    assert names(short) == []


@pytest.mark.slow
@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_kill_while_replacing_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int) -> None:
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


def test_links_to_a_file_are_followed(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    (there / "run").write_text("earlier")
    (here / "run").symlink_to("second")
    (here / "second").symlink_to(Path("../there/run"))
    with new_file(here / "run") as beside:
        beside.write_text("new")
        assert beside.parent == there  # a rename stays on one disk
    assert (here / "run").is_symlink() and not (there / "run").is_symlink()
    assert (there / "run").read_text() == "new" and (names(here), names(there)) == (["run", "second"], ["run"])


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_text()), daemon=True)
    reader.start()
    write_text(tmp_path / "link", "a run\n")
    reader.join(10)
    assert found == ["a run\n"] and (tmp_path / "pipe").is_fifo() and names(tmp_path) == ["link", "pipe"]


@pytest.mark.parametrize("name", ["/dev/stdout", "-"])
def test_an_open_stream_of_the_shell_is_continued(tmp_path: Path, name: str) -> None:
    write = "from pathlib import Path; from builders.core.files import check_file, write_text"
    write += "; import sys; check_file(Path(sys.argv[1])); print('first'); write_text(Path(sys.argv[1]), 'a run\\n')"
    words = [sys.executable, "-c", write, name]
    with open(tmp_path / "all", "w") as out:
        out.write("before\n")
        out.flush()
        subprocess.run(words, cwd=ROOT, stdout=out, check=True)
        out.write("after\n")
    assert (tmp_path / "all").read_text() == "before\nfirst\na run\nafter\n"
    assert names(tmp_path) == ["all"]


def test_a_folder_in_place_of_a_file_is_refused_first(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    said = "folder: is a directory; expected the name of a file"
    with pytest.raises(InputError, match=said), new_file(tmp_path / "folder"):
        pytest.fail("it began")


LONG_AGO = (1_000_000_000, 1_000_000_000)


class Look:
    def __init__(self, fault: str = "") -> None:
        self.times, self.fault = 0, fault

    def __call__(self) -> str:
        self.times += 1
        return self.fault


pytestmark = pytest.mark.usefixtures("own_cache", "settled")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    os.utime(path, LONG_AGO)  # the mtime never changes here
    return path


def test_a_file_is_looked_at_once_for_each_claim(file: Path) -> None:
    one, other = Look(), Look()
    os.link(file, file.with_name("link"))
    for path in (file, file, file.with_name("link")):
        assert fault_once(path, "one", one) == fault_once(path, ["other", 1], other) == ""
    assert (one.times, other.times) == (1, 1)
    fault_once(file, "one", one, again=True)
    assert one.times == 2


def _written_again_with_the_old_mtime(file: Path) -> None:
    before = file.stat()
    while file.stat().st_ctime_ns == before.st_ctime_ns:  # wait for the next tick of the disk's clock
        file.write_bytes(b"CONTENT")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def _replaced(file: Path) -> None:
    file.rename(file.with_name("old"))
    file.write_bytes(b"CONTENT")
    os.utime(file, LONG_AGO)


@pytest.mark.parametrize("change", [_written_again_with_the_old_mtime, _replaced])
def test_a_file_that_has_changed_is_looked_at_again(file: Path, change: Callable[[Path], None]) -> None:
    look = Look()
    fault_once(file, "x", look)
    change(file)
    fault_once(file, "x", look)
    assert look.times == 2


def test_a_file_that_has_only_just_changed_is_not_trusted_yet(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified, "_SETTLED_AFTER", 10**18)
    look = Look()
    fault_once(file, "x", look)
    fault_once(file, "x", look)
    assert look.times == 2


def test_without_a_writable_cache_a_process_looks_once(file: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    look = Look()
    assert [fault_once(file, "x", look) for _ in range(2)] == ["", ""]
    assert look.times == 1


def test_a_cache_that_cannot_be_written_is_named_by_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(tmp_path / "disk", mode="ro") as disk:
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
        for keep, message in (
            (None, f"^{disk}/dureader_retrieval/texts: .*; set XDG_CACHE_HOME to a folder"),
            (disk / "given", f"^{disk}: is not writable"),
        ):
            with pytest.raises(InputError, match=message):
                Cache("texts").folder(keep, {}, lambda folder: (folder / "content").touch())


def test_loops_are_compiled_without_a_cache(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from numba.core.caching import CompileResultCacheImpl

    monkeypatch.setattr(CompileResultCacheImpl, "_locator_classes", [])
    assert compiled(lambda number: number + 1)(1) == 2
    assert "set NUMBA_CACHE_DIR to a writable folder" in caplog.text
