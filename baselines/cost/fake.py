"""Models of full size without weights, on PyTorch's fake tensors: these have shapes and types, and no numbers.

They say that they are on the CPU (PyTorch refuses others where there is no CUDA), so two operations that differ on a
card are named here: attention that never holds its matrix of scores (``card`` among transformers' implementations;
PyTorch picks this kernel on a card where passages are padded), and dropout that keeps a byte an element.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PretrainedConfig,
)
from transformers.masking_utils import sdpa_mask

from baselines.train.recipe import FROM_RECIPE, SCRATCH, Recipe, read_recipe
from baselines.train.scratch import scratch_config

_BERT_BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
# The architectures that the paper's recipes start from, as their config.json have them: no hub has to be asked.
_KNOWN: dict[str, dict[str, Any]] = {
    "nghuyong/ernie-1.0-base-zh": {
        "model_type": "ernie",
        **_BERT_BASE,
        "vocab_size": 18_000,
        "max_position_embeddings": 513,
        "hidden_act": "relu",
    },
    "google-bert/bert-base-multilingual-cased": {"model_type": "bert", **_BERT_BASE, "vocab_size": 119_547},
}


def config_of(recipe: Recipe, start: str | None = None) -> PretrainedConfig:
    """The architecture that a recipe trains, starting from ``start`` instead of its own start where that is given.

    A start that is another recipe's is that one's; a folder's or a hub model's is read, the paper's are known.
    """
    name = start or recipe.model.start
    if name == SCRATCH:
        return scratch_config(recipe.scratch, recipe.scratch.vocabulary)
    if name.startswith(FROM_RECIPE):
        return config_of(read_recipe(name.removeprefix(FROM_RECIPE)))
    if name in _KNOWN and not Path(name).exists():
        return AutoConfig.for_model(**_KNOWN[name])
    found: PretrainedConfig = AutoConfig.from_pretrained(name, revision=recipe.model.revision or "main")
    return found


_KINDS: dict[str, Any] = {
    "dual": AutoModel,
    "cross": AutoModelForSequenceClassification,
    "mlm": AutoModelForMaskedLM,
}


def make_model(kind: str, config: PretrainedConfig, dtype: torch.dtype = torch.float32, attention: str = "card") -> Any:
    """The model of a recipe's kind (dual, cross, mlm) with transformers' classes; fake inside a FakeTensorMode."""
    model = _KINDS[kind].from_config(config, dtype=dtype, attn_implementation=attention)
    if attention == "card":
        for module in list(model.modules()):
            for name, part in module.named_children():
                if isinstance(part, nn.Dropout):
                    setattr(module, name, _CardDropout(part.p))
    pooler = getattr(model, "pooler", None)
    if kind == "dual" and pooler is not None:
        pooler.requires_grad_(False)  # as in training (baselines/train/models.py)
    return model


class _CardDropout(nn.Dropout):
    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.native_dropout(states, self.p, True)[0] if self.training else states


def _card_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **other: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as ``scaled_dot_product_attention`` runs it on a card for a padded batch."""
    bias = None
    if attention_mask is not None:  # of truth values, which the kernel is given as numbers to add
        bias = torch.zeros_like(attention_mask, dtype=query.dtype).masked_fill_(~attention_mask, float("-inf"))
        bias = bias.expand(-1, query.shape[1], -1, -1)
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    grads = query.requires_grad
    found = kernel(query, key, value, bias, grads, dropout, False, scale=scaling)[0]
    return found.transpose(1, 2).contiguous(), None


AttentionInterface.register("card", _card_attention)
AttentionMaskInterface.register("card", sdpa_mask)
