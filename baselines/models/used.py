"""How an open model treats its texts, whoever said it: for the record of a run."""

from __future__ import annotations

import math
from typing import Any

from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from baselines.models.encoder import prompt_of


def used(model: Any) -> dict[str, Any]:
    """Prompts, lengths, pooling and what embeddings are compared by, as JSON values.

    ``model``: a SentenceTransformer, SparseEncoder or MultiVectorEncoder. None: the kind has none, or no limit. Towers
    that pool otherwise are both named.
    """
    poolings = [module.pooling_mode for module in model.modules() if isinstance(module, Pooling)]
    named = ["+".join([each] if isinstance(each, str) else each) for each in poolings]
    length = getattr(model, "max_seq_length", None)
    towers = [module for module in model.modules() if isinstance(module, Transformer)]
    return {
        "query_prompt": prompt_of(model, "query") or "",
        "passage_prompt": prompt_of(model, "document") or "",
        "pooling": ", ".join(dict.fromkeys(named)) or None,
        "max_length": None if length is None or math.isinf(length) else int(length),
        "query_length": _own_length(towers, "query_length"),
        "passage_length": _own_length(towers, "document_length"),
        "truncate_dim": getattr(model, "truncate_dim", None),
        "normalize": model.similarity_fn_name == "cosine" or any(isinstance(each, Normalize) for each in model),
        "similarity": model.similarity_fn_name,
    }


def _own_length(towers: list[Transformer], name: str) -> int | None:
    """The tokens that queries, or passages, alone are cut to."""
    return min((length for tower in towers if (length := getattr(tower, name)) is not None), default=None)
