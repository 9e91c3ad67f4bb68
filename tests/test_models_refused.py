"""Models that are untrusted or from a hub: damaged files, foreign code, commits, an unreachable hub."""

import json
import pickle
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Done, error_of, run
from hub_server import Hub
from huggingface_hub import constants
from releases import QUESTIONS, TEXTS, make_release, md5
from safetensors.torch import load_file, save_file
from tiny_families import ARCHITECTURES, publish, with_modules, write_encoder
from tiny_kinds import write_static
from tiny_models import write_bert, write_cross, write_dual
from transformers import AutoTokenizer

from baselines.core.settings import ModelSettings
from baselines.retrieve.hub_models import model_commit
from baselines.retrieve.index_files import open_vectors
from baselines.retrieve.library_errors import convert_library_errors
from baselines.retrieve.models import model_fingerprint, open_cross, open_encoder
from baselines.train.recipe import read_recipe
from baselines.train.trained_models import cross_encoder, dual_encoder, masked_language_model
from builders.core.errors import InputError

Weights = dict[str, torch.Tensor]


def _recipe(kind: str) -> Any:
    """Read a recipe for short texts."""
    recipe_names = {"dual": "de-bm25-neg-scratch", "cross": "ce-bm25-neg-scratch", "mlm": "mlm-scratch"}
    return read_recipe(recipe_names[kind], ["data.passage_length=64", "data.query_length=16"])


