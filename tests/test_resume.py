"""A build that is killed, and goes on."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import ROOT, command, run
from rows import row, write_rows

from builders.core.jobs import WorkerDied
from builders.release import label, write
from builders.release import rows as raw
from builders.release.build import build_release
from builders.release.options import Options
from builders.release.write import NewFile
from builders.sources import lines
from builders.store import layout


def tree(folder: Path) -> dict[str, str]:
    return {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in folder.rglob("*")
        if p.is_file()
    }


def test_a_build_or_its_worker_is_killed_and_goes_on(shared_data: Path, tmp_path: Path) -> None:
    """A kill leaves no release or a whole one, and no processes. The next build goes on from the finished blocks."""
    source, out = tmp_path / "raw", tmp_path / "out"
    source.mkdir()
    for split in ("train", "dev", "test"):
        packed = (shared_data / f"dureader-2.0-demo/search.{split}.json.gz").read_bytes()
        # The same rows again are merged away: more work to be killed in, the same release.
        (source / f"search.{split}.json").write_bytes(gzip.decompress(packed) * 7)
    options = ["--raw", source, "--unit", "char", "--workers", 2]
    run("builders", "release", *options, "--out", tmp_path / "whole")
    finished = dict[str, int]()
    for number in range(4):
        words = command("builders", "release", *options, "--out", out)
        process = psutil.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)
        while process.poll() is None and len(blocks_of(tmp_path)) <= len(finished):
            time.sleep(0.01)
        children = process.children(recursive=True)
        for each in children[-1:] if number % 2 else [process, *children]:
            each.kill()
        assert process.wait(60) and not psutil.wait_procs(children, timeout=30)[1] and not out.exists()
        assert finished.items() <= blocks_of(tmp_path).items()  # none was built again
        finished = blocks_of(tmp_path)
    run("builders", "release", *options, "--out", out)
    assert tree(out) == tree(tmp_path / "whole")
    assert {p.name for p in tmp_path.iterdir()} == {"raw", "out", "whole"}


def blocks_of(folder: Path) -> dict[str, int]:
    """The finished blocks of the build under ``folder``, and what tells one that was labelled again."""
    found = folder.glob(".out.building/*/*")
    return {p.name: p.stat().st_ino for p in found if p.name.isdigit() and p.parent.name != "discarded"}


class Stopping:
    """An engine whose worker dies after so many files."""

    workers = 1

    def __init__(self, files: int) -> None:
        self._files = files

    def map(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        for number, task in enumerate(tasks):
            if isinstance(task, NewFile) and number == self._files:
                raise WorkerDied
            yield function(task)


def test_a_build_stopped_after_every_file_does_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = "见干见湿,冬天少浇水"
    rows = [row(n, f"绿萝怎么养{n}", [[f"第{n}段。"], [answer, f"又{n % 3}段。"]], [answer]) for n in range(12)]
    write_rows(tmp_path / "raw/train.json", rows[:9])
    write_rows(tmp_path / "raw/dev.json", rows[9:])
    sources, options = raw.find_sources([tmp_path / "raw"]), Options(unit="char", min_chars=4)
    monkeypatch.setattr(layout, "ROWS_PER_SHARD", 3)
    monkeypatch.setattr(lines.read_blocks, "__defaults__", (300, ()))
    build_release(sources, tmp_path / "whole", options)
    labelled, written, stops = [], [], 0
    write_labelled, write_tables = label.write_labelled, write._tables

    def count_labelled(folder: Path, name: str, columns: Any) -> None:
        labelled.append((folder.name.split(".")[0], name))
        write_labelled(folder, name, columns)

    def count_written(file: NewFile, work: Path) -> Any:
        written.append((file.config, file.split, file.number))
        return write_tables(file, work)

    monkeypatch.setattr(label, "write_labelled", count_labelled)
    monkeypatch.setattr(write, "_tables", count_written)
    while not (tmp_path / "out").exists():
        try:
            build_release(sources, tmp_path / "out", options, engine=Stopping(len(written) + 1))
        except WorkerDied:
            stops += 1
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")
    assert len(labelled) == len(set(labelled)) == 3 * len(list(lines.read_blocks(sources)))
    assert len(written) == len(set(written)) == len(list((tmp_path / "out").rglob("*.parquet"))) == stops + 1
    assert {p.name for p in tmp_path.iterdir()} == {"raw", "out", "whole"}
