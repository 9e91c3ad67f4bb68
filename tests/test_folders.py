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

import pytest
from commands import ROOT, names
from environments import small_disk

from baselines.core.passages import PassageCache
from builders.core import cache as verified
from builders.core.cache import cache_folder, fault_once
from builders.core.errors import InputError, Unfinished
from builders.core.folders import build_once, check_output, key_of, new_directory, replace_directory, work_beside
from builders.core.jobs import compiled
from builders.core.locks import temporary_folder
from builders.core.write_files import new_file, write_text


def test_a_file_appears_whole_or_the_earlier_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.txt"
    write_text(path, "first")
    with pytest.raises(InputError), new_file(path) as beside:
        beside.write_text("half")
        raise InputError("stop")
    assert path.read_text() == "first"
    assert names(path.parent) == ["a.txt"]


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
    for name in ("notes", "notes/thesis"):
        with pytest.raises(InputError, match=r"exists and is not a release; expected a new path or an earlier release"):
            check_output(tmp_path / name, "a release", "manifest.json")


def add_part(out: Path, key: str, error: type[BaseException] | None, resume: bool = True) -> list[str]:
    """Add a part to the work for ``out``, and then fail with the error. Return the names of the earlier parts."""
    with work_beside(out, key, resume=resume) as folder:
        earlier_parts = names(folder)
        (folder / f"part-{len(earlier_parts)}").touch()
        if error is not None:
            raise error("stop")
    return earlier_parts


def test_work_resumes_after_a_kill(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for error in (KeyboardInterrupt, OSError, Unfinished):
        with pytest.raises(error):
            add_part(out, "one", error)
    assert add_part(out, "one", None) == ["part-0", "part-1", "part-2"]
    assert names(tmp_path) == []  # done: nothing is left


@pytest.mark.parametrize(
    ("key", "resume", "earlier_parts"), [("two", True, []), ("one", True, ["part-0"]), ("one", False, [])]
)
def test_work_is_dropped_for_another_key(tmp_path: Path, key: str, resume: bool, earlier_parts: list[str]) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        add_part(out, "one", KeyboardInterrupt)
    assert add_part(out, key, None, resume) == earlier_parts


def _build(folder: Path) -> None:
    """Build the folder and the folder ``turns`` beside it twenty times, together with other workers."""
    inside = folder.with_name("inside")
    turns = folder.with_name("turns")

    def build(new_folder: Path) -> None:
        (new_folder / "about").write_text(key_of({"a": 1}))
        with open(folder.with_name("log"), "a") as log:
            log.write("built\n")

    for _ in range(20):
        build_once(folder, (folder / "about").is_file, build)
        with work_beside(turns, wait=True) as work_folder:
            inside.mkdir()  # fails if another worker is inside
            (work_folder / "about").touch()
            inside.rmdir()
            replace_directory(work_folder, turns)


def test_processes_and_threads_take_turns_and_build_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_build, args=(tmp_path / "built",)) for _ in range(3)]
    threads = [threading.Thread(target=_build, args=(tmp_path / "built",)) for _ in range(3)]
    for worker in processes + threads:
        worker.start()
    for worker in processes + threads:
        worker.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert (tmp_path / "log").read_text() == "built\n"
    assert names(tmp_path) == ["built", "log", "turns"]


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


def run_until_killed(work: Callable[[], object]) -> None:
    """Do work in another process, which :func:`kill` ends."""
    process_id = os.fork()
    if not process_id:
        try:
            work()
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(process_id, 0)[1]) == signal.SIGKILL


def kill(*_: object) -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_file_is_written_by_one_process_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with new_file(out) as beside:
        with pytest.raises(InputError, match="out: is being built by another process"), new_file(out):
            pytest.fail("it began")
        with new_file(tmp_path / "other") as beside_other:
            beside_other.touch()
        beside.write_text("first")
    assert names(tmp_path) == ["other", "out"]


def test_work_is_done_by_one_process_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with work_beside(out):
        with pytest.raises(InputError, match="out: is being built by another process"), work_beside(out):
            pytest.fail("it began")
        with work_beside(tmp_path / "other"):
            pass
    assert names(tmp_path) == []


