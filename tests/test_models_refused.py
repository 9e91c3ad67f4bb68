"""Models from strangers: files that cannot be read, weights that are not there, code that must not run."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_families import ARCHITECTURES, with_modules, write_encoder
from tiny_kinds import write_static
from tiny_models import write_bert, write_cross, write_dual
from transformers import AutoTokenizer

from baselines.retrieve.models import fingerprint, open_cross, open_encoder
from baselines.retrieve.settings import ModelSettings
from baselines.train.models import cross_encoder, dual_encoder, masked_language_model
from baselines.train.recipe import read_recipe
from builders.core.errors import InputError

Weights = dict[str, torch.Tensor]


def _recipe(kind: str) -> Any:
    name = {"dual": "de-bm25-neg-scratch", "cross": "ce-bm25-neg-scratch", "mlm": "mlm-scratch"}[kind]
    return read_recipe(name, ["data.passage_length=64", "data.query_length=16"])


OPEN: dict[str, Callable[[str], Any]] = {
    "encode": lambda name: open_encoder(ModelSettings(name)),
    "rerank": lambda name: open_cross(ModelSettings(name)),
    "train a dual-encoder": lambda start: dual_encoder(_recipe("dual"), start, "cpu"),
    "train a cross-encoder": lambda start: cross_encoder(_recipe("cross"), start, "cpu"),
    "train a masked language model": lambda start: masked_language_model(_recipe("mlm"), start),
}
OF_A_BERT = [name for name in OPEN if name != "rerank"]  # what a plain BERT, without a classifier, is enough for


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_dual(folder / "dual")
    write_cross(folder / "cross")
    write_bert(folder / "bert")
    return folder


def _changed(model: Path, folder: Path, change: Callable[[Weights], Weights]) -> str:
    """A copy of a model in ``folder``, with other weights."""
    shutil.copytree(model, folder)
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors", {"format": "pt"})
    return str(folder)


def _without(part: str) -> Callable[[Weights], Weights]:
    return lambda weights: {name: value for name, value in weights.items() if part not in name}


def _refused(what: str, model: str) -> str:
    with pytest.raises(InputError) as error:
        OPEN[what](model)
    (line,) = str(error.value).split("\n")
    assert model in line
    return line


def test_a_cross_encoder_without_its_classifier_is_refused(models: Path, tmp_path: Path) -> None:
    model = _changed(models / "cross", tmp_path / "model", _without("classifier"))
    for what in ("rerank", "train a cross-encoder"):
        assert _refused(what, model).endswith("its files lack 2 of its weights: classifier.bias, classifier.weight)")


@pytest.mark.parametrize("what", OF_A_BERT)
def test_weights_with_none_of_the_names_are_refused(models: Path, tmp_path: Path, what: str) -> None:
    model = _changed(models / "bert", tmp_path / "model", lambda w: {f"other.{name}": each for name, each in w.items()})
    assert "its files lack" in _refused(what, model)


@pytest.mark.parametrize("what", OF_A_BERT)
def test_weights_without_a_layer_are_refused(models: Path, tmp_path: Path, what: str) -> None:
    line = _refused(what, _changed(models / "bert", tmp_path / "model", _without("layer.1.")))
    assert "its files lack 16 of its weights" in line and "encoder.layer.1.attention" in line


@pytest.mark.parametrize("what", OF_A_BERT)
def test_a_pooler_that_nobody_uses_may_be_missing(models: Path, tmp_path: Path, what: str) -> None:
    OPEN[what](_changed(models / "bert", tmp_path / "model", _without("pooler")))


def test_a_model_without_a_pooler_has_one_fingerprint(models: Path, tmp_path: Path) -> None:
    model = _changed(models / "dual", tmp_path / "model", _without("pooler"))
    before = torch.get_rng_state()
    one, other = fingerprint(open_encoder(ModelSettings(model))), fingerprint(open_encoder(ModelSettings(model)))
    assert one == other != fingerprint(open_encoder(ModelSettings(str(models / "dual"))))
    assert torch.equal(torch.get_rng_state(), before)


def test_texts_are_never_cut_beyond_a_models_positions(models: Path, tmp_path: Path) -> None:
    dual, cross = (Path(shutil.copytree(models / name, tmp_path / name)) for name in ("dual", "cross"))
    for folder in (dual, cross):
        settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        settings["model_max_length"] = 100_000
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    long = "北京的冬天很冷" * 500
    assert open_encoder(ModelSettings(str(dual))).encode([long]).shape == (1, 32)
    assert open_cross(ModelSettings(str(cross))).predict([(long, long)]).shape == (1,)
    with pytest.raises(InputError, match=r"--max-length 600: expected at most 512 tokens, the positions that"):
        open_cross(ModelSettings(str(cross), max_length=600))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut weights": lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-1000]),
    "empty weights": lambda f: (f / "model.safetensors").write_bytes(b""),
    "a header of 2 ** 62 bytes": lambda f: (f / "model.safetensors").write_bytes((1 << 62).to_bytes(8, "little")),
    "no weights": lambda f: (f / "model.safetensors").unlink(),
    "a list for a config": lambda f: (f / "config.json").write_text("[1, 2]"),
    "a config of lists in lists": lambda f: (f / "config.json").write_text("[" * 100_000),
    "a model of no heads": lambda f: _set(f / "config.json", num_attention_heads=0),
    "another shape": lambda f: _set(f / "config.json", intermediate_size=96),
    "a tokenizer cut": lambda f: (f / "tokenizer.json").write_text((f / "tokenizer.json").read_text()[:500]),
    "a tokenizer that is a list": lambda f: (f / "tokenizer.json").write_text("[]"),
}


def _without_tokenizer(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.name.startswith(("tokenizer", "vocab", "merges", "special_tokens")):
            path.unlink()


def _other_words(folder: Path, words: Callable[[dict[str, int]], dict[str, int]]) -> None:
    """A tokenizer with other words of the same ids, or more of them."""
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["vocab"] = words(content["model"]["vocab"])
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")


def _latin(words: dict[str, int]) -> dict[str, int]:
    return {word if "[" in word else f"word{number}": number for word, number in words.items()}


_EMPTY, _UNREAD = "special or unknown tokens of a Chinese sentence", "the tokenizer is another model's"
_FEW: dict[str, tuple[Callable[[Path], object], str]] = {
    "no tokenizer": (_without_tokenizer, _EMPTY),
    "Latin words": (
        lambda f: _other_words(f, _latin),
        _EMPTY,
    ),
    "more words than weights": (lambda f: _other_words(f, lambda w: w | {"more": len(w)}), _UNREAD),
    "no pad token": (lambda f: _set(f / "tokenizer_config.json", pad_token=None), "padding token"),
}


@pytest.mark.parametrize("damage", _FEW)
@pytest.mark.parametrize("what", OPEN)
def test_a_tokenizer_that_is_not_the_models_is_refused(models: Path, tmp_path: Path, what: str, damage: str) -> None:
    folder = Path(shutil.copytree(models / ("cross" if what == "rerank" else "bert"), tmp_path / "model"))
    change, said = _FEW[damage]
    change(folder)
    assert said in _refused(what, str(folder))


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_an_encoder_of_a_family_is_refused_without_its_tokenizer(tmp_path: Path, name: str) -> None:
    folder = with_modules(write_encoder(tmp_path, name), "mean")
    open_encoder(ModelSettings(str(folder)))
    _without_tokenizer(folder)
    _refused("encode", str(folder))


def test_a_static_model_is_refused_without_its_words(tmp_path: Path) -> None:
    folder = write_static(tmp_path / "static")
    open_encoder(ModelSettings(str(folder)))
    _other_words(folder, _latin)
    assert _EMPTY in _refused("encode", str(folder))


def test_an_added_token_without_a_weight_is_passed_over(models: Path, tmp_path: Path) -> None:
    """transformers adds some of its own to a tokenizer of an architecture; only a text that spells it out has it."""
    folder = Path(shutil.copytree(models / "dual", tmp_path / "model"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<extra>"]})
    tokenizer.save_pretrained(folder)
    assert open_encoder(ModelSettings(str(folder))).encode(["北京"]).shape == (1, 32)


@pytest.mark.parametrize("what", ["encode", "rerank", "train a dual-encoder", "train a cross-encoder"])
def test_weights_that_are_no_numbers_are_refused(models: Path, tmp_path: Path, what: str) -> None:
    def broken(weights: Weights) -> Weights:
        return {name: each * float("nan") if "word_embeddings" in name else each for name, each in weights.items()}

    name = {"encode": "dual", "train a dual-encoder": "bert"}.get(what, "cross")
    assert "its weights are damaged" in _refused(what, _changed(models / name, tmp_path / "model", broken))


def _set(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("what", OF_A_BERT)
def test_damaged_files_are_one_error(models: Path, tmp_path: Path, what: str, damage: str) -> None:
    shutil.copytree(models / "bert", tmp_path / "model")
    DAMAGE[damage](tmp_path / "model")
    _refused(what, str(tmp_path / "model"))


@pytest.mark.parametrize(
    ("file", "setting", "said"),
    [
        ("config_sentence_transformers.json", {"prompts": ["q: "]}, "cannot be opened"),
        ("config_sentence_transformers.json", {"prompts": {"query": ["q: "]}}, "cannot read a text"),
        ("config_sentence_transformers.json", {"prompts": {"a": "b"}, "default_prompt_name": ["a"]}, ""),
        ("sentence_bert_config.json", {"max_seq_length": "64"}, ""),
        ("sentence_bert_config.json", {"max_seq_length": [64]}, ""),
        ("sentence_bert_config.json", {"query_length": -1}, "cannot read a text"),
    ],
)
def test_settings_of_another_type_are_one_error(
    models: Path, tmp_path: Path, file: str, setting: dict[str, Any], said: str
) -> None:
    shutil.copytree(models / "dual", tmp_path / "model")
    _set(tmp_path / "model" / file, **setting)
    assert said in _refused("encode", str(tmp_path / "model"))


CODE = "from pathlib import Path\nPath({ran!r}).touch()\n"


class _Touch:
    """A pickle of it makes a file when it is read."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (Path(self.path),)


