"""Processes that may not have all the memory of their machine."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest
from commands import ROOT, SAMPLE, command, run

from builders.core.limits import memory_limit, reserve_little, usable_cores


def limited(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (size if kind == resource.RLIMIT_AS else -1, -1))


def test_without_a_limit_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, resource.RLIM_INFINITY)
    before = dict(os.environ)
    reserve_little()
    assert memory_limit() is None and usable_cores() == len(os.sched_getaffinity(0)) and dict(os.environ) == before


def test_little_memory_means_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    for size, cores in ((1 << 30, 1), (2 << 30, 1), (9 << 30, 4), (1 << 40, 16)):
        limited(monkeypatch, size)
        assert usable_cores() == cores


def test_too_little_memory_for_any_command_is_said_at_its_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limited(monkeypatch, 100 << 20)
    said = run("builders", "release", "--raw", SAMPLE, "--out", tmp_path / "out", code=1).error
    assert said == "not enough memory (ulimit -v or -d allows 100 MB; at least 1024 MB are needed)"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        f"builders release --quiet --raw {SAMPLE} --out OUT/release",
        "baselines bm25 --quiet --release RELEASE --index OUT/index --out OUT/run",
    ],
)
def test_a_release_is_built_and_searched_in_2_gb_of_addresses(sample_release: Path, tmp_path: Path, words: str) -> None:
    """Both ended by a signal: libraries reserved more for their threads than they use."""
    places = {"OUT": str(tmp_path), "RELEASE": str(sample_release)}
    for name, path in places.items():
        words = words.replace(name, path)
    limited = ["bash", "-c", 'ulimit -v 2097152; exec "$@"', "bash", *command(*words.split())]
    done = subprocess.run(limited, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
