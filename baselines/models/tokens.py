"""Texts as tokens: the library's own, with less of a processor's time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.cross_encoder.modules import LogitScore


def preprocess(model: Any, texts: Sequence[Any], **given: Any) -> dict[str, Any]:
    """What ``model.preprocess(texts, **given)`` returns, of a SentenceTransformer or a CrossEncoder.

    transformers walks through every number in Python before it makes a tensor, which takes a third of the time: it is
    asked for plain lists (``processing_kwargs`` is the library's option for that), and NumPy makes the tensors. But
    where the library itself looks at the tensors: of queries that are expanded, and of what is padded on the left.
    """
    if isinstance(model, MultiVectorEncoder) or any(isinstance(module, LogitScore) for module in model):
        found: dict[str, Any] = model.preprocess(list(texts), **given)
        return found
    found = model.preprocess(list(texts), processing_kwargs={"common": {"return_tensors": None}}, **given)
    return {name: torch.from_numpy(np.array(value)) if _is_rows(value) else value for name, value in found.items()}


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], list)
