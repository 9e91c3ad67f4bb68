"""Other tools that call plain ``encode()`` of a dual-encoder give the same scores as this project.

With ``TEST_TOOLS=1`` (``make test-tools``), the blocks of docs/tools/encode.md run in BEIR, LlamaIndex and Haystack.
"""

import importlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers.base.model as library
from checkpoints import describe
from commands import ROOT, run
from pages import blocks
from releases import QUESTIONS
from releases import TEXTS as PASSAGES
from sentence_transformers import SentenceTransformer
from test_peers import reciprocal_rank
from test_tools import TEXTS, Make, place_of  # noqa: F401
from tiny_models import write_dual

from baselines.core.checkpoint import write_needs
from builders.store.reader import open_release
from builders.store.runs import read_run

PAGE = ROOT / "docs" / "tools" / "encode.md"
BEIR, LLAMA_INDEX, HAYSTACK, SPLIT = [block.text for block in blocks(PAGE) if block.language == "python"]
TOOLS = {"beir": BEIR, "llamaindex": LLAMA_INDEX, "haystack": HAYSTACK}
# Settings of the dual-encoder that is written.
DUAL_ENCODERS: dict[str, Any] = {"one encoder": {}, "prompts": {"prompts": {"query": "问：", "document": "文："}}}


def write_trained(path: Path, **settings: Any) -> Path:
    """Write a trained dual-encoder, whose plain ``encode()`` truncates texts like passages."""
    write_dual(path, 1, "cosine", query_length=20, document_length=24, texts=TEXTS, **settings)
    model = SentenceTransformer(str(path), device="cpu")
    for module in model.modules():
        if type(module).__name__ == "Transformer":
            module.max_seq_length = 24  # type: ignore[assignment]
    model.save_pretrained(str(path))
    return path


def read_settings(model_folder: Path) -> dict[str, Any]:
    """Read the settings that sentence-transformers keeps with a model."""
    path = model_folder / "config_sentence_transformers.json"
    settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return settings


@pytest.mark.parametrize(("router", "version", "reason"), [(False, "6.0.0", "lengths"), (True, "6.0.1", "6.0.0 trunc")])
def test_the_configuration_says_what_it_needs_and_the_library_holds_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, router: bool, version: str, reason: str
) -> None:
    folder = describe(write_dual(tmp_path / "dual", router=router), "dual")
    settings_before = read_settings(folder)
    write_needs(folder)
    settings = read_settings(folder)
    requirement = settings.pop("requirements")["sentence-transformers"]
    assert settings == settings_before
    assert requirement["specifier"] == f">={version}"
    assert reason in requirement["reason"]
    version_module = importlib.import_module(library.check_version_requirements.__module__)
    monkeypatch.setattr(version_module, "get_installed_version", lambda _: "5.9.9")
    with pytest.raises(ImportError, match=f"sentence-transformers>={version}, but .*5.9.9.* is installed. .*{reason}"):
        SentenceTransformer(str(folder), device="cpu")


def test_two_encoders_are_split_for_a_plain_encode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = SentenceTransformer(str(write_trained(tmp_path / "MODEL", router=True)), device="cpu")
    exec(SPLIT, {})  # writes MODEL-query and MODEL-document
    query_encoder = SentenceTransformer("MODEL-query", device="cpu")
    passage_encoder = SentenceTransformer("MODEL-document", device="cpu")
    questions = QUESTIONS["train"] + QUESTIONS["dev"] + QUESTIONS["test"]
    assert np.allclose(query_encoder.encode(questions), model.encode_query(questions))
    assert np.allclose(passage_encoder.encode(PASSAGES), model.encode_document(PASSAGES))


def search_and_evaluate(folder: Path) -> tuple[dict[str, dict[str, float]], float]:
    """Return the run of `encode` and `search` for the dev queries, and its MRR@10 by `evaluate`."""
    inputs = ["--release", folder / "RELEASE", "--model", folder / "MODEL", "--quiet"]
    run("baselines", "encode", inputs, "--out", folder / "vectors")
    run_path = folder / "dense.run"
    inputs += ["--split", "dev", "--passages", folder / "vectors"]
    run("baselines", "search", inputs, "--top-k", "10", "--out", run_path)
    words = ["evaluate", "--release", folder / "RELEASE", "--split", "dev", "--format", "json", run_path]
    (result,) = json.loads(run("baselines", words).stdout)
    our_run = {query_id: dict(hits) for query_id, hits in read_run(run_path).hits.items()}
    return our_run, 100 * result["official"]["MRR@10"]


def block_for(tool: str, folder: Path) -> str:
    """Return the tool's block of docs/tools/encode.md with the prompts of the model."""
    prompts = read_settings(folder / "MODEL")["prompts"]
    code = TOOLS[tool]
    for documented_prompt, name in (("query: ", "query"), ("passage: ", "document")):
        prompt = json.dumps(prompts.get(name) or "", ensure_ascii=False)
        code = code.replace(json.dumps(documented_prompt), prompt)
    return code


@pytest.mark.skipif(not os.environ.get("TEST_TOOLS"), reason="set TEST_TOOLS=1: environments of 100 MB")
@pytest.mark.parametrize("dual_encoder", DUAL_ENCODERS)
@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_scores_as_we_do(place_of: Make, tool: str, dual_encoder: str) -> None:
    tool_place = place_of(tool)
    folder = tool_place.folder
    (folder / "MODEL").rename(folder / "bert")
    write_trained(folder / "MODEL", **DUAL_ENCODERS[dual_encoder])
    our_run, our_figure = search_and_evaluate(folder)
    tool_run = tool_place.python(block_for(tool, folder), "found")
    for query_id, scores in tool_run.items():
        ranking = sorted(scores, key=lambda passage_id: -scores[passage_id])[:10]
        our_scores = our_run[query_id]
        common = [passage_id for passage_id in ranking if passage_id in our_scores]
        assert len(common) >= len(ranking) - 1  # the last places may tie
        for passage_id in common:
            assert scores[passage_id] == pytest.approx(our_scores[passage_id], abs=2e-3)
    qrels = open_release(folder / "RELEASE").table("qrels", "dev").to_pylist()
    tool_figure = 100 * reciprocal_rank(tool_run, qrels)
    assert tool_figure == pytest.approx(our_figure, abs=1e-6)
