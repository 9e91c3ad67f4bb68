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
from baselines.retrieve.library_errors import opening
from baselines.retrieve.models import fingerprint, open_cross, open_encoder
from baselines.train.recipe import read_recipe
from baselines.train.trained_models import cross_encoder, dual_encoder, masked_language_model
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
OF_A_BERT = [name for name in OPEN if name != "rerank"]  # a plain BERT without a classifier suffices for these


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_dual(folder / "dual")
    write_cross(folder / "cross")
    write_bert(folder / "bert")
    write_static(folder / "static")
    return folder


def _weights(change: Callable[[Weights], Weights]) -> Callable[[Path], object]:
    path = "model.safetensors"
    return lambda folder: save_file(change(load_file(folder / path)), folder / path, {"format": "pt"})


def _without(part: str) -> Callable[[Path], object]:
    return _weights(lambda weights: {name: value for name, value in weights.items() if part not in name})


def _set(name: str, **values: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
        (folder / name).write_text(json.dumps(content | values), encoding="utf-8")

    return change


def _words(words: Callable[[dict[str, int]], dict[str, int]]) -> Callable[[Path], object]:
    """Replace the words of the tokenizer."""

    def change(folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        content["model"]["vocab"] = words(content["model"]["vocab"])
        (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")

    return change


def _without_tokenizer(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.name.startswith(("tokenizer", "vocab", "merges", "special_tokens")):
            path.unlink()


_broken = _weights(
    lambda weights: {name: each * float("nan") if "word_embeddings" in name else each for name, each in weights.items()}
)
_renamed = _weights(lambda weights: {f"other.{name}": each for name, each in weights.items()})
_latin = _words(lambda words: {word if "[" in word else f"word{number}": number for word, number in words.items()})
_EMPTY, _UNREAD = "special or unknown tokens of a Chinese sentence", "expected the tokenizer of this model"
_LOST = "its files lack 2 of its weights: classifier.bias, classifier.weight)"
_CROSS, _TRAINED = ["rerank", "train a cross-encoder"], OF_A_BERT[1:]
_SAVED, _READ = "config_sentence_transformers.json", "sentence_bert_config.json"
# By damage: the model, the functions that open it, the change, the error.
DAMAGE: dict[str, tuple[str, list[str], Callable[[Path], object], str]] = {
    "no classifier": ("cross", _CROSS, _without("classifier"), _LOST),
    "weights of other names": ("bert", OF_A_BERT, _renamed, "its files lack"),
    "a layer missing": ("bert", OF_A_BERT, _without("layer.1."), "its files lack 16 of its weights"),
    "no numbers": ("cross", _CROSS, _broken, "its weights are damaged"),
    "no numbers in an encoder": ("bert", OF_A_BERT[:2], _broken, "its weights are damaged"),
    "another shape": ("bert", OF_A_BERT, _set("config.json", intermediate_size=96), ""),
    "no tokenizer": ("bert", OF_A_BERT, _without_tokenizer, _EMPTY),
    "no tokenizer of a re-ranker": ("cross", ["rerank"], _without_tokenizer, _EMPTY),
    "Latin words": ("bert", OF_A_BERT, _latin, _EMPTY),
    "Latin words of a static model": ("static", ["encode"], _latin, _EMPTY),
    "more words than weights": ("bert", OF_A_BERT, _words(lambda words: words | {"more": len(words)}), _UNREAD),
    "no pad token": ("bert", OF_A_BERT, _set("tokenizer_config.json", pad_token=None), "padding token"),
    "prompts in a list": ("dual", ["encode"], _set(_SAVED, prompts=["q: "]), "cannot be opened"),
    "a list for a prompt": ("dual", ["encode"], _set(_SAVED, prompts={"query": ["q: "]}), "cannot read a text"),
    "a negative length": ("dual", ["encode"], _set(_READ, query_length=-1), "expected at least 1"),
}


@pytest.mark.parametrize(("damage", "what"), [(damage, what) for damage, row in DAMAGE.items() for what in row[1]])
def test_a_damaged_model_is_one_error(models: Path, tmp_path: Path, damage: str, what: str) -> None:
    name, _, change, said = DAMAGE[damage]
    folder = Path(shutil.copytree(models / name, tmp_path / "model"))
    change(folder)
    with pytest.raises(InputError) as error:
        OPEN[what](str(folder))
    (line,) = str(error.value).split("\n")
    assert str(folder) in line and said in line


def test_a_model_without_a_pooler_has_one_fingerprint(models: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(models / "dual", tmp_path / "model"))
    _without("pooler")(folder)
    one, other = (fingerprint(open_encoder(ModelSettings(str(folder)))) for _ in range(2))
    assert one == other != fingerprint(open_encoder(ModelSettings(str(models / "dual"))))


def test_texts_are_never_cut_beyond_a_models_positions(models: Path, tmp_path: Path) -> None:
    dual, cross = (Path(shutil.copytree(models / name, tmp_path / name)) for name in ("dual", "cross"))
    for folder in (dual, cross):
        _set("tokenizer_config.json", model_max_length=100_000)(folder)
    long = "北京的冬天很冷" * 500
    assert open_encoder(ModelSettings(str(dual))).encode([long]).shape == (1, 32)
    assert open_cross(ModelSettings(str(cross))).predict([(long, long)]).shape == (1,)
    with pytest.raises(InputError, match=r"--max-length 600: expected at most 512 tokens, the number of the model"):
        open_cross(ModelSettings(str(cross), max_length=600))


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_an_encoder_of_a_family_is_refused_without_its_tokenizer(tmp_path: Path, name: str) -> None:
    folder = with_modules(write_encoder(tmp_path, name), "mean")
    open_encoder(ModelSettings(str(folder)))
    _without_tokenizer(folder)
    with pytest.raises(InputError, match=str(folder)):
        open_encoder(ModelSettings(str(folder)))


def test_an_added_token_without_a_weight_is_ignored(models: Path, tmp_path: Path) -> None:
    """transformers adds such tokens. They occur only in texts that spell them out."""
    folder = Path(shutil.copytree(models / "dual", tmp_path / "model"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<extra>"]})
    tokenizer.save_pretrained(folder)
    assert open_encoder(ModelSettings(str(folder))).encode(["北京"]).shape == (1, 32)


class _Touch(str):
    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (Path(self),)


def _pickled(folder: Path, ran: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"embeddings": _Touch(ran)}))


def _torch_pickled(folder: Path, ran: str) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**weights, "more": _Touch(ran)}, folder / "pytorch_model.bin")


def _own_model(folder: Path, ran: str) -> None:
    auto = {name: "evil.Evil" for name in ("AutoConfig", "AutoModel", "AutoModelForMaskedLM")}
    _set("config.json", auto_map=auto, model_type="evil", trust_remote_code=True)(folder)


def _own_tokenizer(folder: Path, ran: str) -> None:
    _set("tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", None]}, tokenizer_class="Evil")(folder)


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
    (folder / "evil.py").write_text(f"from pathlib import Path\nPath({str(ran)!r}).touch()\n")
    change(folder, str(ran))
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # the question of transformers on stdin
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))  # like `python -m` in this folder
    try:
        OPEN[what](str(folder))
    except InputError as error:
        assert "\n" not in str(error)
    assert not ran.exists()