def _pickled(folder: Path, ran: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"embeddings": _Touch(ran)}))


def _torch_pickled(folder: Path, ran: str) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**weights, "more": _Touch(ran)}, folder / "pytorch_model.bin")


def _own_model(folder: Path, ran: str) -> None:
    auto = {name: "evil.Evil" for name in ("AutoConfig", "AutoModel", "AutoModelForMaskedLM")}
    _set(folder / "config.json", auto_map=auto, model_type="evil", trust_remote_code=True)


def _own_tokenizer(folder: Path, ran: str) -> None:
    _set(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", None]}, tokenizer_class="Evil")


def _own_module(folder: Path, ran: str) -> None:
    modules = [{"idx": 0, "name": "0", "path": "", "type": "evil.Evil", "kwargs": ["trust_remote_code"]}]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    for name in ("model_args", "tokenizer_args", "config_args"):
        settings = {name: {"trust_remote_code": True}}
        (folder / "sentence_bert_config.json").write_text(json.dumps(settings), encoding="utf-8")


@pytest.mark.parametrize("change", [_pickled, _torch_pickled, _own_model, _own_tokenizer, _own_module])
@pytest.mark.parametrize("what", OF_A_BERT)
def test_no_code_of_a_model_runs(
    models: Path, tmp_path: Path, what: str, change: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, ran = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(models / "bert", folder)
    (folder / "evil.py").write_text(CODE.format(ran=str(ran)))
    change(folder, str(ran))
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # what transformers asks on stdin, unless told
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))  # as `python -m` in this folder does
    try:
        OPEN[what](str(folder))
    except InputError as error:
        assert "\n" not in str(error)
    assert not ran.exists()


@pytest.mark.parametrize("what", ["train a cross-encoder", "train a masked language model"])
@pytest.mark.parametrize("bad", [3, {"a": 1}, [["BertModel"]]])
def test_a_config_whose_classes_are_no_names_is_refused(models: Path, tmp_path: Path, what: str, bad: object) -> None:
    folder = Path(shutil.copytree(models / "bert", tmp_path / "model"))
    _set(folder / "config.json", architectures=bad)
    _refused(what, str(folder))


def test_a_kind_that_is_no_name_is_refused(models: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(models / "dual", tmp_path / "model"))
    for content in ('{"model_type": ["Dual"]}', "[]"):
        (folder / "config_sentence_transformers.json").write_text(content)
        _refused("encode", str(folder))
