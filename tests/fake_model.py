"""A stand-in for the package sentence_transformers: instant, and its vectors can be told by hand."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest


def fake_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence_transformers whose model gives a text's length, its first character and whether it was prompted."""

    class SentenceTransformer:
        def __init__(self, name: str) -> None:
            if name == "missing":
                raise OSError("no such model")

        def encode(self, texts: list[str], prompt: str = "", **options: Any) -> np.ndarray:
            assert options["batch_size"] == 7 and options["convert_to_numpy"] and not options["show_progress_bar"]
            return np.array([[len(text), ord(text[0]) % 97, len(prompt) + 1] for text in texts], np.float32)

    module = types.ModuleType("sentence_transformers")
    module.SentenceTransformer = SentenceTransformer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
