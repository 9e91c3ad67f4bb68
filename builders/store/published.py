"""The figures that the paper prints."""

from pathlib import Path
from typing import Any

from builders.core.read_files import read_toml


def published_figures() -> dict[str, Any]:
    """Return the paper's figures (``published.toml``): ``table3``, ``english``, ``collections``, ``relabelled`` ..."""
    return read_toml(Path(__file__).with_name("published.toml"))
