"""A tiny ERNIE saved by Paddle, and the command that converts it.

Paddle 2.6.2 wrote ``paddle_fixture.tar.xz``: the random parameters of two tiny ERNIEs, saved by
``paddle.static.save_vars``, and Paddle's outputs. The script is ``tests/paddle_fixture.py`` of the commit 5d17c2a.
"""

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from commands import Done, run
from conftest import Once

FIXTURE = Path(__file__).with_name("paddle_fixture.tar.xz")


def unpack(folder: Path) -> Path:
    """Unpack Paddle's files: dual_params, cross_params, half, ernie_config.json, vocab.txt, expected.json."""
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def expected(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "expected.json").read_text(encoding="utf-8"))


def convert(folder: Path, params: str, out: Path, *more: object, code: int = 0) -> Done:
    words = ["--params", folder / params, "--config", folder / "ernie_config.json", "--vocab", folder / "vocab.txt"]
    return run("baselines", "convert", "--quiet", *words, "--out", out, *more, code=code)


@pytest.fixture(scope="session")
def official(once: Once) -> Path:
    """Paddle's parameters, and both converted models ``dual`` and ``cross``. Do not change them."""

    def make(folder: Path) -> None:
        unpack(folder)
        convert(folder, "dual_params", folder / "dual")
        convert(folder, "cross_params", folder / "cross")

    return once("official-parameters", make)


@pytest.fixture
def parameters(official: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(official, tmp_path / "official"))
