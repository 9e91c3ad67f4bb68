"""Models computed by OpenVINO: PyTorch's embeddings and scores, their record in manifests, and refusals."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from releases import TEXTS, make_release
from tiny_kinds import write_language_model, write_multi_vector, write_sparse, write_static
from tiny_models import write_cross, write_dual

from baselines.retrieve.devices import Work, dtype_of
from baselines.retrieve.encoder import without_weights
from baselines.retrieve.index import open_retriever, open_vectors
from baselines.retrieve.models import open_encoder
from baselines.retrieve.rerankers import open_reranker
from baselines.retrieve.settings import ModelSettings
from builders.core.command import main
from builders.core.errors import InputError
from builders.store.reader import open_release

PAIRS = [("煮饺子多长时间", text) for text in TEXTS]
VERBS = {"encode": "baselines.retrieve.encode", "run": "baselines.retrieve.run"}
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nncf", reason="the extra openvino is not installed")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


def test_embeddings_are_pytorchs_and_are_not_reused_by_another_backend(openvino: None, tmp_path: Path) -> None:
    model, release = write_dual(tmp_path / "model"), make_release(tmp_path / "release")
    words = ["encode", "--release", str(release), "--model", str(model), "--shard-rows", "2", "--out"]
    found = {}
    for name, *more in (["torch"], ["fp32", "openvino"], ["bf16", "openvino"], ["int8", "openvino"]):
        given = ["--backend", *more, "--dtype", name] if more else []
        assert main("baselines", "", VERBS, [*words, str(tmp_path / "out"), *given]) == 0
        found[name] = open_vectors(tmp_path / "out")
        assert found[name].precision == (f"openvino-{name}" if more else "fp32")
        found[name] = found[name].all().astype(np.float32)
    np.testing.assert_allclose(found["fp32"], found["torch"], atol=5e-3)
    for name in ("bf16", "int8"):
        np.testing.assert_allclose(found[name], found["torch"], atol=0.2)
        assert (found[name] != found["torch"]).any()
    for out in ("out", "again"):
        assert main("baselines", "", VERBS, [*words, str(tmp_path / out), "--backend", "openvino"]) == 0
    for path in (tmp_path / "out").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()
    encoder = open_encoder(ModelSettings(str(model)), "cpu", "openvino-fp32")
    assert without_weights(encoder)[0].model.forward is None  # a copy for tokenising


def test_scores_of_pairs_are_pytorchs(openvino: None, tmp_path: Path) -> None:
    settings = ModelSettings(str(write_cross(tmp_path / "model")))
    one, other = (
        open_reranker(settings, Work(("cpu",), dtype)).score(PAIRS, "cpu") for dtype in ("fp32", "openvino-fp32")
    )
    np.testing.assert_allclose(other, one, atol=1e-4)


@pytest.mark.parametrize("write", [write_sparse, write_multi_vector])
def test_hits_of_other_kinds_are_pytorchs(openvino: None, tmp_path: Path, write: Callable[[Path], Path]) -> None:
    release, found = open_release(make_release(tmp_path / "release")), []
    settings = ModelSettings(str(write(tmp_path / "m")))
    for dtype in ("fp32", "openvino-fp32"):
        retriever = open_retriever(settings, Work(("cpu",), dtype))
        assert retriever.about["computed_in"] == dtype
        index = retriever.index(release, "corpus", tmp_path / dtype)
        found.append([dict(own) for own in retriever.search(release, "corpus", index, TEXTS[:2], 9)])
    for one, other in zip(*found, strict=True):
        assert one == pytest.approx(other, abs=1e-2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dtype", "int8"], "--dtype int8 needs --backend openvino"),
        (["--backend", "openvino", "--dtype", "fp16"], "expected --dtype fp32, bf16 or int8"),
        (["--backend", "openvino"], '[openvino]"'),
    ],
)
def test_refused(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)  # not installed
    release, model = make_release(tmp_path / "release"), write_dual(tmp_path / "model")
    given = ["run", str(model), "--release", str(release), "--out", str(tmp_path / "out"), *words]
    assert main("baselines", "", VERBS, given) != 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert said in line and not (tmp_path / "out").exists()


def test_models_that_openvino_cannot_run_are_refused(openvino: None, tmp_path: Path) -> None:
    assert dtype_of("auto", "cpu", "openvino") == "openvino-fp32"
    with pytest.raises(InputError, match="needs a model with a transformer; use --backend torch"):
        open_encoder(ModelSettings(str(write_static(tmp_path / "static"))), "cpu", "openvino-fp32")
    settings = ModelSettings(str(write_language_model(tmp_path / "llm")))  # pads on the left
    with pytest.raises(InputError, match="use --backend torch"):
        open_reranker(settings, Work(("cpu",), "openvino-fp32")).score(PAIRS, "cpu")
