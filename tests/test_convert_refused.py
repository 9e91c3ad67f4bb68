"""What `convert` refuses: damaged, missing, surplus and misshapen files, each by one error that names it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from official_parameters import convert, official, parameters  # noqa: F401

from baselines.convert.parameters import read_parameter
from builders.core.errors import InputError


def test_a_file_cut_short_anywhere_or_longer_is_no_parameter(official: Path, tmp_path: Path) -> None:
    content = (official / "cross_params" / "_cls_out_w").read_bytes()
    file = tmp_path / "file"
    for wrong in [*(content[:size] for size in range(len(content))), content + b"\0"]:
        file.write_bytes(wrong)
        with pytest.raises(InputError, match=r"file: (cut short|no parameter)"):
            read_parameter(file)


def of_type(number: int) -> Callable[[bytes], bytes]:
    """The file says that its numbers are of another type than FP32 (5)."""
    return lambda content: content.replace(b"\x08\x05", bytes([8, number]))


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("_cls_out_b", of_type(3), "_cls_out_b: holds INT64; expected FP32 or FP16"),
        ("_cls_out_b", of_type(6), "_cls_out_b: holds FP64; expected FP32 or FP16"),
        (
            "_cls_out_b",
            lambda content: content[:-4] + b"\0\0\xc0\x7f",
            "_cls_out_b: damaged: holds numbers that",
        ),
        ("_cls_out_b", lambda content: content[:-1], "expected 8 bytes of numbers for the shape [2], found 7"),
        ("pos_embedding", lambda _: b"version https://git-lfs", "pos_embedding: no parameter of Paddle's fluid format"),
        ("encoder_layer_2_ffn_fc_0.b_0", bytes, "encoder_layer_2_ffn_fc_0.b_0 is no part of a cross (--leave-out"),
        ("query_word_embedding", bytes, "are missing, of 74 parameters of a dual"),
    ],
)
def test_a_damaged_or_surplus_file_is_one_error(
    parameters: Path, name: str, damage: Callable[[bytes], bytes], message: str
) -> None:
    file = parameters / "cross_params" / name
    file.write_bytes(damage(file.read_bytes() if file.exists() else b""))
    assert message in convert(parameters, "cross_params", parameters / "out", code=1).error
    assert not (parameters / "out").exists()


def test_missing_files_are_named_the_first_three_of_them(parameters: Path) -> None:
    folder = parameters / "cross_params"
    (folder / "pooled_fc.b_0").unlink()
    error = convert(parameters, "cross_params", parameters / "out", code=1).error
    assert error == f"{folder}: pooled_fc.b_0 is missing, of 41 parameters of a cross"
    for path in folder.glob("encoder_layer_1_*"):
        path.unlink()
    error = convert(parameters, "cross_params", parameters / "out", code=1).error
    names = [f"encoder_layer_1_ffn_fc_{name}" for name in ("0.b_0", "0.w_0", "1.b_0")]
    assert error == f"{folder}: {', '.join(names)} and 14 more are missing, of 41 parameters of a cross"


def test_a_parameter_of_another_shape_is_one_error(parameters: Path) -> None:
    folder = parameters / "cross_params"
    shutil.copy(folder / "_cls_out_b", folder / "pooled_fc.b_0")
    error = convert(parameters, "cross_params", parameters / "out", code=1).error
    assert error == f"{folder / 'pooled_fc.b_0'}: has the shape [2]; the configuration says [4]"


def test_what_is_no_folder_of_parameters_is_told_what_to_do(parameters: Path) -> None:
    folder = parameters / "cross_params"
    (folder / "params").mkdir()
    error = convert(parameters, "cross_params", parameters / "out", code=1).error
    assert error == f"{folder}: expected files alone, a parameter each; is it the folder params in it?"
    error = convert(parameters, "cross_params/params", parameters / "out", code=1).error
    assert error == f"{folder / 'params'}: holds no file; expected a file a parameter"
    assert convert(parameters, "nowhere", parameters / "out", code=1).error.endswith("nowhere: no such folder")
    error = convert(parameters, "vocab.txt", parameters / "out", code=1).error
    assert error.endswith("expected a folder with a file a parameter; unpack an archive first (tar xf)")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "ernie_config.json: lacks hidden_size"),
        ({"hidden_size": "4"}, "ernie_config.json: hidden_size: expected `int`, got `str`"),
        ({"num_attention_heads": 3}, "hidden_size: expected a multiple of num_attention_heads"),
        ({"hidden_act": "swish"}, "hidden_act: expected one of gelu, relu, found 'swish'"),
        ({"type_vocab_size": None}, "lacks type_vocab_size"),
        ({"use_task_id": True}, "of ERNIE 2.0; expected ERNIE 1.0"),
        ({"num_hidden_layers": 3}, "encoder_layer_2_ffn_fc_0.b_0"),
        ({"max_position_embeddings": 513}, "pos_embedding: has the shape [20, 4]; the configuration says [513, 4]"),
        ({"vocab_size": 18}, "vocab.txt:19: expected ids below vocab_size, 18, found 18"),
    ],
)
def test_a_configuration_that_is_not_the_models_is_one_error(
    parameters: Path, change: dict[str, Any], message: str
) -> None:
    path = parameters / "ernie_config.json"
    content = json.loads(path.read_text()) | change
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
    assert message in convert(parameters, "cross_params", parameters / "out", code=1).error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[PAD]\t0\t1\n", "vocab.txt:1: expected a token, or a token, a tab and its id"),
        ("[PAD]\n高\tx\n", "vocab.txt:2: expected a token, or a token, a tab and its id"),
        ("[PAD]\n[CLS]\n[SEP]\n高\n", "vocab.txt: lacks [MASK], [UNK]"),
    ],
)
def test_a_vocabulary_of_another_form_is_one_error(parameters: Path, text: str, message: str) -> None:
    (parameters / "vocab.txt").write_text(text, encoding="utf-8")
    assert message in convert(parameters, "dual_params", parameters / "out", code=1).error
