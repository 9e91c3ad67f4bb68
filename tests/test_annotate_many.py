"""Imports of many judgments: whole, killed at any moment, two at once; nothing is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from annotating import ANNA, BEN, annotate, judgments
from commands import ROOT, command

from builders.annotate.judgments import read_judgments
from builders.annotate.rounds import Item, Package, Round, Rule, write_round
from builders.annotate.studio import Exported
from builders.core.files import alone

PACKAGES = int(os.environ.get("PACKAGES", "10"))  # of 1,000 pairs each; 100 took 6 seconds of one core
TEXT = "高铁票可以在开车前十五天购买，也可以在车站窗口购买。" * 8


def make_round(folder: Path, packages: int, pairs: int) -> Path:
    """A round of so many packages of so many pairs each."""
    (folder / "packages").mkdir(parents=True)
    for number in range(packages):
        items = [Item(f"q{number}", f"p{place}", "高铁票提前几天买", TEXT) for place in range(pairs)]
        lines = b"".join(msgspec.json.encode(item) + b"\n" for item in items)
        (folder / "packages" / f"dev-{number:03d}.jsonl").write_bytes(lines)
    names = [Package(f"dev-{number:03d}", pairs) for number in range(packages)]
    write_round(folder, Round(1, "release", "0" * 64, "dev", "1" * 64, Rule(), names))
    return folder


def exported(folder: Path, who: str, packages: int, pairs: int) -> Path:
    """Label Studio's export of one person's work on all of it."""
    tasks: list[dict[str, Any]] = []
    for number in range(packages):
        for place in range(pairs):
            data = {"package": f"dev-{number:03d}", "version": 1, "kind": "annotation", "passage_html": TEXT}
            choice = {"from_name": "label", "type": "choices", "value": {"choices": [str(place % 2)]}}
            done = {"result": [choice], "completed_by": {"id": 1, "email": who}, "updated_at": "2024-05-01T12:00:00Z"}
            tasks.append({"data": data | {"query-id": f"q{number}", "corpus-id": f"p{place}"}, "annotations": [done]})
    path = folder / f"{who}.json"
    path.write_text(json.dumps(tasks))
    assert len(msgspec.json.decode(path.read_bytes(), type=list[Exported])) == packages * pairs
    return path


def start(round_: Path, file: Path) -> subprocess.Popen[bytes]:
    words = command("builders", "annotate", "import", "--round", round_, file)
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_many_judgments_are_imported_once(tmp_path: Path) -> None:
    round_ = make_round(tmp_path / "round", packages=PACKAGES, pairs=1_000)
    file = exported(tmp_path, ANNA, packages=PACKAGES, pairs=1_000)
    assert annotate("import", round_, file).stdout.startswith(f"{PACKAGES},000 new judgments of {PACKAGES},000")
    assert annotate("import", round_, file).stdout.startswith(f"0 new judgments of {PACKAGES},000")
    assert len(read_judgments(round_)) == PACKAGES * 1_000


def start_both(round_: Path, files: Sequence[Path]) -> list[subprocess.Popen[bytes]]:
    """Two processes that import at the same time: both are about to write before either may."""
    with alone(round_ / "judgments", round_):
        running = [start(round_, file) for file in files]
        for process in running:
            assert process.stderr is not None and b"waiting for another process" in process.stderr.readline()
    return running


def test_two_imports_at_once_lose_nothing(tmp_path: Path) -> None:
    round_ = make_round(tmp_path / "round", packages=4, pairs=500)
    running = start_both(round_, [exported(tmp_path, who, packages=4, pairs=500) for who in (ANNA, BEN)])
    for process in running:
        said, error = process.communicate(timeout=300)
        assert process.returncode == 0 and said.startswith(b"2,000 new judgments"), error
    found = [(each["annotator"], each["query-id"], each["corpus-id"]) for each in judgments(round_)]
    assert len(found) == len(set(found)) == 4_000


def test_a_killed_import_loses_nothing_and_is_made_up_for_by_the_next(tmp_path: Path) -> None:
    round_ = make_round(tmp_path / "round", packages=4, pairs=2_000)
    first = exported(tmp_path, ANNA, packages=4, pairs=2_000)
    annotate("import", round_, first)
    kept = {path: path.read_bytes() for path in (round_ / "judgments").glob("*.jsonl")}
    second = exported(tmp_path, BEN, packages=4, pairs=2_000)
    process = start(round_, second)
    lock = round_ / ".judgments.lock"
    while process.poll() is None and not lock.exists():  # from here on it reads what is there, and writes
        time.sleep(0.002)
    time.sleep(random.Random(0).uniform(0, 0.2))
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert all(path.read_bytes() == content for path, content in kept.items())
    annotate("import", round_, second)
    found = [(each["annotator"], each["query-id"], each["corpus-id"]) for each in judgments(round_)]
    assert len(found) == len(set(found)) == 16_000
    assert not [path for path in (round_ / "judgments").iterdir() if path.suffix != ".jsonl"]


def test_the_same_import_in_two_processes_at_once_is_taken_once(tmp_path: Path) -> None:
    round_ = make_round(tmp_path / "round", packages=2, pairs=500)
    file = exported(tmp_path, ANNA, packages=2, pairs=500)
    running = start_both(round_, [file, file])
    said = sorted(process.communicate(timeout=300)[0].split(b" new")[0] for process in running)
    assert said == [b"0", b"1,000"] and len(judgments(round_)) == 1_000
