"""Fixtures for tests of `publish`: publish to a loopback hub, and read the published release."""

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Done
from hub_client import run_at
from hub_repos import WRITE
from hub_server import Hub

from builders.check.histograms import draw
from builders.store.table3 import LengthCounter

REPO = "org/name"
Publish = Callable[..., Done]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as hub:
        yield hub


@pytest.fixture
def release(whole_copy: Path) -> Path:
    return whole_copy


_DRAWN: dict[bytes, dict[str, bytes]] = {}


@pytest.fixture(autouse=True)
def _equal_figures_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip drawing, which takes most of the time of such a small publication."""

    def drawn(*counted: dict[str, LengthCounter]) -> dict[str, bytes]:
        key = pickle.dumps(counted)
        if key not in _DRAWN:
            _DRAWN[key] = draw(*counted)
        return _DRAWN[key]

    monkeypatch.setattr("builders.publish.upload.draw", drawn)


@pytest.fixture
def publish(hub: Hub, release: Path, tmp_path: Path) -> Publish:
    def run(*more: str, token: str | None = WRITE, path: Path = release, code: int = 0) -> Done:
        words = ["publish", "--release", path, "--repo", REPO, *more]
        return run_at(hub, tmp_path / "home", "builders", *words, token=token, code=code)

    return run


def listed(hub: Hub) -> dict[str, bytes]:
    return hub.repos["dataset", REPO].files


def load(hub: Hub, home: Path, how: str, interpreter: Path | str = sys.executable) -> Any:
    """Load the rows of every published config in another process that has only ``datasets``."""
    code = f"""
import datasets, json, os, sys
names = datasets.get_dataset_config_names({REPO!r})
loaded = {{name: datasets.load_dataset({REPO!r}, name, {how}) for name in names}}
print(json.dumps({{name: {{split: list(rows) for split, rows in found.items()}} for name, found in loaded.items()}}))
sys.stdout.flush()
os._exit(0)  # an interpreter of 3.6 that has streamed Parquet can abort while it shuts down
"""
    environment = hub.environment(home, None)
    environment.pop("PYTHONPATH", None)
    home.mkdir(exist_ok=True)
    result = subprocess.run(
        [interpreter, "-c", code], cwd=home, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return rows_by_split(json.loads(result.stdout.splitlines()[-1]))


def rows_by_split(found: dict[str, dict[str, Any]]) -> dict[tuple[str, str], Any]:
    queries = found.get("queries", {})
    assert len(queries) < 2 or next(iter(queries)) == "queries"
    if whole := queries.pop("queries", []):
        assert sorted(map(str, whole)) == sorted(str(row) for rows in queries.values() for row in rows)
    return {(config, split): rows for config, splits in found.items() for split, rows in splits.items()}
