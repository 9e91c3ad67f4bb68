"""Imports of many judgments, and two at once: nothing is lost, nothing comes twice (kills: fuzz/)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from annotating import ANNA, BEN, annotate, export_of, judgments
from commands import ROOT, command

from builders.annotate.rounds import Package, Round, Rule, write_round
from builders.annotate.tasks import Task, write_package
from builders.core.files import alone

PACKAGES = int(os.environ.get("PACKAGES", "10"))  # of 1,000 pairs each; 100 took 6 seconds of one core
TEXT = "高铁票可以在开车前十五天购买，也可以在车站窗口购买。" * 8


def make_round(folder: Path, packages: int, pairs: int) -> Path:
    """A round of so many packages of so many pairs each; all of its tasks in one file."""
    tasks = []
    for number in range(packages):
        place = ("高铁票提前几天买", TEXT, f"dev-{number:03d}", 1)
        own = [Task(f"q{number}", f"p{pair}", *place) for pair in range(pairs)]
        write_package(folder / "packages", f"dev-{number:03d}", own)
        tasks += json.loads((folder / "packages" / f"dev-{number:03d}.json").read_bytes())
    (folder / "tasks.json").write_text(json.dumps(tasks))
    names = [Package(f"dev-{number:03d}", pairs) for number in range(packages)]
    write_round(folder, Round(1, "release", "0" * 64, "dev", "1" * 64, Rule(), names))
    return folder


def exported(round_: Path, who: str) -> Path:
    """Label Studio's export of one person's work on all of it."""
    return export_of(round_ / "tasks.json", who, lambda row: int(row["corpus-id"][1:]) % 2, round_ / f"{who}.json")


def test_many_judgments_are_imported_once(tmp_path: Path) -> None:
    round_ = make_round(tmp_path / "round", packages=PACKAGES, pairs=1_000)
    file = exported(round_, ANNA)
    assert annotate("import", round_, file).stdout.startswith(f"{PACKAGES},000 new judgments of {PACKAGES},000")
    assert annotate("import", round_, file).stdout.startswith(f"0 new judgments of {PACKAGES},000")
    assert len(judgments(round_)) == PACKAGES * 1_000


@pytest.mark.parametrize(("people", "new"), [((ANNA, BEN), [b"1,000", b"1,000"]), ((ANNA, ANNA), [b"0", b"1,000"])])
def test_two_imports_at_once_lose_nothing_and_take_nothing_twice(
    tmp_path: Path, people: tuple[str, str], new: list[bytes]
) -> None:
    round_ = make_round(tmp_path / "round", packages=2, pairs=500)
    running = []
    with alone(round_ / "judgments", round_):  # both are about to write before either may
        for who in people:
            words = command("builders", "annotate", "import", "--round", round_, exported(round_, who))
            running.append(subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        for process in running:
            assert process.stderr is not None and b"waiting for another process" in process.stderr.readline()
    assert sorted(process.communicate(timeout=300)[0].split(b" new")[0] for process in running) == new
    found = [(each["annotator"], each["query-id"], each["corpus-id"]) for each in judgments(round_)]
    assert len(found) == len(set(found)) == 1_000 * len(set(people))
