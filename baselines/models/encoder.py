"""Texts through a model in batches of like lengths, tokenised ahead (:mod:`ahead`), so that a GPU does not wait.

The embeddings are those of ``SentenceTransformer.encode_query`` and ``encode_document`` (their prompts, lengths and
Router), the scores the logits of ``CrossEncoder.predict``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer

from baselines.models.ahead import Ahead
from baselines.models.devices import batch_tokens
from builders.core.errors import InputError

Halves = npt.NDArray[np.float16]
Result = TypeVar("Result")
_BYTES_A_TOKEN = 3  # UTF-8: of a Chinese character, and about that of a piece of an English word
_MOST = 2_048  # texts in a batch, however short
# encode_query and encode_document take the first of these prompts that the model has.
_PROMPTS = {"query": ["query"], "document": ["document", "passage", "corpus"]}


def prompt_of(model: SentenceTransformer, task: str) -> str | None:
    """What is put before a text of a ``task`` (query or document): in training, encoding and searching alike."""
    name = next((name for name in _PROMPTS[task] if name in model.prompts), model.default_prompt_name)
    return None if name is None else model.prompts.get(name)


class Encoder:
    """A dual-encoder's side for queries or for passages (``task``: query or document).

    ``tokens``: of a batch, padding included; ``tokenizers``: processes that tokenise many texts, 0 for a thread.
    """

    def __init__(self, model: SentenceTransformer, task: str, tokens: int | None = None, tokenizers: int = 0) -> None:
        self.model, self._task = model, task
        self.device = torch.device(model.device)
        self._tokens = tokens or batch_tokens(self.device.type)
        given = {"prompt": prompt_of(model, task), "task": task}
        self._ahead = Ahead(model, given, tokenizers, pin=self.device.type == "cuda")
        self._longest = longest_of(self._ahead, "的 " * 5_000)

    def encode(self, texts: Sequence[str]) -> Halves:
        """Embeddings, shape (texts, dimensions), in the texts' order; unit length where the model compares by cosine.

        Raises :class:`InputError` where a number is too large for 16 bits.
        """
        found = _through(self._ahead, self._embed, texts, self._longest, self._tokens, self.device)
        halves: Halves = found.cpu().numpy()
        if not np.isfinite(halves).all():
            raise InputError("the model's embeddings hold numbers that 16 bits cannot (try --dtype bf16 or fp32)")
        return halves

    def _embed(self, features: dict[str, Any]) -> torch.Tensor:
        embeddings = self.model(features, task=self._task)["sentence_embedding"]
        if self.model.truncate_dim is not None:
            embeddings = embeddings[..., : self.model.truncate_dim]
        if self.model.similarity_fn_name == "cosine":
            embeddings = torch.nn.functional.normalize(embeddings.float(), dim=1)
        halves: torch.Tensor = embeddings.half()  # they stay on the device until all texts are done
        return halves


class CrossScorer:
    """A cross-encoder's scores of (query, passage) pairs: logits, which, unlike its sigmoid, never meet at 1.

    Of two outputs it is their difference, which ranks as the probability of the second does. Arguments as of
    :class:`Encoder`.
    """

    def __init__(self, model: CrossEncoder, tokens: int | None = None, tokenizers: int = 0) -> None:
        self.model = model
        self.device = torch.device(model.device)
        self._tokens = tokens or batch_tokens(self.device.type)
        name = model.default_prompt_name
        given = {"prompt": None if name is None else model.prompts.get(name)}
        self._ahead = Ahead(model, given, tokenizers, pin=self.device.type == "cuda")
        self._longest = longest_of(self._ahead, ("的", "的 " * 5_000))

    def scores(self, pairs: Sequence[tuple[str, str]]) -> npt.NDArray[np.float32]:
        """The logit of every pair, shape (pairs,), in the pairs' order."""
        found = _through(self._ahead, self._score, pairs, self._longest, self._tokens, self.device)
        logits: npt.NDArray[np.float32] = found.cpu().numpy()
        if not np.isfinite(logits).all():
            raise InputError("the cross-encoder gives scores that are not finite (try --dtype bf16 or fp32)")
        return logits

    def _score(self, features: dict[str, Any]) -> torch.Tensor:
        scores: torch.Tensor = self.model(features)["scores"]
        scores = scores.float().reshape(len(scores), -1)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores[:, 0]


def longest_of(ahead: Ahead, text: Any) -> int:
    """The tokens that a text is cut to. It also sets the tokenizer up, which no other thread may do later."""
    return int(ahead.tokens([text])["input_ids"].shape[-1])


def batches(sizes: npt.NDArray[np.int64], longest: int, tokens: int) -> Iterator[npt.NDArray[np.int64]]:
    """Which texts, of some sizes (bytes of UTF-8), are in a batch: texts of like lengths, the longest first.

    A batch has at most ``tokens`` tokens, padding included, as far as bytes tell; the same sizes give the same
    batches.
    """
    order = np.argsort(-sizes, kind="stable")
    expected = np.minimum(sizes[order] // _BYTES_A_TOKEN + 2, longest)
    start = 0
    while start < len(order):
        count = max(1, min(int(tokens // expected[start]), _MOST))
        count -= count % 8 if count > 8 else 0  # matrix units work on multiples of 8
        yield order[start : start + count]
        start += count


def _through(
    ahead: Ahead,
    compute: Callable[[dict[str, Any]], torch.Tensor],
    texts: Sequence[Any],
    longest: int,
    tokens: int,
    device: torch.device,
) -> torch.Tensor:
    """``compute`` of all texts in the texts' order; nothing waits for the device before the last batch is queued."""
    every: torch.Tensor | None = None
    for batch, computed in in_batches(ahead, compute, texts, longest, tokens, device):
        if every is None:
            # Once for all: small results kept between large passing ones would split the memory of those.
            every = torch.empty((len(texts), *computed.shape[1:]), dtype=computed.dtype, device=device)
        every[torch.from_numpy(batch).to(device, non_blocking=True)] = computed
    assert every is not None  # there is a text
    return every


def in_batches(
    ahead: Ahead,
    compute: Callable[[dict[str, Any]], Result],
    texts: Sequence[Any],
    longest: int,
    tokens: int,
    device: torch.device,
) -> Iterator[tuple[npt.NDArray[np.int64], Result]]:
    """(the numbers of the texts of a batch, ``compute`` of it), for every batch."""
    places = list(batches(np.array([_size(text) for text in texts], np.int64), longest, tokens))
    tokenised = ahead(([texts[number] for number in batch] for batch in places), len(texts))
    with torch.inference_mode():
        for batch, found in zip(places, tokenised, strict=True):
            moved = {
                n: each.to(device, non_blocking=True) if torch.is_tensor(each) else each for n, each in found.items()
            }
            yield batch, compute(moved)


def _size(text: str | tuple[str, str]) -> int:
    return len(text.encode()) if isinstance(text, str) else sum(len(each.encode()) for each in text)
