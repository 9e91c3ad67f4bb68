"""The kind of a model is detected by its files, and a model of another kind is refused before anything is written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Done, error_of, run
from hub_server import Hub
from huggingface_hub import constants
from releases import QUESTIONS, TEXTS, make_release, md5
from tiny_families import publish, write_encoder
from tiny_kinds import write_language_model, write_sparse
from tiny_models import write_bert, write_cross, write_dual

from baselines import search
from baselines.core.settings import ModelSettings
from baselines.retrieve.hub_models import model_commit
from baselines.retrieve.model_kinds import kind_of_model, kind_of_scorer
from builders.core.errors import InputError

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of each kind."""
    models_folder = tmp_path_factory.mktemp("models")
    write_bert(models_folder / "cross", labels=1)  # the files of bge-reranker-base: a plain sequence classifier
    write_language_model(models_folder / "llm")  # the files of bge-reranker-v2-gemma: a plain language model
    write_dual(models_folder / "dual")
    return models_folder


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of the usual texts. Do not change it."""
    return make_release(tmp_path_factory.mktemp("kinds") / "release")


def set_class(folder: Path, name: str) -> None:
    """Change the class of a model in its config.json."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["architectures"] = [name]
    path.write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.parametrize("kind", ["cross", "llm"])
def test_a_plain_reranker_is_not_searched_by(models: Path, release: Path, tmp_path: Path, kind: str) -> None:
    model = models / kind
    out = tmp_path / "out"
    error_line = error_of(run("baselines", "run", model, "--release", release, "--out", out, code=1))
    problem = f"{model}: is a re-ranker ({kind}); add --over RUN, the run to re-rank"
    assert error_line == f"error: {problem}, or --kind dense if the model is an encoder"
    with pytest.raises(InputError, match="add --over RUN"):
        search(model, release)
    error_line = error_of(run("baselines", "encode", "--model", model, "--release", release, "--out", out, code=1))
    assert error_line.startswith(f"error: {model}: is a re-ranker ({kind}); expected an encoder; re-rank a run")
    assert not out.exists()


@pytest.mark.parametrize("kind", ["cross", "llm"])
def test_embeddings_are_not_searched_by_a_reranker(models: Path, release: Path, tmp_path: Path, kind: str) -> None:
    vectors = tmp_path / "vectors"
    out = tmp_path / "out"
    run("baselines", "encode", "--model", models / "dual", "--release", release, "--out", vectors)
    options = ["--release", release, "--split", "train", "--passages", vectors, "--out", out]
    done = run("baselines", "search", options, "--model", models / kind, code=1)
    assert f"is a re-ranker ({kind}); expected an encoder" in error_of(done)
    assert not out.exists()


@pytest.mark.parametrize("kind", ["cross", "llm"])
def test_a_reranker_is_no_bi_encoder_of_mining(models: Path, release: Path, tmp_path: Path, kind: str) -> None:
    run_path = tmp_path / "a.run"
    out = tmp_path / "out"
    run_path.write_text(f"{md5(QUESTIONS['train'][0])} Q0 {md5(TEXTS[0])} 1 1.0 t\n")
    options = ["--release", release, "--split", "train", "--run", run_path, "--margin", "1", "--out", out]
    done = run("baselines", "mine", options, "--bi-encoder", models / kind, code=1)
    assert f"is a re-ranker ({kind}); expected an encoder" in error_of(done)
    assert not out.exists()


@pytest.mark.parametrize(
    ("class_name", "kind"),
    [
        ("XLMRobertaForSequenceClassification", "cross"),
        ("NewForSequenceClassification", "cross"),
        ("JinaForRanking", "cross"),
        ("Gemma2ForCausalLM", "llm"),
        ("LayerWiseMiniCPMForCausalLM", "llm"),
        ("GPT2LMHeadModel", "llm"),
        ("MT5ForConditionalGeneration", "llm"),
        ("HF_ColBERT", "multi-vector"),
        ("BertForMaskedLM", "dense"),
        ("XLMRobertaModel", "dense"),
    ],
)
def test_the_class_of_a_plain_model_decides(tmp_path: Path, class_name: str, kind: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [class_name]}))
    settings = ModelSettings(str(tmp_path))
    assert (kind_of_model(settings), kind_of_scorer(settings)) == (kind, kind)