OPEN: dict[str, Callable[[str], Any]] = {
    "encode": lambda model_path: open_encoder(ModelSettings(model_path)),
    "rerank": lambda model_path: open_cross(ModelSettings(model_path)),
    "train a dual-encoder": lambda checkpoint: dual_encoder(_recipe("dual"), checkpoint, "cpu"),
    "train a cross-encoder": lambda checkpoint: cross_encoder(_recipe("cross"), checkpoint, "cpu"),
    "train a masked language model": lambda checkpoint: masked_language_model(_recipe("mlm"), checkpoint),
}
NEED_ONLY_A_BERT = [name for name in OPEN if name != "rerank"]  # a plain BERT without a classifier suffices for these


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a folder with an undamaged model of each kind."""
    folder = tmp_path_factory.mktemp("models")
    write_dual(folder / "dual")
    write_cross(folder / "cross")
    write_bert(folder / "bert")
    write_static(folder / "static")
    return folder


def _change_weights(change: Callable[[Weights], Weights]) -> Callable[[Path], object]:
    """Return a function that applies ``change`` to the weights of a model folder."""

    def rewrite(model_folder: Path) -> None:
        weights_path = model_folder / "model.safetensors"
        save_file(change(load_file(weights_path)), weights_path, {"format": "pt"})

    return rewrite


def _remove_weights(name_part: str) -> Callable[[Path], object]:
    """Return a function that removes the weights with ``name_part`` in their names."""

    def remove(weights: Weights) -> Weights:
        return {name: tensor for name, tensor in weights.items() if name_part not in name}

    return _change_weights(remove)


def _set_fields(file_name: str, **fields: Any) -> Callable[[Path], object]:
    """Return a function that sets fields of a JSON file in a model folder."""

    def change(model_folder: Path) -> None:
        path = model_folder / file_name
        content = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(content | fields), encoding="utf-8")

    return change


def _replace_words(replace: Callable[[dict[str, int]], dict[str, int]]) -> Callable[[Path], object]:
    """Return a function that replaces the words of the tokenizer."""

    def change(model_folder: Path) -> None:
        path = model_folder / "tokenizer.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        content["model"]["vocab"] = replace(content["model"]["vocab"])
        path.write_text(json.dumps(content), encoding="utf-8")

    return change


def _remove_tokenizer(model_folder: Path) -> None:
    """Remove every file of the tokenizer."""
    for path in model_folder.rglob("*"):
        if path.name.startswith(("tokenizer", "vocab", "merges", "special_tokens")):
            path.unlink()


def _make_embeddings_nan(weights: Weights) -> Weights:
    """Replace the embeddings of words by NaN."""
    changed = dict(weights)
    for name, tensor in weights.items():
        if "word_embeddings" in name:
            changed[name] = tensor * float("nan")
    return changed


def _rename_weights(weights: Weights) -> Weights:
    return {f"other.{name}": tensor for name, tensor in weights.items()}


def _make_words_latin(words: dict[str, int]) -> dict[str, int]:
    """Replace every word except special tokens such as [CLS]."""
    return {word if "[" in word else f"word{number}": number for word, number in words.items()}


_break_weights = _change_weights(_make_embeddings_nan)
_give_other_names = _change_weights(_rename_weights)
_give_latin_words = _replace_words(_make_words_latin)
_add_a_word = _replace_words(lambda words: words | {"more": len(words)})
_EMPTY = "special or unknown tokens of a Chinese sentence"
_UNREAD = "expected the tokenizer of this model"
_LOST = "its files lack 2 of its weights: classifier.bias, classifier.weight)"
_CROSS = ["rerank", "train a cross-encoder"]
_SAVED = "config_sentence_transformers.json"
_READ = "sentence_bert_config.json"
# By damage: the model, the functions that open it, the change, the error.
DAMAGE: dict[str, tuple[str, list[str], Callable[[Path], object], str]] = {
    "no classifier": ("cross", _CROSS, _remove_weights("classifier"), _LOST),
    "weights of other names": ("bert", NEED_ONLY_A_BERT, _give_other_names, "its files lack"),
    "a layer missing": ("bert", NEED_ONLY_A_BERT, _remove_weights("layer.1."), "its files lack 16 of its weights"),
    "no numbers": ("cross", _CROSS, _break_weights, "its weights are damaged"),
    "no numbers in an encoder": ("bert", NEED_ONLY_A_BERT[:2], _break_weights, "its weights are damaged"),
    "another shape": ("bert", NEED_ONLY_A_BERT, _set_fields("config.json", intermediate_size=96), ""),
    "no tokenizer": ("bert", NEED_ONLY_A_BERT, _remove_tokenizer, _EMPTY),
    "no tokenizer of a re-ranker": ("cross", ["rerank"], _remove_tokenizer, _EMPTY),
    "Latin words": ("bert", NEED_ONLY_A_BERT, _give_latin_words, _EMPTY),
    "Latin words of a static model": ("static", ["encode"], _give_latin_words, _EMPTY),
    "more words than weights": ("bert", NEED_ONLY_A_BERT, _add_a_word, _UNREAD),
    "no pad token": ("bert", NEED_ONLY_A_BERT, _set_fields("tokenizer_config.json", pad_token=None), "padding token"),
    "prompts in a list": ("dual", ["encode"], _set_fields(_SAVED, prompts=["q: "]), "cannot be opened"),
    "a list for a prompt": ("dual", ["encode"], _set_fields(_SAVED, prompts={"query": ["q: "]}), "cannot read a text"),
    "a negative length": ("dual", ["encode"], _set_fields(_READ, query_length=-1), "expected at least 1"),
}


DAMAGED_ACTIONS: list[tuple[str, str]] = []
for _damage, (_, _actions, _, _) in DAMAGE.items():
    DAMAGED_ACTIONS += [(_damage, action) for action in _actions]


@pytest.mark.parametrize(("damage", "action"), DAMAGED_ACTIONS)
def test_a_damaged_model_is_one_error(models: Path, tmp_path: Path, damage: str, action: str) -> None:
    name, _, change, message = DAMAGE[damage]
    model_folder = Path(shutil.copytree(models / name, tmp_path / "model"))
    change(model_folder)
    with pytest.raises(InputError) as error:
        OPEN[action](str(model_folder))
    (line,) = str(error.value).split("\n")
    assert str(model_folder) in line and message in line


def test_a_model_without_a_pooler_has_one_fingerprint(models: Path, tmp_path: Path) -> None:
    model_folder = Path(shutil.copytree(models / "dual", tmp_path / "model"))
    _remove_weights("pooler")(model_folder)
    first_fingerprint = model_fingerprint(open_encoder(ModelSettings(str(model_folder))))
    second_fingerprint = model_fingerprint(open_encoder(ModelSettings(str(model_folder))))
    fingerprint_with_pooler = model_fingerprint(open_encoder(ModelSettings(str(models / "dual"))))
    assert first_fingerprint == second_fingerprint != fingerprint_with_pooler


def test_texts_are_never_cut_beyond_a_models_positions(models: Path, tmp_path: Path) -> None:
    for name in ("dual", "cross"):
        shutil.copytree(models / name, tmp_path / name)
        # More than the 512 positions of these models.
        _set_fields("tokenizer_config.json", model_max_length=100_000)(tmp_path / name)
    dual_path = str(tmp_path / "dual")
    cross_path = str(tmp_path / "cross")
    long_text = "北京的冬天很冷" * 500
    assert open_encoder(ModelSettings(dual_path)).encode([long_text]).shape == (1, 32)
    assert open_cross(ModelSettings(cross_path)).predict([(long_text, long_text)]).shape == (1,)
    with pytest.raises(InputError, match=r"--max-length 600: expected at most 512 tokens, the number of the model"):
        open_cross(ModelSettings(cross_path, max_length=600))


@pytest.mark.parametrize("family", sorted(ARCHITECTURES))
def test_an_encoder_of_a_family_is_refused_without_its_tokenizer(tmp_path: Path, family: str) -> None:
    model_folder = with_modules(write_encoder(tmp_path, family), "mean")
    open_encoder(ModelSettings(str(model_folder)))
    _remove_tokenizer(model_folder)
    with pytest.raises(InputError, match=str(model_folder)):
        open_encoder(ModelSettings(str(model_folder)))


def test_an_added_token_without_a_weight_is_ignored(models: Path, tmp_path: Path) -> None:
    """transformers adds such tokens. They occur only in texts that spell them out."""
    model_folder = Path(shutil.copytree(models / "dual", tmp_path / "model"))
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<extra>"]})
    tokenizer.save_pretrained(model_folder)
    assert open_encoder(ModelSettings(str(model_folder))).encode(["北京"]).shape == (1, 32)


class _TouchWhenUnpickled(str):
    """A path that creates its file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (Path(self),)


