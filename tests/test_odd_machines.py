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
from builders.core.limits import DiskFull, convert_full_disk
from builders.store.runs import write_run


def write_dev_run(path: Path, step: int = 1) -> Path:
    """Rank the first four passages for both dev queries, backwards with ``step`` -1."""
    passage_ids = [md5(text) for text in TEXTS[:4]][::step]
    hits = [(passage_id, -rank) for rank, passage_id in enumerate(passage_ids)]
    write_run(path, [(md5(question), hits) for question in QUESTIONS["dev"]])
    return path


@pytest.mark.parametrize(
    "words", ["check --release {odd_folder}/release", "export --format trec --release {odd_folder}/release"]
)
def test_a_path_that_is_not_utf8_is_one_line(words: str, tmp_path: Path) -> None:
    odd_folder = tmp_path / os.fsdecode(b"x\xff")
    odd_folder.mkdir()
    make_release(tmp_path / "release").rename(odd_folder / "release")
    options = ["--out", str(tmp_path / "out")] if words.startswith("export") else []
    done = run("builders", *words.format(odd_folder=odd_folder).split(), options, code=1)
    assert "a path is not UTF-8" in error_of(done) and "x\\udcff" in done.stderr


def test_a_missing_library_of_measures_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pytrec_eval", None)
    assert exit_code(lambda: len(per_query({}, None))) == 1  # type: ignore[arg-type]
    assert capfd.readouterr().err.startswith("error: pytrec_eval is not installed: pip install")


# 220 MB end at the import of pyarrow, 300 MB at that of DuckDB. At limits in between, pyarrow itself may abort.
@pytest.mark.parametrize("megabytes", [220, 300])
def test_too_little_memory_to_import_a_library_is_one_line(megabytes: int, tmp_path: Path) -> None:
    def limit_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    words = command("builders", "check", "--release", make_release(tmp_path / "release"))
    process = subprocess.run(words, cwd=ROOT, preexec_fn=limit_memory, capture_output=True, text=True, check=False)
    error_line = error_of(Done(process.returncode, process.stdout, process.stderr))
    assert error_line.startswith("error: not enough memory (")
    assert "Traceback" not in process.stderr


def test_a_failed_fuse_leaves_no_weights(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    tune_runs = [write_dev_run(tmp_path / "a.run"), write_dev_run(tmp_path / "b.run", step=-1)]
    foreign_run = tmp_path / "other.run"
    write_run(foreign_run, [("another", [("p1", 1.0)])])
    words = ["fuse", "--tune", "dev", "--tune-on-these", "--release", release, "--out", tmp_path / "out.run"]
    names_before = names(tmp_path)
    done = run("baselines", words, tune_runs[0], foreign_run, "--tune-runs", tune_runs, code=1)
    assert "the runs share no query" in done.stderr
    assert names(tmp_path) == names_before


def test_a_full_disk_is_named_by_the_thread_that_writes_to_it(tmp_path: Path) -> None:
    has_started = threading.Event()
    may_end = threading.Event()

    def write_elsewhere() -> None:
        with convert_full_disk(Path("/")):
            has_started.set()
            may_end.wait(10)

    # While one thread writes to /, another one fails in tmp_path.
    thread = threading.Thread(target=write_elsewhere)
    thread.start()
    has_started.wait(10)
    with pytest.raises(DiskFull) as error, convert_full_disk(tmp_path):
        raise OSError("No space left on device")
    may_end.set()
    thread.join()
    assert str(error.value).startswith(f"{tmp_path}: ")
