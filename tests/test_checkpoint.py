"""The JSON files of a checkpoint, which may come from anybody: typed, with errors that name the file and the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from baselines.card import model_card
from baselines.checkpoint import open_checkpoint
from baselines.hub.pull import Manifest
from builders.core.errors import InputError
from builders.core.typed import read_json


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint as far as it is read without the libraries."""
    save_file({"weight": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "recipe.json").write_text('{"model": {"kind": "dual"}}')
    (tmp_path / "training.json").write_text("{}")
    return tmp_path


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("recipe.json", [], "expected `object`, got `array`"),
        ("recipe.json", {}, "lacks model"),
        ("recipe.json", {"model": {"kind": "sparse"}}, "model.kind: expected one of cross, dual, encoder, mlm, found"),
        ("recipe.json", {"model": {"kind": "dual"}, "data": []}, "data: expected `object`, got `array`"),
        ("recipe.json", {"model": {"kind": "dual"}, "name": 3}, "name: expected `str`, got `int`"),
        ("training.json", {"about": []}, "about: expected `object`, got `array`"),
        ("training.json", {"about": {"data": {"corpus": 1}}}, "about.data[...]: expected `str`, got `int`"),
        ("training.json", {"converted": {"from": "x"}}, "converted: lacks sha256"),
        ("training.json", {"builds": "release"}, "builds: expected `array | null`, got `str`"),
        ("training.json", {"counts": None}, "counts: expected `object`, got `null`"),
        ("training.json", {"versions": {"torch": 2}}, "versions[...]: expected `str`, got `int`"),
        ("training.json", {"dev": [{"MRR@10": "high"}]}, "dev[0][...]: expected `float`, got `str`"),
        ("training.json", {"dev_run": "bm25.run"}, "dev_run: expected `object | null`, got `str`"),
        ("config_sentence_transformers.json", [], "expected `object`, got `array`"),
        ("config_sentence_transformers.json", {"prompts": ["q: "]}, "prompts: expected `object`, got"),
        ("config.json", {"id2label": 2}, "id2label: expected `object`, got `int`"),
        ("tokenizer_config.json", {"model_max_length": "512"}, "model_max_length: expected `int |"),
        ("sentence_bert_config.json", nested(900), "expected `object`, got `array`"),
    ],
)
def test_a_record_that_is_none_is_one_error_with_file_and_field(
    folder: Path, name: str, content: Any, message: str
) -> None:
    (folder / name).write_text(json.dumps(content))
    with pytest.raises(InputError) as error:
        opened = open_checkpoint(folder)
        model_card(opened, f"org/{opened.outputs}")
    assert str(error.value).startswith(f"{folder / name}: {message}")


def test_what_is_asked_of_the_libraries_settings(folder: Path) -> None:
    opened = open_checkpoint(folder)
    assert (opened.outputs, opened.prompts, opened.plain_length, opened.transformers) == (2, {}, None, "4.57")
    (folder / "config.json").write_text('{"id2label": {"0": "LABEL_0"}}')
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"query": "q: ", "document": ""}}')
    (folder / "tokenizer_config.json").write_text(f'{{"model_max_length": {10**30}, "tokenizer_class": null}}')
    (folder / "sentence_bert_config.json").write_text('{"document_length": 384}')
    opened = open_checkpoint(folder)
    assert (opened.outputs, opened.prompts, opened.plain_length) == (1, {"query": "q: "}, 10**30)
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 384}')
    assert open_checkpoint(folder).plain_length is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "expected JSON"),
        (b'{"files": [{"path": "config.json", "bytes": -1, "sha256": ""}]}', r"files\[0\].bytes: expected `int` >= 0"),
        (b'{"files": [{"path": "config.json", "bytes": 1, "sha256": ""}]}', r"files\[0\].sha256: expected a SHA-256"),
        (b'{"files": [], "format": 2}', "format: expected one of 1, found 2"),
        (b'{"files": ' + b"[" * 50_000, "expected"),
    ],
)
def test_a_manifest_from_the_hub_that_is_none(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_json(tmp_path / "manifest.json", Manifest)
