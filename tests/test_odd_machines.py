"""Odd paths, missing libraries and little memory are one line; a command that fails leaves nothing."""

import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from commands import ROOT, Done, command, error_of, names, run
from releases import QUESTIONS, TEXTS, make_release, md5

from baselines.measure.measures import per_query
from builders.core.exit_codes import exit_code
from builders.core.limits import DiskFull, writing
from builders.store.runs import write_run


def write_dev_run(path: Path, order: int = 1) -> Path:
    ids = [md5(text) for text in TEXTS[:4]][::order]
    write_run(path, [(md5(query), [(each, -rank) for rank, each in enumerate(ids)]) for query in QUESTIONS["dev"]])
    return path


@pytest.mark.parametrize("words", ["check --release {odd}/release", "export --format trec --release {odd}/release"])
def test_a_path_that_is_not_utf8_is_one_line(words: str, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"x\xff")
    odd.mkdir()
    make_release(tmp_path / "release").rename(odd / "release")
    options = ["--out", str(tmp_path / "out")] if words.startswith("export") else []
    done = run("builders", *words.format(odd=odd).split(), *options, code=1)
    assert "a path is not UTF-8" in error_of(done) and "x\\udcff" in done.stderr


def test_a_missing_library_of_measures_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pytrec_eval", None)
    assert exit_code(lambda: len(per_query({}, None))) == 1  # type: ignore[arg-type]
    assert capfd.readouterr().err.startswith("error: pytrec_eval is not installed: pip install")


@pytest.mark.parametrize("megabytes", [240, 320])
def test_too_little_memory_for_a_library_is_one_line(megabytes: int, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    words = command("builders", "check", "--release", make_release(tmp_path / "release"))
    done = subprocess.run(words, cwd=ROOT, preexec_fn=limit, capture_output=True, text=True, check=False)
    assert error_of(Done(done.returncode, done.stdout, done.stderr)).startswith("error: not enough memory (")
    assert "Traceback" not in done.stderr


def test_a_failed_fuse_leaves_no_weights(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    runs = [write_dev_run(tmp_path / "a.run"), write_dev_run(tmp_path / "b.run", order=-1)]
    other = tmp_path / "other.run"
    write_run(other, [("another", [("p1", 1.0)])])
    words = ["fuse", "--tune", "dev", "--tune-on-these", "--release", release, "--out", tmp_path / "out.run"]
    before = names(tmp_path)
    done = run("baselines", *words, runs[0], other, "--tune-runs", *runs, code=1)
    assert "the runs share no query" in done.stderr and names(tmp_path) == before


def test_a_full_disk_is_named_by_the_thread_that_writes_to_it(tmp_path: Path) -> None:
    inside, done = threading.Event(), threading.Event()

    def write_elsewhere() -> None:
        with writing(Path("/")):
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=write_elsewhere)
    thread.start()
    inside.wait(10)
    with pytest.raises(DiskFull) as caught, writing(tmp_path):
        raise OSError("No space left on device")
    done.set()
    thread.join()
    assert str(caught.value).startswith(f"{tmp_path}: ")