def test_a_temporary_folder_of_a_killed_process_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "dureader-2.0").mkdir()  # a foreign folder

    def work() -> None:
        with temporary_folder() as folder:
            (folder / "passages").write_text("gigabytes")
            kill()

    with temporary_folder() as in_use:
        run_until_killed(work)
        assert len(names(tmp_path)) == 5  # two temporary folders, their locks, and the foreign folder
        with temporary_folder() as new_folder:
            visible_names = {name for name in names(tmp_path) if not name.startswith(".")}
            assert visible_names == {"dureader-2.0", in_use.name, new_folder.name}
        assert in_use.is_dir()
    assert names(tmp_path) == ["dureader-2.0"]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A TMPDIR for sockets, whose paths have at most about 100 bytes. ``tmp_path`` is too long."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def start_pool(temporary: Path, seconds: float) -> subprocess.Popen[str]:
    """Start the script, and wait until its workers have printed their first results."""
    process = subprocess.Popen(
        [sys.executable, "-c", POOL, str(seconds)],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary)},
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "[1, 2]\n"
    return process


def test_workers_stop_with_their_parent(short_folder: Path) -> None:
    process = start_pool(short_folder, 600)
    process.terminate()
    assert process.communicate(timeout=300)[1] == "interrupted\n"
    assert process.returncode == 143
    assert names(short_folder) == []


def test_the_next_pool_removes_what_killed_workers_left(short_folder: Path) -> None:
    process = start_pool(short_folder, 600)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert names(short_folder)
    assert start_pool(short_folder, 0).communicate() == ("", "")
    assert names(short_folder) == []


@pytest.mark.slow
@pytest.mark.parametrize(("renames", "expected_text"), [(0, "first"), (1, "first"), (2, "second")])
def test_a_kill_while_replacing_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int, expected_text: str
) -> None:
    out = tmp_path / "out"
    rename = os.rename

    def write(text: str) -> None:
        with new_directory(out, "an export", "EXPORT") as folder:
            (folder / "EXPORT").write_text(text)

    def rename_or_kill(*paths: str) -> None:
        nonlocal renames
        renames -= 1
        if renames < 0:
            kill()
        rename(*paths)

    def kill_at_deletion(path: Path, **_: object) -> None:
        if path.exists():
            kill()

    write("first")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename_or_kill)
        patch.setattr("shutil.rmtree", kill_at_deletion)
        run_until_killed(lambda: write("second"))
    assert names(tmp_path) != ["out"]
    # The next work finishes or undoes the replacement.
    with work_beside(out):
        assert (out / "EXPORT").read_text() == expected_text
    assert names(tmp_path) == ["out"]


def test_links_to_a_file_are_followed(tmp_path: Path) -> None:
    here = tmp_path / "here"
    there = tmp_path / "there"
    here.mkdir()
    there.mkdir()
    # here/run leads to here/second, and this to there/run.
    (there / "run").write_text("earlier")
    (here / "run").symlink_to("second")
    (here / "second").symlink_to(Path("../there/run"))
    with new_file(here / "run") as beside:
        beside.write_text("new")
        assert beside.parent == there  # a rename stays on one disk
    assert (here / "run").is_symlink() and not (there / "run").is_symlink()
    assert (there / "run").read_text() == "new"
    assert names(here) == ["run", "second"]
    assert names(there) == ["run"]


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to("pipe")
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()), daemon=True)
    reader.start()
    write_text(tmp_path / "link", "a run\n")
    reader.join(300)
    assert received == ["a run\n"]
    assert pipe.is_fifo() and names(tmp_path) == ["link", "pipe"]


WRITE_TO_STDOUT = """
import sys
from pathlib import Path
from builders.core.paths import check_file
from builders.core.write_files import write_text

check_file(Path(sys.argv[1]))
print("first")
write_text(Path(sys.argv[1]), "a run\\n")
"""


@pytest.mark.parametrize("name", ["/dev/stdout", "-"])
def test_an_open_stream_of_the_shell_is_continued(tmp_path: Path, name: str) -> None:
    with open(tmp_path / "all", "w") as out:
        out.write("before\n")
        out.flush()
        subprocess.run([sys.executable, "-c", WRITE_TO_STDOUT, name], cwd=ROOT, stdout=out, check=True)
        out.write("after\n")
    assert (tmp_path / "all").read_text() == "before\nfirst\na run\nafter\n"
    assert names(tmp_path) == ["all"]


