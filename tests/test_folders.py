"""Directories that appear whole or not at all, one process at a time, and work that goes on after a kill."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path

import pytest

from builders.core.errors import InputError, Unfinished
from builders.core.files import new_file, write_text
from builders.core.folders import build_once, check_output, key_of, new_directory, work_beside


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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


def test_what_is_something_else_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    assert check_output(tmp_path / "notes", "a release", "manifest.json") == tmp_path / "notes"  # empty
    (tmp_path / "notes/thesis").write_text("years of work")
    for place in ("notes", "notes/thesis"):
        with pytest.raises(InputError, match=r"exists and is not a release; expected a new path or an earlier release"):
            check_output(tmp_path / place, "a release", "manifest.json")


def work(out: Path, key: str, error: type[BaseException] | None, resume: bool = True) -> list[str]:
    """What one block of ``key`` finds; it leaves a file more."""
    with work_beside(out, key, resume=resume) as folder:
        found = names(folder)
        (folder / f"part-{len(found)}").touch()
        if error is not None:
            raise error("stop")
    return found


def test_work_goes_on_after_a_kill_and_is_dropped_for_another_key(tmp_path: Path) -> None:
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


def test_wrong_input_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        work(tmp_path / "out", "one", KeyboardInterrupt)
    with pytest.raises(InputError):
        work(tmp_path / "out", "one", InputError)
    assert names(tmp_path) == []


def test_one_at_a_time(tmp_path: Path) -> None:
    with work_beside(tmp_path / "out"):
        with pytest.raises(InputError, match="out: is being built by another process"), work_beside(tmp_path / "out"):
            pass
        with work_beside(tmp_path / "other"):
            pass
    with work_beside(tmp_path / "out"):
        pass
    assert names(tmp_path) == []


def _build(folder: Path) -> None:
    def build(new: Path) -> None:
        (new / "about").write_text(key_of({"a": 1}))
        with open(folder.with_name("log"), "a") as log:
            log.write("built\n")

    for _ in range(20):
        build_once(folder, (folder / "about").is_file, build)


def test_what_several_processes_and_threads_want_is_built_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers: list[threading.Thread | multiprocessing.process.BaseProcess] = [
        kind(target=_build, args=(tmp_path / "kept",)) for kind in 3 * [context.Process, threading.Thread]
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (tmp_path / "log").read_text() == "built\n"
    assert names(tmp_path) == ["kept", "log"]
