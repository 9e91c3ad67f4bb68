"""Empty runs are not re-ranked, and wrong numbers in a model's files are one error. Nothing is written."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import error_of, run
from releases import QUESTIONS, make_release, md5
from sentence_transformers import SentenceTransformer
from tiny_kinds import write_static
from tiny_models import write_cross, write_dual

from baselines import run_model, search
from baselines.core.settings import ModelSettings
from baselines.retrieve.models import open_encoder
from builders.core.errors import InputError

pytestmark = pytest.mark.usefixtures("own_cache")
QUERY = md5(QUESTIONS["dev"][0])


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of the usual texts. Do not change it."""
    return make_release(tmp_path_factory.mktemp("empty") / "release")


@pytest.mark.parametrize("content", [{}, {QUERY: []}])
@pytest.mark.parametrize("write_model", [write_dual, write_cross])
def test_an_empty_run_is_not_reranked(
    release: Path, tmp_path: Path, write_model: Any, content: dict[str, list[str]]
) -> None:
    model_folder = write_model(tmp_path / "model")
    run_path = tmp_path / "first.json"
    run_path.write_text(json.dumps(content))
    out = tmp_path / "out"
    rerank = ["rerank", "--model", model_folder, "--run", run_path, "--release", release, "--out", out]
    run_over = ["run", model_folder, "--over", run_path, "--release", release, "--out", out]
    for words in (rerank, run_over):
        error_line = error_of(run("baselines", words, code=1))
        assert error_line.startswith(f"error: {run_path}: is an empty run; expected passages to re-rank")
        assert not [path.name for path in tmp_path.iterdir() if "out" in path.name]


@pytest.mark.parametrize("first_run", [{}, {QUERY: {}}])
def test_an_empty_run_of_python_is_not_reranked(
    release: Path, tmp_path: Path, first_run: dict[str, dict[str, float]]
) -> None:
    folder = write_dual(tmp_path / "model")
    for model in (folder, SentenceTransformer(str(folder), device="cpu"), lambda pairs: [1.0] * len(pairs)):
        with pytest.raises(InputError, match="is an empty run; expected passages to re-rank"):
            search(model, release, run=first_run)


def change_json(path: Path, **values: Any) -> None:
    """Change values of a JSON file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(content | values), encoding="utf-8")


def truncate_vectors(model_folder: Path, dimensions: Any) -> None:
    """Let the model's files keep the first dimensions of each vector."""
    change_json(model_folder / "config_sentence_transformers.json", truncate_dim=dimensions)


@pytest.mark.parametrize("write_model", [write_dual, write_static])
@pytest.mark.parametrize("dimensions", [0, -1, 1.5, "8", True, 1000])
def test_a_wrong_number_of_dimensions_in_a_models_files_is_one_error(
    tmp_path: Path, write_model: Any, dimensions: Any
) -> None:
    model_folder = write_model(tmp_path / "model")
    truncate_vectors(model_folder, dimensions)
    problem = f"truncate_dim is {dimensions!r}; expected a number from 1 to (16|32), or no such"
    with pytest.raises(InputError, match=problem):
        open_encoder(ModelSettings(str(model_folder)))


def test_a_model_is_opened_again_after_an_error(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_folder = write_dual(tmp_path / "model")
    with monkeypatch.context() as patch, pytest.raises(InputError, match="a full disk"):
        patch.setattr("baselines.retrieve.vector_index._save_array", raise_full_disk)
        run_model(str(model_folder), release)
    # If the model were still open, it would have its earlier dimensions.
    truncate_vectors(model_folder, 8)
    assert run_model(str(model_folder), release).manifest["model"]["dim"] == 8


def raise_full_disk(*_: object) -> None:
    """Fail in place of the function that writes an index."""
    raise InputError("a full disk")


@pytest.mark.parametrize("name", ["query_length", "document_length"])
@pytest.mark.parametrize("length", [0, -5, True])
def test_a_wrong_length_in_a_models_files_is_one_error(tmp_path: Path, name: str, length: Any) -> None:
    model_folder = write_dual(tmp_path / "model")
    change_json(model_folder / "sentence_bert_config.json", **{name: length})
    with pytest.raises(InputError, match=f"have {name} {length!r}; expected at least 1, or no such entry"):
        open_encoder(ModelSettings(str(model_folder)))
