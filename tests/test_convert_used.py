"""Converted models in the commands that take a model: `encode`, `search`, `rerank`, `push`."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from checkpoints import Command, files
from hub_server import Hub
from huggingface_hub import ModelCard
from official_parameters import convert, expected, official, parameters  # noqa: F401

from baselines.card import model_card
from baselines.checkpoint import open_checkpoint
from baselines.train.models import cross_encoder, dual_encoder
from baselines.train.recipe import read_recipe


def ernie(parameters: Path) -> None:
    for path in (parameters / "cross_params").glob("_cls_out*"):
        path.unlink()
    convert(parameters, "cross_params", parameters / "ernie")


def test_the_official_trainings_start_from_converted_models(parameters: Path) -> None:
    ernie(parameters)
    short = ["data.query_length=8", "data.passage_length=20"]
    for start in ("ernie", "dual"):
        dual = dual_encoder(read_recipe("official-de", short), str(parameters / start), "cpu")
        read = dual.preprocess(["高 铁"], task="document")
        assert read["token_type_ids"].tolist() == [[0, 0, 1, 1, 1]]
        assert dual(read, task="document")["sentence_embedding"].shape == (1, 4)
    cross = cross_encoder(read_recipe("official-ce", short), str(parameters / "ernie"), "cpu")
    assert cross.predict([("高 铁", "票")]).shape == (1, 2)


def test_the_card_of_a_converted_model_says_what_it_is(hub: Hub, call: Command, official: Path) -> None:
    local = (official / "cross" / "README.md").read_text(encoding="utf-8")
    assert "# cross\n" in local and 'CrossEncoder("cross")' in local and "transformers 4.57 or later" in local
    call("push", "--model", official / "dual", "--repo", "org/official-de", "--create")
    pushed = files(hub, "org/official-de")
    text = pushed["README.md"].decode()
    assert "the numbers of a folder `dual_params` of Paddle parameters" in text
    assert "Nothing was trained on the way." in text and "trained with the recipe" not in text
    for what in ("parameters", "configuration", "vocabulary"):
        digest = open_checkpoint(official / "dual").converted["sha256"][what]
        assert f"- {what}: SHA-256 `{digest}`" in text
    card = ModelCard(text).data.to_dict()
    assert (card["library_name"], card["license"]) == ("sentence-transformers", "other") and "base_model" not in card
    assert {"recipe.json", "router_config.json", "query_0_Transformer/model.safetensors"} <= set(pushed)


@pytest.mark.parametrize(
    ("kind", "printed"), [("dual", "tensor([["), ("cross", "corpus_id"), ("ernie", "torch.Size([2,")]
)
def test_the_code_on_the_card_runs(parameters: Path, kind: str, printed: str) -> None:
    if kind == "ernie":
        ernie(parameters)
    card = model_card(open_checkpoint(parameters / kind), str(parameters / kind))
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, {})
    assert printed in out.getvalue()
