"""A build that is killed, and goes on."""

from __future__ import annotations

import gzip
import hashlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

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


def of_group(group: int) -> dict[int, int]:
    """The living processes of a process group: process id to parent's. Nothing where the system has no /proc."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, of = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # gone meanwhile
            continue
        if int(of) == group and state != "Z":
            found[int(stat.parent.name)] = int(parent)
    return found


def kill(process: subprocess.Popen[bytes], one: random.Random | None) -> bool:
    """Kill the whole build, or one of its workers; returns whether there was anything to kill."""
    if process.poll() is not None:
        return False
    # Workers are not children of the build itself but of the process that they are forked from.
    group = of_group(process.pid)
    workers = [pid for pid, parent in group.items() if parent in group and parent != process.pid]
    if one is None or not workers:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    else:
        os.kill(one.choice(workers), signal.SIGKILL)
        assert process.wait(60) in (0, 1)  # 0: the worker had nothing left to do
    return True


def test_ten_kills_in_a_row(shared_data: Path, tmp_path: Path) -> None:
    """Killed at any moment, as a whole or a worker of it, a build leaves no release or a whole one, and no processes.

    The next one needs no cleaning up: it goes on from the finished blocks, and ends with the same bytes.
    """
    chosen = random.Random(1)
    source, out = tmp_path / "raw", tmp_path / "out"
    source.mkdir()
    for split in ("train", "dev", "test"):
        packed = (shared_data / f"dureader-2.0-demo/search.{split}.json.gz").read_bytes()
        # The same rows again are merged away: more work to be killed in, the same release.
        (source / f"search.{split}.json").write_bytes(gzip.decompress(packed) * 7)
    options = ["--raw", source, "--unit", "char", "--workers", 2]
    run("builders", "release", *options, "--out", tmp_path / "whole")
    killed, reused, finished = 0, 0, dict[str, int]()
    while killed < 10:
        process = subprocess.Popen(
            command("builders", "release", *options, "--out", out),
            cwd=ROOT,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        # One kill in three comes when all blocks are finished, the others after a new one or two.
        wanted = 1_000 if chosen.random() < 0.3 else len(finished) + chosen.randint(0, 2)
        while (
            process.poll() is None and len(blocks_of(tmp_path)) < wanted and not list(tmp_path.glob(".out.*/*/release"))
        ):
            time.sleep(0.01)
        time.sleep(chosen.uniform(0, 0.3))
        killed += kill(process, chosen if chosen.random() < 0.5 else None)
        deadline = time.monotonic() + 30
        while of_group(process.pid):
            assert time.monotonic() < deadline, "the build is dead, its workers are not"
            time.sleep(0.01)
        found = blocks_of(tmp_path)
        if out.exists():
            assert tree(out) == tree(tmp_path / "whole")
            shutil.rmtree(out)
        else:
            assert finished.items() <= found.items()  # none was built again
            reused += bool(finished)
        finished = found
    run("builders", "release", *options, "--out", out)
    assert tree(out) == tree(tmp_path / "whole")
    assert {p.name for p in tmp_path.iterdir()} == {"raw", "out", "whole"}
    assert reused >= 5


def blocks_of(folder: Path) -> dict[str, int]:
    """The finished blocks of the build under ``folder``, and what tells one that was labelled again."""
    found = folder.glob(".out.building/*/*")
    # What is being removed is of no use any more.
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
