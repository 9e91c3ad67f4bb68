"""``croissant.json`` of a published release, read by mlcroissant: from a loopback hub, checksums and all, and a copy.

``make test-croissant`` runs it: mlcroissant has an environment of its own in ``.venvs/croissant``, or in the folder
that ``DUREADER_RETRIEVAL_VENV_CROISSANT`` names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT
from environments import clean_environ, environment
from hub_repos import Blob
from hub_server import Hub
from publishing import REPO, Publish, _equal_figures_are_drawn_once, hub, publish, release  # noqa: F401
from releases import make_release, tables
from whole_release import whole_tables

from builders.publish.croissant import croissant
from builders.store.reader import open_release

REQUIREMENTS = ROOT / "tests" / "croissant-requirements.txt"
READ = """
import json, logging, sys
import mlcroissant as mlc

dataset = mlc.Dataset(sys.argv[1])
issues = dataset.metadata.ctx.issues
found = {"errors": sorted(issues.errors), "warnings": sorted(issues.warnings), "rows": {}}

def plain(value):
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [plain(each) for each in value] if isinstance(value, list) else value

for records in dataset.metadata.record_sets:
    if len(sys.argv) < 3 or records.id in sys.argv[2:]:
        found["rows"][records.id] = [plain(row) for row in dataset.records(records.id)]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def python() -> Path:
    if not os.environ.get("TEST_CROISSANT"):
        pytest.skip("takes an environment of its own: make test-croissant")
    if sys.version_info[:2] != (3, 11):
        pytest.skip("mlcroissant's environment is pinned for Python 3.11")
    return environment("croissant", REQUIREMENTS, "DUREADER_RETRIEVAL_VENV_CROISSANT", borrow=True) / "python"


def read(python: Path, home: Path, where: str, *records: str, code: int = 0) -> Any:
    """What mlcroissant reads of ``records`` (none named: of all), and its findings; with ``code`` 1 what it says."""
    done = subprocess.run(
        [python, "-c", READ, where, *records],
        env=clean_environ() | {"HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) if code == 0 else done.stderr


def as_croissant(value: Any, place: str) -> Any:
    """A row as mlcroissant gives it: every name with the names of what it stands in."""
    if isinstance(value, list):
        return [as_croissant(each, place) for each in value]
    if isinstance(value, dict):
        return {f"{place}/{key}": as_croissant(each, f"{place}/{key}") for key, each in value.items()}
    return value


def test_mlcroissant_reads_every_row_from_the_hub(python: Path, hub: Hub, publish: Publish, tmp_path: Path) -> None:
    publish("--create")
    found = read(python, tmp_path / "home", f"{hub.url}/datasets/{REPO}/resolve/main/croissant.json")
    assert (found["errors"], found["warnings"]) == ([], [])
    expected = {"-".join(place): as_croissant(rows, "-".join(place)) for place, rows in whole_tables().items()}
    assert found["rows"] == expected


def test_splits_of_many_files_are_read_from_a_copy(python: Path, tmp_path: Path) -> None:
    rows = tables()
    opened = open_release(make_release(tmp_path / "copy", rows, rows_per_shard=2))
    entries = [entry for entry in opened.manifest.files if entry.path.endswith(".parquet")]
    text = croissant(entries, opened.manifest.builds, REPO, "https://example.org", "2026-11-22")
    (opened.path / "croissant.json").write_text(text, encoding="utf-8")
    found = read(python, tmp_path / "home", str(opened.path / "croissant.json"), "corpus-corpus")
    assert (found["errors"], found["warnings"]) == ([], [])
    assert found["rows"]["corpus-corpus"] == as_croissant(rows["corpus", "corpus"], "corpus-corpus")


def test_a_file_that_is_not_what_it_says_is_refused(python: Path, hub: Hub, publish: Publish, tmp_path: Path) -> None:
    publish("--create")
    name = "queries/dev-00000-of-00001.parquet"
    held = hub.repos["dataset", REPO].commits[-1].files
    held[name] = Blob(held["queries/train-00000-of-00001.parquet"].content, True)
    where = f"{hub.url}/datasets/{REPO}/resolve/main/croissant.json"
    assert "is not identical with the reference in the Croissant" in read(
        python, tmp_path / "home", where, "queries-dev", code=1
    )
