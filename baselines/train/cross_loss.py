"""What a cross-encoder's training does with a batch: its tokens, its loss, the official code's adversarial step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from sentence_transformers import CrossEncoder
from torch import Tensor, nn

from baselines.retrieve.prefetch import preprocess


class PairTokens:
    """A batch of (query, passage) rows as tokens, with their labels.

    The library's collator hands the texts on and its losses cut them, in the process that trains; this one runs in the
    loader's processes where there are some (``train.workers``). The tokens are the same.
    """

    def __init__(self, model: CrossEncoder) -> None:
        self._model = model
        name = model.default_prompt_name
        self._prompt = None if name is None else model.prompts.get(name)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        tokens = preprocess(self._model, [(row["query"], row["passage"]) for row in rows], prompt=self._prompt)
        return {**tokens, "label": torch.tensor([row["label"] for row in rows])}


class PairLoss(nn.Module):
    """Binary cross entropy of one logit, or softmax cross entropy of two; the mean over a batch of :class:`PairTokens`.

    As sentence-transformers' BinaryCrossEntropyLoss and CrossEntropyLoss, of pairs that are tokens already.
    """

    def __init__(self, model: CrossEncoder) -> None:
        super().__init__()
        self.model = model  # under torchrun the trainer puts the wrapped one here
        self.outputs = model.num_labels

    def forward(self, batch: list[dict[str, Any]], labels: Tensor, **_: Any) -> Tensor:
        """The loss of ``batch[0]``, the tokens; ``labels``, shape (rows,): 1.0 for a positive, 0.0 for a negative."""
        return self.of(self.model, batch[0], labels)

    def of(self, model: nn.Module, tokens: dict[str, Any], labels: Tensor) -> Tensor:
        """The loss as ``model`` has it."""
        logits = model(dict(tokens))["scores"].float()
        if self.outputs == 1:
            return nn.functional.binary_cross_entropy_with_logits(logits.view(-1), labels.float())
        return nn.functional.cross_entropy(logits, labels.long())


def token_parts(batch: dict[str, Any], tokens: int) -> Iterator[dict[str, Any]]:
    """A batch of :class:`PairTokens` in parts of at most ``tokens`` tokens, padding included; the batch where 0.

    Pairs of like lengths come together, the longest first, and padding that a part does not need is cut off. A pair
    with more tokens is a part of its own.
    """
    mask = batch["attention_mask"]
    if not tokens or mask.numel() <= tokens:
        yield batch
        return
    positions = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    lengths, order = (mask * positions).amax(1).sort(descending=True, stable=True)
    wanted, start = lengths.tolist(), 0  # the last token's place: some models pad on the left
    while start < len(wanted):
        some = order[start : start + max(1, tokens // wanted[start])]
        part = {name: value[some] if torch.is_tensor(value) else value for name, value in batch.items()}
        for name, value in batch.items():
            if torch.is_tensor(value) and value.shape == mask.shape:
                part[name] = part[name][:, : wanted[start]]
        yield part
        start += len(some)


@contextlib.contextmanager
def moved_embeddings(embeddings: nn.Parameter, loss: Tensor, distance: float) -> Iterator[None]:
    """Inside, the embeddings are moved by ``distance`` along the gradient that ``loss`` has there; then as before.

    The official code's adversarial step: g / sqrt(sum(g * g) + 1e-8). It takes the shift away by subtracting it; here
    the very bits come back, so that a training that is taken up again ends in the same ones. In several processes each
    one moves its own embeddings along the gradient of its own share of the batch, as each card does there: the
    gradients are summed over the cards later.
    """
    (gradient,) = torch.autograd.grad(loss, [embeddings])
    kept = embeddings.detach().clone()
    with torch.no_grad():
        embeddings.add_(gradient / (gradient.square().sum() + 1e-8).sqrt(), alpha=distance)
    try:
        yield
    finally:
        with torch.no_grad():
            embeddings.copy_(kept)
