"""Masked passages: what a masked language model is trained on (BERT's way)."""

from __future__ import annotations

from typing import Any

import torch


class Masked:
    """A batch of passages as token ids with some of them masked, BERT's way: 80 % [MASK], 10 % any, 10 % as they are.

    Which tokens is a function of the seed and the visits in the batch alone: no state is carried from batch to batch.
    """

    def __init__(self, tokenizer: Any, length: int, share: float, seed: int) -> None:
        self._tokenizer, self._length, self._share, self._seed = tokenizer, length, share, seed

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = self._tokenizer(
            [row["text"] for row in rows],
            truncation=True,
            max_length=self._length,
            padding=True,
            pad_to_multiple_of=8,
            return_special_tokens_mask=True,
            return_tensors="pt",
        )
        tokens, special = batch["input_ids"], batch.pop("special_tokens_mask").bool()
        generator = torch.Generator().manual_seed((self._seed * 1_000_003 + rows[0]["visit"]) % (1 << 62))
        chosen = (torch.rand(tokens.shape, generator=generator) < self._share) & ~special
        kind = torch.rand(tokens.shape, generator=generator)
        anything = torch.randint(len(self._tokenizer), tokens.shape, generator=generator)
        labels = tokens.masked_fill(~chosen, -100)
        tokens = tokens.masked_fill(chosen & (kind < 0.8), self._tokenizer.mask_token_id)
        tokens = torch.where(chosen & (kind >= 0.9), anything, tokens)
        return {"input_ids": tokens, "attention_mask": batch["attention_mask"], "labels": labels}
