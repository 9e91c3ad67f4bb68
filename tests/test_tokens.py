"""Texts as tokens: the library's own, made with less of a processor's time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from tiny_models import SAMPLE, write_cross, write_dual

from baselines.models.tokens import preprocess


def assert_equal(ours: dict[str, Any], library: dict[str, Any]) -> None:
    assert ours.keys() == library.keys()
    for name, value in library.items():
        if torch.is_tensor(value):
            assert ours[name].dtype == value.dtype and torch.equal(ours[name], value), name
        else:
            assert ours[name] == value


@pytest.mark.parametrize("router", [False, True])
@pytest.mark.parametrize("task", ["query", "document"])
def test_a_dual_encoders_tokens_are_the_librarys(tmp_path: Path, task: str, router: bool) -> None:
    prompts = {"query": "问：", "document": "答："}
    folder = write_dual(tmp_path / "dual", query_length=8, document_length=16, router=router, prompts=prompts)
    model, texts = SentenceTransformer(str(folder), device="cpu"), [*SAMPLE, "", "的" * 40]
    given = {"task": task, "prompt": prompts[task]}
    assert_equal(preprocess(model, texts, **given), model.preprocess(texts, **given))


def test_a_cross_encoders_tokens_are_the_librarys(tmp_path: Path) -> None:
    model = CrossEncoder(str(write_cross(tmp_path / "cross")), device="cpu")
    pairs = [(text, "的" * 5 * n) for n, text in enumerate(SAMPLE)]
    assert_equal(preprocess(model, pairs), model.preprocess(pairs))