@pytest.fixture
def release(tmp_path: Path, own_cache: None) -> Path:
    model_commit.cache_clear()
    return make_release(tmp_path / "release")


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("baselines.retrieve.hub_models._ANSWER_SECONDS", 0.3)
        yield address


def test_without_a_hub_every_command_says_so_in_one_line(tmp_path: Path, release: Path, silent: str) -> None:
    run("baselines", "encode", "--release", release, "--model", write_dual(tmp_path / "m"), "--out", tmp_path / "p")
    ranking = tmp_path / "a.run"
    query, answer = md5(QUESTIONS["train"][0]), md5(TEXTS[0])
    ranking.write_text(f"{query} Q0 {answer} 1 1.0 t\n")
    common = ["--release", release, "--split", "train", "--out", tmp_path / "out"]
    for words in (
        ["encode", *common, "--queries", "--model", "org/name"],
        ["search", *common, "--passages", tmp_path / "p", "--model", "org/name"],
        ["rerank", *common, "--run", ranking, "--model", "org/name"],
        ["mine", *common, "--run", ranking, "--cross-encoder", "org/name", "--margin", "1"],
    ):
        started = time.monotonic()
        line = error_of(run("baselines", *words, code=1))
        assert time.monotonic() - started < 15
        assert line.startswith(f"error: the model org/name would come from the hub: {silent} cannot be reached")
        assert line.endswith("; set HF_ENDPOINT to use a mirror or another hub; a directory needs no hub")
        assert not (tmp_path / "out").exists()


def test_a_hub_model_is_pinned_to_a_commit(tmp_path: Path, release: Path, hub: Hub, call: Callable[..., Done]) -> None:
    first = publish(hub, "org/bert", write_bert(tmp_path / "first"))
    second = publish(hub, "org/bert", write_bert(tmp_path / "second", seed=1))
    options = ["encode", "--release", release]
    for name, words, commit in (("second", [], second), ("first", ["--revision", first.oid], first)):
        model_commit.cache_clear()
        out, own = tmp_path / f"of-{name}", tmp_path / f"own-{name}"
        call(*options, "--model", "org/bert", "--out", out, *words)
        run("baselines", *options, "--model", tmp_path / name, "--out", own)
        told = json.loads((out / "manifest.json").read_text())["model"]
        assert (told["name"], told["commit"]) == ("org/bert", commit.oid)
        np.testing.assert_array_equal(open_vectors(out).all(), open_vectors(own).all())
    assert "commit" not in open_vectors(own).manifest["model"]  # a directory has no commit
    queries = ["--model", "org/bert", "--passages", out, "--out", tmp_path / "a.run", "--split", "train"]
    call("search", "--release", release, *queries, "--revision", first.oid)
    model_commit.cache_clear()
    wrong = call("search", "--release", release, *queries, "--revision", second.oid, code=1)
    assert "is not the model that encoded" in wrong.stderr


def test_a_path_as_a_commit_is_refused(tmp_path: Path, release: Path, hub: Hub, call: Callable[..., Done]) -> None:
    publish(hub, "org/bert", write_bert(tmp_path / "bert")).oid = "../../../evil"
    done = call("encode", "--release", release, "--model", "org/bert", "--out", tmp_path / "out", code=1)
    assert "the hub gives org/bert the commit '../../../evil'; expected 40 hex digits; set HF_ENDPOINT" in done.stderr
    assert not [path for path in tmp_path.rglob("evil*")]


def test_a_download_that_fails_while_a_model_is_opened_names_the_variable() -> None:
    with pytest.raises(InputError, match="set HF_ENDPOINT"), opening("org/name: cannot be opened"):
        raise OSError(f"We couldn't connect to {constants.ENDPOINT!r} to load the files")