def _write_pickle(model_folder: Path, touched_path: str) -> None:
    """Replace the weights by a plain pickle that runs code."""
    (model_folder / "model.safetensors").unlink()
    (model_folder / "pytorch_model.bin").write_bytes(pickle.dumps({"embeddings": _TouchWhenUnpickled(touched_path)}))


def _write_torch_pickle(model_folder: Path, touched_path: str) -> None:
    """Replace the weights by a file of torch.save that runs code."""
    weights: dict[str, Any] = load_file(model_folder / "model.safetensors")
    (model_folder / "model.safetensors").unlink()
    weights["more"] = _TouchWhenUnpickled(touched_path)
    torch.save(weights, model_folder / "pytorch_model.bin")


def _name_foreign_model(model_folder: Path, touched_path: str) -> None:
    """Name a class of evil.py as the model."""
    auto_map = {name: "evil.Evil" for name in ("AutoConfig", "AutoModel", "AutoModelForMaskedLM")}
    _set_fields("config.json", auto_map=auto_map, model_type="evil", trust_remote_code=True)(model_folder)


def _name_foreign_tokenizer(model_folder: Path, touched_path: str) -> None:
    """Name a class of evil.py as the tokenizer."""
    _set_fields("tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", None]}, tokenizer_class="Evil")(
        model_folder
    )


