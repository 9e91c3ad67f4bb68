"""Fixtures that several rooms share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# A process a core runs the tests: more threads than cores would wait for each other. Read when torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the project: read, never copied. Skips where it is missing."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the real data files in ../shared/data")
    return folder
