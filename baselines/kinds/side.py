"""One side of an encoder, for queries or for passages: its texts tokenised ahead, in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from baselines.models.ahead import Ahead
from baselines.models.devices import batch_tokens
from baselines.models.encoder import in_batches, longest_of, prompt_of

Model = TypeVar("Model", bound=Any)
Result = TypeVar("Result")


class Side(Generic[Model]):
    """A model's side for queries or for passages.

    Args:
        model: an encoder of sentence-transformers.
        task: query or document.
        tokens: of a batch, padding included; None: as the device takes it.
        tokenizers: processes that tokenise.
    """

    def __init__(self, model: Model, task: str, tokens: int | None = None, tokenizers: int = 0) -> None:
        self.model, self.task, self._device = model, task, torch.device(model.device)
        self._tokens = tokens or batch_tokens(self._device.type)
        given = {"prompt": prompt_of(model, task), "task": task}
        self._ahead = Ahead(model, given, tokenizers, pin=self._device.type == "cuda")
        self._longest = longest_of(self._ahead, "的 " * 5_000)

    def batches(
        self, texts: Sequence[str], compute: Callable[[dict[str, Any]], Result]
    ) -> Iterator[tuple[npt.NDArray[np.int64], Result]]:
        """(the numbers of the texts of a batch, ``compute`` of its tokens), for every batch."""
        return in_batches(self._ahead, compute, texts, self._longest, self._tokens, self._device)
