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
from test_peers import Place, reciprocal_rank
from test_tools import TEXTS, Make, place_of  # noqa: F401
from tiny_models import write_dual

from baselines.core.checkpoint import write_needs
from builders.store.reader import open_release
from builders.store.runs import read_run

PAGE = ROOT / "docs" / "tools" / "encode.md"
BEIR, LLAMA_INDEX, HAYSTACK, SPLIT = [block.text for block in blocks(PAGE) if block.language == "python"]
TOOLS = {"beir": BEIR, "llamaindex": LLAMA_INDEX, "haystack": HAYSTACK}
KINDS: dict[str, Any] = {"one encoder": {}, "prompts": {"prompts": {"query": "问：", "document": "文："}}}


def trained(path: Path, **more: Any) -> Path:
    """A trained dual-encoder, whose plain ``encode()`` truncates texts like passages."""
    write_dual(path, 1, "cosine", query_length=20, document_length=24, texts=TEXTS, **more)
    model = SentenceTransformer(str(path), device="cpu")
    for module in model.modules():
        if type(module).__name__ == "Transformer":
            module.max_seq_length = 24  # type: ignore[assignment]
    model.save_pretrained(str(path))
    return path


@pytest.mark.parametrize(("router", "version", "reason"), [(False, "6.0.0", "lengths"), (True, "6.0.1", "6.0.0 trunc")])
def test_the_configuration_says_what_it_needs_and_the_library_holds_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, router: bool, version: str, reason: str
) -> None:
    folder = describe(write_dual(tmp_path / "dual", router=router), "dual")
    before = json.loads((folder / "config_sentence_transformers.json").read_text(encoding="utf-8"))
    write_needs(folder)
    after = json.loads((folder / "config_sentence_transformers.json").read_text(encoding="utf-8"))
    needs = after.pop("requirements")["sentence-transformers"]
    assert after == before and needs["specifier"] == f">={version}" and reason in needs["reason"]
    checks = importlib.import_module(library.check_version_requirements.__module__)
    monkeypatch.setattr(checks, "get_installed_version", lambda _: "5.9.9")
    with pytest.raises(ImportError, match=f"sentence-transformers>={version}, but .*5.9.9.* is installed. .*{reason}"):
        SentenceTransformer(str(folder), device="cpu")


def test_two_encoders_are_split_for_a_plain_encode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = SentenceTransformer(str(trained(tmp_path / "MODEL", router=True)), device="cpu")
    exec(SPLIT, {})
    both = [SentenceTransformer(f"MODEL-{side}", device="cpu") for side in ("query", "document")]
    questions = [question for asked in QUESTIONS.values() for question in asked]
    assert np.allclose(both[0].encode(questions), model.encode_query(questions))
    assert np.allclose(both[1].encode(PASSAGES), model.encode_document(PASSAGES))


def ours(place: Place) -> tuple[dict[str, dict[str, float]], float]:
    """Return the run of `encode` and `search` for the dev queries, and its MRR@10 by `evaluate`."""
    release, model = ["--release", place.folder / "RELEASE"], ["--model", place.folder / "MODEL"]
    run("baselines", "encode", *release, *model, "--out", place.folder / "vectors", "--quiet")
    words = [*release, *model, "--split", "dev", "--passages", place.folder / "vectors", "--top-k", "10"]
    run("baselines", "search", *words, "--out", place.folder / "dense.run", "--quiet")
    words = [*release, "--split", "dev", "--format", "json", place.folder / "dense.run"]
    figure = json.loads(run("baselines", "evaluate", *words).stdout)[0]["official"]["MRR@10"]
    return {query: dict(hits) for query, hits in read_run(place.folder / "dense.run").hits.items()}, 100 * figure


def block_for(tool: str, folder: Path) -> str:
    settings = json.loads((folder / "MODEL" / "config_sentence_transformers.json").read_text(encoding="utf-8"))
    code = TOOLS[tool]
    for said, name in (("query: ", "query"), ("passage: ", "document")):
        code = code.replace(json.dumps(said), json.dumps(settings["prompts"].get(name) or "", ensure_ascii=False))
    return code


@pytest.mark.skipif(not os.environ.get("TEST_TOOLS"), reason="set TEST_TOOLS=1: environments of 100 MB")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_scores_as_we_do(place_of: Make, tool: str, kind: str) -> None:
    place = place_of(tool)
    (place.folder / "MODEL").rename(place.folder / "bert")
    trained(place.folder / "MODEL", **KINDS[kind])
    found, expected = ours(place)
    theirs = place.python(block_for(tool, place.folder), "found")
    for query, scores in theirs.items():
        best = sorted(scores, key=lambda passage: -scores[passage])[:10]
        common = {passage for passage in best if passage in found[query]}
        assert len(common) >= len(best) - 1  # the last places may tie
        assert {p: scores[p] for p in common} == pytest.approx({p: found[query][p] for p in common}, abs=2e-3)
    judged = open_release(place.folder / "RELEASE").table("qrels", "dev").to_pylist()
    figure = 100 * reciprocal_rank(theirs, judged)
    assert figure == pytest.approx(expected, abs=1e-6)
