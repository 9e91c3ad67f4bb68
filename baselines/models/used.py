"""How an open dual-encoder treats its texts, whoever said it: for the record of a run."""

from __future__ import annotations

from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling

from baselines.models.encoder import prompt_of


def used(model: SentenceTransformer) -> dict[str, Any]:
    """Prompts, lengths, pooling and what embeddings are compared by, as JSON values; a pooling for each tower."""
    poolings = [module.pooling_mode for module in model.modules() if isinstance(module, Pooling)]
    named = ["+".join([each] if isinstance(each, str) else each) for each in poolings]
    return {
        "query_prompt": prompt_of(model, "query") or "",
        "passage_prompt": prompt_of(model, "document") or "",
        "pooling": ", ".join(dict.fromkeys(named)) or None,
        "max_length": model.max_seq_length,
        "truncate_dim": model.truncate_dim,
        "normalize": model.similarity_fn_name == "cosine" or any(isinstance(each, Normalize) for each in model),
        "similarity": model.similarity_fn_name,
    }