def _name_foreign_module(model_folder: Path, touched_path: str) -> None:
    """Name a class of evil.py as the first module, and allow foreign code in every way."""
    modules = [{"idx": 0, "name": "0", "path": "", "type": "evil.Evil", "kwargs": ["trust_remote_code"]}]
    (model_folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    for name in ("model_args", "tokenizer_args", "config_args"):
        settings = {name: {"trust_remote_code": True}}
        (model_folder / "sentence_bert_config.json").write_text(json.dumps(settings), encoding="utf-8")


# Five ways in which a model's files could make a library run foreign code.
FOREIGN_CODE = [
    _write_pickle,
    _write_torch_pickle,
    _name_foreign_model,
    _name_foreign_tokenizer,
    _name_foreign_module,
]


@pytest.mark.parametrize("change", FOREIGN_CODE)
@pytest.mark.parametrize("action", NEED_ONLY_A_BERT)
def test_no_code_of_a_model_runs(
    models: Path, tmp_path: Path, action: str, change: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model_folder = tmp_path / "model"
    touched_path = tmp_path / "ran"
    shutil.copytree(models / "bert", model_folder)
    (model_folder / "evil.py").write_text(f"from pathlib import Path\nPath({str(touched_path)!r}).touch()\n")
    change(model_folder, str(touched_path))
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # the question of transformers on stdin
    monkeypatch.chdir(model_folder)
    monkeypatch.syspath_prepend(str(model_folder))  # like `python -m` in this folder
    try:
        OPEN[action](str(model_folder))
    except InputError as error:
        assert "\n" not in str(error)
    assert not touched_path.exists()


@pytest.fixture
def release(tmp_path: Path, own_cache: None) -> Path:
    """Write the tiny release, with an empty cache."""
    model_commit.cache_clear()
    return make_release(tmp_path / "release")


@pytest.fixture
def silent_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the address of a hub that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("baselines.retrieve.hub_models._ANSWER_SECONDS", 0.3)
        yield address


def test_without_a_hub_every_command_says_so_in_one_line(tmp_path: Path, release: Path, silent_hub: str) -> None:
    dual = write_dual(tmp_path / "m")
    run("baselines", "encode", "--release", release, "--model", dual, "--out", tmp_path / "p")
    run_path = tmp_path / "a.run"
    query_id = md5(QUESTIONS["train"][0])
    run_path.write_text(f"{query_id} Q0 {md5(TEXTS[0])} 1 1.0 t\n")
    for verb, options in (
        ("encode", ["--queries", "--model", "org/name"]),
        ("search", ["--passages", tmp_path / "p", "--model", "org/name"]),
        ("rerank", ["--run", run_path, "--model", "org/name"]),
        ("mine", ["--run", run_path, "--cross-encoder", "org/name", "--margin", "1"]),
    ):
        words: list[Any] = [verb, "--release", release, "--split", "train", "--out", tmp_path / "out"]
        words += options
        # A command without a limit would wait for minutes, on any machine.
        start_time = time.monotonic()
        error_line = error_of(run("baselines", words, code=1))
        assert time.monotonic() - start_time < 60
        assert error_line.startswith(
            f"error: the model org/name would come from the hub: {silent_hub} cannot be reached"
        )
        assert error_line.endswith("; set HF_ENDPOINT to use a mirror or another hub; a directory needs no hub")
        assert not (tmp_path / "out").exists()


def test_a_variable_of_the_hub_limits_the_time_to_answer(silent_hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model_commit.cache_clear()
    monkeypatch.setattr("baselines.retrieve.hub_models._ANSWER_SECONDS", 600.0)
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 1)  # read from the variable on import
    start_time = time.monotonic()
    with pytest.raises(InputError, match=f"{silent_hub} cannot be reached"):
        model_commit("org/name", "", "a directory needs no hub")
    assert time.monotonic() - start_time < 60


@pytest.mark.parametrize(("model_name", "gives_revision"), [("second", False), ("first", True)])
def test_a_hub_model_is_pinned_to_a_commit(
    tmp_path: Path, release: Path, hub: Hub, call: Callable[..., Done], model_name: str, gives_revision: bool
) -> None:
    """Without --revision, the pinned commit is the last one."""
    commits = {
        "first": publish(hub, "org/bert", write_bert(tmp_path / "first")),
        "second": publish(hub, "org/bert", write_bert(tmp_path / "second", seed=1)),
    }
    commit_id = commits[model_name].oid
    revision = ["--revision", commit_id] if gives_revision else []
    hub_index = tmp_path / "of-hub"
    local_index = tmp_path / "of-folder"
    words = ["encode", "--release", release]
    call(*words, "--model", "org/bert", "--out", hub_index, *revision)
    run("baselines", words, "--model", tmp_path / model_name, "--out", local_index)
    about_model = json.loads((hub_index / "manifest.json").read_text())["model"]
    assert (about_model["name"], about_model["commit"]) == ("org/bert", commit_id)
    np.testing.assert_array_equal(open_vectors(hub_index).all(), open_vectors(local_index).all())
    assert "commit" not in open_vectors(local_index).manifest["model"]  # a directory has no commit


def test_vectors_of_another_commit_are_refused(
    tmp_path: Path, release: Path, hub: Hub, call: Callable[..., Done]
) -> None:
    first = publish(hub, "org/bert", write_bert(tmp_path / "first"))
    second = publish(hub, "org/bert", write_bert(tmp_path / "second", seed=1))
    index = tmp_path / "index"
    call("encode", "--release", release, "--model", "org/bert", "--out", index, "--revision", first.oid)
    words = ["search", "--release", release, "--model", "org/bert", "--passages", index, "--split", "train"]
    words += ["--out", tmp_path / "a.run"]
    model_commit.cache_clear()
    call(*words, "--revision", first.oid)
    model_commit.cache_clear()
    refusal = call(*words, "--revision", second.oid, code=1)
    assert "is not the model that encoded" in refusal.stderr


def test_a_path_as_a_commit_is_refused(tmp_path: Path, release: Path, hub: Hub, call: Callable[..., Done]) -> None:
    publish(hub, "org/bert", write_bert(tmp_path / "bert")).oid = "../../../evil"
    done = call("encode", "--release", release, "--model", "org/bert", "--out", tmp_path / "out", code=1)
    assert "the hub gives org/bert the commit '../../../evil'; expected 40 hex digits; set HF_ENDPOINT" in done.stderr
    assert not [path for path in tmp_path.rglob("evil*")]


def test_a_download_that_fails_while_a_model_is_opened_names_the_variable() -> None:
    with pytest.raises(InputError, match="set HF_ENDPOINT"), convert_library_errors("org/name: cannot be opened"):
        raise OSError(f"We couldn't connect to {constants.ENDPOINT!r} to load the files")
