"""The share of texts that a model's length cuts: the model never reads the end of such a text.

A text is tokenised twice, with and without the model's length. It is cut if it has more tokens without the length. So
the count includes prompts and special tokens, and holds for every kind of model. Of more than :data:`READ_TEXTS` texts,
a sample is read. The interval of the share is then Wilson's, with a level of 95 %.
"""

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding

from baselines.core.passages import CachedPassages, Rows
from baselines.core.run_costs import CUT_KEY
from baselines.measure.significance import wilson
from baselines.retrieve.model_prompts import prompt_of
from builders.core.exit_codes import raise_if_stopped

READ_TEXTS = 2_000
_TEXTS_AT_ONCE = 64
_SEED = 0  # of the sample
_NO_LIMIT = 10**9  # tokens
_DIGITS = 6
_WITHOUT_TRUNCATION = {"text": {"truncation": False, "max_length": None}}


@dataclass(frozen=True)
class CutTexts:
    """The number of cut texts among the texts that were read.

    Attributes:
        cut: number of cut texts.
        read: number of texts that were read.
        texts: number of all texts.
    """

    cut: int
    read: int
    texts: int

    @property
    def share(self) -> float:
        return self.cut / self.read

    def interval(self) -> tuple[float, float] | None:
        """Return the 95 % interval of the share, or None if all texts were read."""
        if self.read == self.texts:
            return None
        return wilson(self.cut, self.read)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for a manifest. ``interval`` is omitted if all texts were read."""
        content: dict[str, Any] = {
            "share": round(self.share, _DIGITS),
            "cut": self.cut,
            "read": self.read,
            "texts": self.texts,
        }
        interval = self.interval()
        if interval is not None:
            content["interval"] = [round(limit, _DIGITS) for limit in interval]
        return content


def cut_queries_and_passages(
    model: Any, query_texts: Sequence[str], passages: CachedPassages, passage_ids: Sequence[str] | None = None
) -> dict[str, CutTexts]:
    """Count the cut queries and passages of an encoder, at least one of each. The keys are queries and passages.

    ``passage_ids`` are the passages to count (None: all ``passages``).
    """

    def get_queries(numbers: Sequence[int]) -> list[str]:
        return [query_texts[number] for number in numbers]

    def get_passages(numbers: Sequence[int]) -> list[str]:
        if passage_ids is None:
            return passages.texts(numbers)
        return passages.texts(passages.rows([passage_ids[number] for number in numbers]).tolist())

    passage_count = len(passages) if passage_ids is None else len(passage_ids)
    return {
        "queries": cut_texts(model, len(query_texts), get_queries, "query"),
        "passages": cut_texts(model, passage_count, get_passages, "document"),
    }


def cut_pairs(model: Any, query_groups: Sequence[tuple[str, list[str]]], passages: CachedPassages) -> CutTexts:
    """Count the cut pairs of a cross-encoder, at least one. A group is the text of a query, and ids of passages."""
    pair_ids: list[tuple[str, str]] = []
    for query_text, passage_ids in query_groups:
        pair_ids += [(query_text, passage_id) for passage_id in passage_ids]

    def get_pairs(numbers: Sequence[int]) -> list[tuple[str, str]]:
        chosen_pairs = [pair_ids[number] for number in numbers]
        rows = passages.rows([passage_id for _, passage_id in chosen_pairs])
        query_texts = [query_text for query_text, _ in chosen_pairs]
        return list(zip(query_texts, passages.texts(rows.tolist()), strict=True))

    return cut_texts(model, len(pair_ids), get_pairs, task="")


def cut_json(cut: Mapping[str, CutTexts]) -> dict[str, Any]:
    """Return an entry for a run's manifest: {:data:`.run_costs.CUT_KEY`: JSON of ``cut``}, or {} if ``cut`` is empty.

    The keys of ``cut`` are kinds of texts: queries and passages, or pairs.
    """
    if not cut:
        return {}
    return {CUT_KEY: {kind: counts.to_json() for kind, counts in cut.items()}}


def cut_texts(model: Any, text_count: int, get_texts: Callable[[Sequence[int]], Sequence[Any]], task: str) -> CutTexts:
    """Count the texts that the length of a model of sentence-transformers cuts.

    Args:
        model: an encoder or a cross-encoder.
        text_count: number of all texts, at least 1.
        get_texts: returns the texts, or (query, passage) pairs, of some numbers from 0, ascending.
        task: query or document, or "" for a cross-encoder.
    """
    numbers: Sequence[int] = range(text_count)
    if text_count > READ_TEXTS:
        numbers = sorted(random.Random(_SEED).sample(numbers, READ_TEXTS))
    cut_count = 0
    for start in range(0, len(numbers), _TEXTS_AT_ONCE):
        raise_if_stopped()
        texts = list(get_texts(numbers[start : start + _TEXTS_AT_ONCE]))
        token_counts = count_tokens(model, texts, task)
        with _without_limits(model):
            all_token_counts = count_tokens(model, texts, task, processing_kwargs=_WITHOUT_TRUNCATION)
        cut_count += int((all_token_counts > token_counts).sum())
    return CutTexts(cut_count, len(numbers), text_count)


def count_tokens(model: Any, texts: list[Any], task: str, **options: Any) -> Rows:
    """Return the number of tokens of each text, as the model reads it. ``options`` are arguments of ``preprocess``."""
    if not isinstance(model, CrossEncoder):
        options["task"] = task
    features = model.preprocess(texts, prompt=prompt_of(model, task), **options)
    if "attention_mask" in features:
        counts: Rows = torch.as_tensor(features["attention_mask"]).sum(dim=1).numpy()
        return counts
    # Static embeddings: the tokens of all texts in one row, and the first token of each text.
    return np.diff([*torch.as_tensor(features["offsets"]).tolist(), features["input_ids"].shape[-1]])


@contextlib.contextmanager
def _without_limits(model: Any) -> Iterator[None]:
    """Lift the lengths that ``processing_kwargs`` do not reach, and the warnings of tokenizers about long texts."""
    with contextlib.ExitStack() as restoring:
        for module in model.modules():
            tokenizer: Any = getattr(module, "tokenizer", None)
            if isinstance(module, StaticEmbedding):
                truncation = module.tokenizer.truncation
                if truncation is not None:
                    module.tokenizer.no_truncation()
                    restoring.callback(module.tokenizer.enable_truncation, **truncation)
            elif isinstance(module, SparseStaticEmbedding) or hasattr(tokenizer, "model_max_length"):
                restoring.callback(setattr, tokenizer, "model_max_length", tokenizer.model_max_length)
                tokenizer.model_max_length = _NO_LIMIT
        yield
