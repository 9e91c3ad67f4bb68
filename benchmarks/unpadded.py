"""Encode texts without padding: the tokens of a batch's texts follow each other, and attention knows where a text ends.

A batch is filled by the real numbers of tokens, so that no token is computed in vain. Attention runs by PyTorch's
``varlen_attn`` on a GPU, and text by text on a CPU, where the result can be compared with padded batches. This is an
experiment for BERT models: `encode` pads its batches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from models import transformer_of
from transformers import AttentionInterface

from builders.core.jobs import in_threads

_NAME = "unpadded"
_BATCHES_AHEAD = 4  # batches that a thread prepares ahead of the model


@dataclass
class TextBounds:
    """The bounds of the texts in the running batch, for the attention of all layers.

    Attributes:
        starts: position of each text's first token, and the number of tokens, 32-bit, on the model's device.
        lengths: number of tokens of each text.
        limit: number of tokens of the longest text that the model reads. The same in all batches, so that a compiled
            model is not compiled again.
    """

    starts: torch.Tensor
    lengths: list[int]
    limit: int


_bounds: list[TextBounds] = []  # one entry while a batch is computed


def _attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    """Attend inside of each text. The tensors have the shape (1, heads, tokens, width of a head).

    Returns the outputs, shape (1, tokens, heads, width of a head), and None in place of the attention's weights. The
    bounds of the texts replace ``mask``.
    """
    if query.is_cuda:
        return _attend_on_gpu(query, key, value), None
    outputs = []
    for text_query, text_key, text_value in zip(
        *(tensor.split(_bounds[0].lengths, dim=2) for tensor in (query, key, value)), strict=True
    ):
        outputs.append(torch.nn.functional.scaled_dot_product_attention(text_query, text_key, text_value))
    return torch.cat(outputs, dim=2).transpose(1, 2), None


@torch.compiler.disable  # the kernel is complete, and the bounds would be constants of the compiled model
def _attend_on_gpu(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    bounds = _bounds[0]
    # Shape (tokens, heads, width of a head). Nothing is copied, because a layer's outputs have this shape.
    rows = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
    return varlen_attn(*rows, bounds.starts, bounds.starts, bounds.limit, bounds.limit)[None]


def use_unpadded_attention(model: Any) -> None:
    """Let the transformer of a SentenceTransformer attend as :func:`encode_unpadded` needs."""
    AttentionInterface.register(_NAME, _attend)
    transformer_of(model).set_attn_implementation(_NAME)


def token_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield the numbers of each batch's texts. A batch has at most ``batch_tokens`` tokens, or one longer text.

    The texts keep their order, because nothing is padded.
    """
    numbers: list[int] = []
    token_count = 0
    for number, length in enumerate(lengths):
        if numbers and token_count + length > batch_tokens:
            yield numbers
            numbers, token_count = [], 0
        numbers.append(number)
        token_count += length
    if numbers:
        yield numbers


def text_batches(texts: Sequence[str], limit: int, batch_tokens: int) -> Iterator[Sequence[str]]:
    """Yield batches of neighbouring texts with about ``batch_tokens`` tokens, by one token per character."""
    lengths = [min(limit, len(text)) for text in texts]
    for numbers in token_batches(lengths, batch_tokens):
        yield texts[numbers[0] : numbers[-1] + 1]


def encode_unpadded(model: Any, batches: Sequence[Any], limit: int) -> torch.Tensor:
    """Return the vectors of the texts' first tokens, shape (texts, width), in the texts' order.

    ``model`` has passed :func:`use_unpadded_attention`. ``batches`` has the texts of each batch, or their tokens.
    ``limit`` is the number of tokens that the model reads of a text.
    """
    transformer = transformer_of(model)
    device = transformer.device

    def prepare(batch: Any) -> tuple[list[int], list[torch.Tensor]]:
        """Return the lengths of the texts in tokens, and the tensors: tokens, positions, and starts."""
        if isinstance(batch[0], str):
            options = {"return_attention_mask": False, "return_token_type_ids": False}
            batch = model.tokenizer(list(batch), truncation=True, max_length=limit, **options)["input_ids"]
        lengths = [len(ids) for ids in batch]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        positions = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
        arrays = [np.concatenate(batch)[None], positions[None], starts.astype(np.int32)]
        tensors = [torch.from_numpy(array) for array in arrays]
        # A GPU copies pinned memory while it computes the batch before.
        return lengths, [tensor.pin_memory() for tensor in tensors] if device.type == "cuda" else tensors

    vectors = []
    with torch.inference_mode():
        for lengths, tensors in in_threads(prepare, batches, threads=1, ahead=_BATCHES_AHEAD):
            token_ids, positions, starts = [tensor.to(device, non_blocking=True) for tensor in tensors]
            _bounds[:] = [TextBounds(starts, lengths, limit)]
            hidden = transformer(input_ids=token_ids, position_ids=positions).last_hidden_state
            vectors.append(hidden[0, starts[:-1].long()])
    _bounds.clear()
    return torch.cat(vectors)
