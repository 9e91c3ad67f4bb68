"""Encode texts without padding: the tokens of a batch's texts follow each other, and attention knows where a text ends.

A batch is filled by the real numbers of tokens, so that no token is computed in vain. Attention runs by PyTorch's
``varlen_attn`` on a GPU, and text by text on a CPU, where the result can be compared with padded batches. This is an
experiment for BERT models: `encode` pads its batches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from models import transformer_of
from transformers import AttentionInterface

_NAME = "unpadded"


@dataclass
class TextBounds:
    """The bounds of the texts in the running batch, for the attention of all layers.

    Attributes:
        starts: position of each text's first token, and the number of tokens, 32-bit, on the model's device.
        lengths: number of tokens of each text.
    """

    starts: torch.Tensor
    lengths: list[int]


_bounds: list[TextBounds] = []  # one entry while a batch is computed


def _attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    """Attend inside of each text. The tensors have the shape (1, heads, tokens, width of a head).

    Returns the outputs, shape (1, tokens, heads, width of a head), and None in place of the attention's weights. The
    bounds of the texts replace ``mask``.
    """
    bounds = _bounds[0]
    if query.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        # Shape (tokens, heads, width of a head).
        rows = [tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value)]
        longest = max(bounds.lengths)
        return varlen_attn(*rows, bounds.starts, bounds.starts, longest, longest)[None], None
    outputs = []
    for text_query, text_key, text_value in zip(
        *(tensor.split(bounds.lengths, dim=2) for tensor in (query, key, value)), strict=True
    ):
        outputs.append(torch.nn.functional.scaled_dot_product_attention(text_query, text_key, text_value))
    return torch.cat(outputs, dim=2).transpose(1, 2), None


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


def encode_unpadded(model: Any, token_ids: Sequence[Sequence[int]], batch_tokens: int) -> torch.Tensor:
    """Return the vectors of the texts' first tokens, shape (texts, width), in the texts' order.

    ``model`` has passed :func:`use_unpadded_attention`, and ``token_ids`` has the tokens of each text.
    """
    transformer = transformer_of(model)
    device = transformer.device
    vectors = []
    with torch.inference_mode():
        for numbers in token_batches([len(ids) for ids in token_ids], batch_tokens):
            lengths = [len(token_ids[number]) for number in numbers]
            flat_ids = torch.tensor([token for number in numbers for token in token_ids[number]])
            positions = torch.cat([torch.arange(length) for length in lengths])
            ends = torch.tensor(lengths).cumsum(0)
            starts = torch.cat([torch.zeros(1, dtype=torch.int64), ends]).to(torch.int32).to(device)
            _bounds[:] = [TextBounds(starts, lengths)]
            hidden = transformer(
                input_ids=flat_ids[None].to(device), position_ids=positions[None].to(device)
            ).last_hidden_state
            vectors.append(hidden[0, starts[:-1].long()])
    _bounds.clear()
    return torch.cat(vectors)