def test_a_folder_in_place_of_a_file_is_refused_first(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    problem = "folder: is a directory; expected the name of a file"
    with pytest.raises(InputError, match=problem), new_file(tmp_path / "folder"):
        pytest.fail("it began")


LONG_AGO = (1_000_000_000, 1_000_000_000)


class CountedCheck:
    """A check of a file that counts its calls and finds no fault."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        return ""


pytestmark = pytest.mark.usefixtures("own_cache", "settled")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file whose time of change is long ago, before and after each change of a test."""
    path = tmp_path / "file"
    path.write_bytes(b"content")
    os.utime(path, LONG_AGO)
    return path


def test_a_file_is_looked_at_once_for_each_claim(file: Path) -> None:
    first_check = CountedCheck()
    second_check = CountedCheck()
    link = file.with_name("link")
    os.link(file, link)  # a hard link, so the inode is the same
    for path in (file, file, link):
        assert fault_once(path, "one", first_check) == ""
        assert fault_once(path, ["other", 1], second_check) == ""
    assert (first_check.calls, second_check.calls) == (1, 1)
    fault_once(file, "one", first_check, again=True)
    assert first_check.calls == 2


def _write_again_with_the_old_mtime(file: Path) -> None:
    """Change the content, and set the time of change back."""
    before = file.stat()
    while file.stat().st_ctime_ns == before.st_ctime_ns:  # wait for the next tick of the disk's clock
        file.write_bytes(b"CONTENT")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def _replace_by_another_file(file: Path) -> None:
    """Put another file of the same size and time of change in the file's place."""
    file.rename(file.with_name("old"))
    file.write_bytes(b"CONTENT")
    os.utime(file, LONG_AGO)


@pytest.mark.parametrize("change", [_write_again_with_the_old_mtime, _replace_by_another_file])
def test_a_file_that_has_changed_is_looked_at_again(file: Path, change: Callable[[Path], None]) -> None:
    check = CountedCheck()
    fault_once(file, "x", check)
    change(file)
    fault_once(file, "x", check)
    assert check.calls == 2


def test_a_file_that_has_only_just_changed_is_not_trusted_yet(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified, "_SETTLED_AFTER", 10**18)
    check = CountedCheck()
    fault_once(file, "x", check)
    fault_once(file, "x", check)
    assert check.calls == 2


def test_without_a_writable_cache_a_process_looks_once(file: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    check = CountedCheck()
    assert fault_once(file, "x", check) == ""
    assert fault_once(file, "x", check) == ""
    assert check.calls == 1


def test_the_cache_is_in_the_folder_of_the_first_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/li")
    monkeypatch.setenv("XDG_CACHE_HOME", "/disk")
    monkeypatch.setenv("DUREADER_RETRIEVAL_CACHE", "~/indexes")
    assert cache_folder() == Path("/home/li/indexes")
    monkeypatch.setenv("DUREADER_RETRIEVAL_CACHE", "")
    assert cache_folder() == Path("/disk/dureader_retrieval")
    monkeypatch.delenv("XDG_CACHE_HOME")
    folder_by_system = {"linux": ".cache/dureader_retrieval", "darwin": "Library/Caches/dureader_retrieval"}
    if sys.platform in folder_by_system:
        assert cache_folder() == Path("/home/li", folder_by_system[sys.platform])


def test_a_cache_that_cannot_be_written_is_named_by_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(folder: Path) -> None:
        (folder / "content").touch()

    with small_disk(tmp_path / "disk", mode="ro") as disk:
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
        message = f"^{disk}/dureader_retrieval/texts: .*; set DUREADER_RETRIEVAL_CACHE to a folder"
        with pytest.raises(InputError, match=message):
            PassageCache("texts").folder(None, {}, make)
        with pytest.raises(InputError, match=f"^{disk}: is not writable"):
            PassageCache("texts").folder(disk / "given", {}, make)


def test_loops_are_compiled_without_a_cache(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from numba.core.caching import CompileResultCacheImpl

    # No locator finds a folder, as on a machine where none is writable.
    monkeypatch.setattr(CompileResultCacheImpl, "_locator_classes", [])
    assert compiled(lambda number: number + 1)(1) == 2
    assert "set NUMBA_CACHE_DIR to a writable folder" in caplog.text
