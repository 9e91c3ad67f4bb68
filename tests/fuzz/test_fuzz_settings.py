"""Recipes, settings, scores, curves of trainings and a step's stamp, spoiled."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from fuzzing import Reader, as_json, equal, fuzz_of
from spoil import JSON, TEXT

from baselines.reproduce.drawings import curve
from baselines.reproduce.matrix import Step
from baselines.reproduce.report import trainings
from baselines.reproduce.settings import read_settings
from baselines.reproduce.steps import _done, _stamp
from baselines.train.recipe import RECIPES, read_recipe
from builders.core.files import read_toml
from builders.core.folders import key_of
from builders.publish.pages import read_scores

_SETTINGS = """
["*"]
train.seed = 1

[de-bm25-neg]
model.start = "models/a-small-one"
train.max_steps = 100

[options.rerank]
top-k = 20
"""
_OVERRIDES = "train.batch=8\ntrain.learning_rate=1e-4\ndata.negatives=release\nmodel.towers=2\n"


_OFFICIAL = {"MRR@10": 0.75, "recall@1": 0.5, "recall@50": 1.0, "QueriesRanked": 2}
_SCORES = [{"run": "de.run", "queries": 2, "official": _OFFICIAL, "ir_measures": {"AP": 0.5}}]


def _as_toml(name: str) -> Callable[[Any, Any, Path], bool]:
    return lambda found, _, folder: equal(msgspec.to_builtins(found), read_toml(folder / name))


def _overridden(folder: Path) -> Any:
    words = (folder / "words").read_bytes().decode(errors="replace").splitlines()
    return read_recipe("de-bm25-neg", words)


def _make_stamp(folder: Path) -> None:
    (folder / "step").mkdir()
    _stamp(folder / "step").write_bytes(
        msgspec.json.encode({"key": key_of(["a step"]), "code": "x", "files": {}, "seconds": 1.5, "processes": 2})
    )


def _make_training(folder: Path) -> None:
    (folder / "x").mkdir()
    record = {"losses": [[1, 2.5], [2, 1.5]], "dev": [{"step": 2, "MRR@10": 0.5}], "steps": 2, "device": "cpu"}
    (folder / "x" / "training.json").write_text(json.dumps(record))


READERS = [
    Reader(
        reaches=("baselines.train.recipe:read_recipe",),
        make=lambda folder: shutil.copy(RECIPES / "de-bm25-neg.toml", folder / "mine.toml"),
        spoils={"mine.toml": TEXT},
        read=lambda folder: read_recipe(str(folder / "mine.toml")),
        right=_as_toml("mine.toml"),
    ),
    Reader(
        reaches=("baselines.train.recipe:_override",),
        make=lambda folder: (folder / "words").write_text(_OVERRIDES),
        spoils={"words": TEXT},
        read=_overridden,
        names_files=False,
    ),
    Reader(
        reaches=("baselines.reproduce.settings:read_settings",),
        make=lambda folder: (folder / "settings.toml").write_text(_SETTINGS),
        spoils={"settings.toml": TEXT},
        read=lambda folder: read_settings(folder / "settings.toml"),
    ),
    Reader(
        reaches=("baselines.reproduce.report:trainings",),
        make=_make_training,
        spoils={"x/training.json": JSON},
        read=lambda folder: [curve(each) for each in trainings({"x": Step("x", ["", "train", "x"], folder / "x")})],
    ),
    Reader(
        reaches=("baselines.reproduce.steps:_read",),
        make=_make_stamp,
        spoils={".step.step.json": JSON},
        read=lambda folder: _done(folder / "step", key_of(["a step"]), "x"),
    ),
    Reader(
        reaches=("builders.publish.pages:read_scores",),
        make=lambda folder: (folder / "scores.json").write_text(json.dumps(_SCORES)),
        spoils={"scores.json": JSON},
        read=lambda folder: msgspec.to_builtins(read_scores(folder / "scores.json")),
        right=as_json("scores.json"),
    ),
]
test_a_damaged_file_gives_its_content_or_one_error = fuzz_of(READERS)