def test_a_language_model_of_a_family_of_encoders_is_an_encoder(tmp_path: Path, release: Path) -> None:
    folder = write_encoder(tmp_path, "Qwen/Qwen3-Embedding-0.6B")
    set_class(folder, "Qwen3ForCausalLM")  # as in the folder on the hub
    assert kind_of_model(ModelSettings(str(folder))) == "dense"
    # The family is recognised by the name of the folder.
    renamed_folder = shutil.copytree(folder, tmp_path / "other")
    settings = ModelSettings(str(renamed_folder))
    assert kind_of_scorer(settings) == "llm"
    assert kind_of_scorer(settings, "qwen3-embedding") == "dense"
    for option in (["--kind", "dense"], ["--family", "qwen3-embedding"]):
        run("baselines", "run", renamed_folder, "--release", release, "--out", tmp_path / "a.run", option)


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        ("sentence_transformers.sentence_transformer.modules.pooling.Pooling", "dense"),
        ("sentence_transformers.sparse_encoder.models.SpladePooling", "sparse"),
        ("sentence_transformers.cross_encoder.modules.LogitScore", "cross"),
        ("pylate.models.Dense.Dense", "multi-vector"),
    ],
)
def test_the_modules_decide_if_no_class_is_saved(tmp_path: Path, module: str, kind: str) -> None:
    modules = [{"type": "sentence_transformers.models.Transformer"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert kind_of_model(ModelSettings(str(tmp_path))) == "dense"
    modules.append({"type": module})
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert kind_of_model(ModelSettings(str(tmp_path))) == kind


@pytest.mark.parametrize("write_model", [write_cross, write_sparse])
def test_a_hub_model_of_another_class_is_not_encoded(
    tmp_path: Path, release: Path, hub: Hub, call: Callable[..., Done], write_model: Callable[[Path], Path]
) -> None:
    publish(hub, "org/model", write_model(tmp_path / "model"))
    done = call("encode", "--release", release, "--model", "org/model", "--out", tmp_path / "out", code=1)
    assert "error: org/model: is a " in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.fixture
def cached_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A function that writes a model into the libraries' cache, for use without a hub, and returns its folder."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    model_commit.cache_clear()  # an earlier test may have resolved a model of the same name
    commit = "a" * 40

    def write_copy(source: Path, absent: tuple[str, ...] = ()) -> Path:
        repository = tmp_path / "hub" / "models--org--model"
        folder = repository / "snapshots" / commit
        shutil.copytree(source, folder)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(commit)
        for name in absent:  # the cache's note that the commit has no such file
            (repository / ".no_exist" / commit).mkdir(parents=True, exist_ok=True)
            (repository / ".no_exist" / commit / name).touch()
        return folder

    return write_copy


@pytest.mark.parametrize(
    "name", ["modules.json", "config_sentence_transformers.json", "tokenizer_config.json", "sentence_bert_config.json"]
)
def test_an_incomplete_cached_copy_is_refused_without_a_hub(
    models: Path, release: Path, tmp_path: Path, cached_copy: Callable[..., Path], name: str
) -> None:
    folder = cached_copy(models / "dual")
    (folder / name).unlink()
    out = tmp_path / "a.run"
    error_line = error_of(run("baselines", "run", "org/model", "--release", release, "--out", out, code=1))
    assert error_line.startswith(f"error: org/model: the cached copy lacks {name}, and the hub cannot be asked")
    assert f"`hf download org/model`), or name {folder} if this folder is complete" in error_line
    assert not out.exists()


def test_a_cached_copy_of_a_plain_model_is_used_without_a_hub(
    models: Path, release: Path, tmp_path: Path, cached_copy: Callable[..., Path]
) -> None:
    bert = write_bert(tmp_path / "bert")
    # A plain model has none of these files, and the cache knows that the hub has none either.
    cached_copy(bert, absent=("modules.json", "config_sentence_transformers.json", "tokenizer_config.json"))
    run("baselines", "run", "org/model", "--release", release, "--out", tmp_path / "a.run")
    assert kind_of_model(ModelSettings("org/model")) == "dense"


def test_a_folder_with_a_pooling_but_without_modules_is_refused(models: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(models / "dual", tmp_path / "dual")
    (folder / "modules.json").unlink()
    with pytest.raises(InputError, match=r"has 1_Pooling/config.json of .*, but no modules.json; copy all files"):
        kind_of_model(ModelSettings(str(folder)))
