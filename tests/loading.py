"""Fixtures that load a release through the module ``dureader_retrieval``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
from releases import make_release

import dureader_retrieval

NAME = "dureader_retrieval"
Load = Callable[..., Any]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return make_release(tmp_path / "release")


@pytest.fixture(params=["by name", "public API"])
def load(request: pytest.FixtureRequest, tmp_path: Path) -> Load:
    """``load(config, split, data_dir=..., ...)`` through the module, in both ways, with an empty cache."""
    cache = str(tmp_path / "cache")
    if request.param == "by name":
        return lambda *args, **kwargs: datasets.load_dataset(
            NAME, args[0], split=args[1] if args[1:] else None, cache_dir=cache, **kwargs
        )
    return lambda *args, **kwargs: dureader_retrieval.load_dataset(*args, cache_dir=cache, **kwargs)
