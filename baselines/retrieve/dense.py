"""Dual-encoders with one vector per text (SentenceTransformer), searched exactly by inner product.

Static embeddings (StaticEmbedding) are dual-encoders without a neural network: a text's vector is the mean of its
tokens' vectors.

The search itself is in :mod:`.exact_search`: engines propose candidates, and 64-bit scores decide.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from baselines.core.passages import CachedPassages, Rows
from baselines.core.settings import ModelSettings
from baselines.retrieve.devices import dtype_of, move_model
from baselines.retrieve.encoder import Halves, TextEncoder
from baselines.retrieve.exact_search import exact_scores, nearest_with_ties
from baselines.retrieve.index_files import VectorIndex
from baselines.retrieve.model_kinds import expect_encoder
from baselines.retrieve.model_prompts import set_prompts
from baselines.retrieve.models import model_fingerprint, open_encoder
from baselines.retrieve.reading_checks import check_reading, check_room_for_texts
from baselines.retrieve.vector_index import ROWS_ON_GPU, Arrays, Retriever, Scores
from builders.core.errors import InputError, log

_STATIC_BATCH_TOKENS = 1 << 20  # smallest number of tokens per batch of static embeddings


def encoding_model(
    model_name: str, passage_vectors: VectorIndex, device: str, dtype_option: str, revision: str = ""
) -> SentenceTransformer:
    """Open a dual-encoder on a device to encode queries, in the precision that ``--dtype`` selects.

    The settings are those with which the passages were encoded. Raises :class:`InputError` if another model encoded the
    passages in ``passage_vectors``.
    """
    precision = dtype_of(dtype_option, device)
    passage_model = passage_vectors.manifest["model"]
    if "answered_by" in passage_model:
        advice = "encode the queries by `encode --queries --endpoint URL`, and name their directory by --queries"
        raise InputError(f"was encoded behind an endpoint; {advice}", path=passage_vectors.path)
    # The queries get the settings of the passages.
    passage_settings = {"max_length": passage_model.get("max_length")}
    passage_settings.update(passage_model.get("settings") or {})
    settings = ModelSettings(model_name, revision=revision, **passage_settings)
    expect_encoder(settings)
    model = open_encoder(settings)
    expect_model(passage_vectors, model_name, model_fingerprint(model), precision)
    return move_model(model, device, precision)


def expect_model(
    passage_vectors: VectorIndex, query_path: Path | str, query_fingerprint: str, query_precision: str
) -> None:
    """Raise :class:`InputError` if the passages' model has another fingerprint. Warn if the precisions differ.

    Args:
        passage_vectors: embeddings of the passages.
        query_path: the queries' model, or the directory of the queries' embeddings, for the error.
        query_fingerprint: fingerprint of the model that encodes the queries.
        query_precision: precision of the model that encodes the queries.
    """
    passage_model = passage_vectors.manifest["model"]
    if query_fingerprint != passage_model["fingerprint"]:
        raise InputError(
            f"is not the model that encoded {passage_vectors.path} ({passage_model['name']!r}): "
            "weights or settings differ",
            path=query_path,
        )
    if passage_vectors.precision != query_precision:
        log.warning(
            "%s: passages are encoded in %s, queries in %s",
            passage_vectors.path,
            passage_vectors.precision,
            query_precision,
        )


class DenseRetriever(Retriever):
    """A dual-encoder. The index is a directory of embeddings, the format that `encode` writes and `search` reads."""

    kind = "dense"
    side = TextEncoder

    def open_model(self) -> SentenceTransformer:
        return open_encoder(self.settings)

    def size(self, model: SentenceTransformer) -> dict[str, Any]:
        return {"dim": model.get_embedding_dimension()}

    def arrays(self, encodings: Halves) -> Arrays:
        return {"": encodings}

    def pair_scores(self, index: VectorIndex, query_encodings: Halves, rows: Rows) -> Scores:
        return exact_scores(query_encodings, index, rows)

    def search_encodings(
        self, index: VectorIndex, passages: CachedPassages, query_encodings: Halves, query_count: int, top_k: int
    ) -> Iterator[tuple[Rows, Scores]]:
        return nearest_with_ties(index, query_encodings, passages, self.work.devices, top_k)


class StaticRetriever(DenseRetriever):
    """Static embeddings. They need no padding and few computations, so batches and chunks are large even on a CPU."""

    kind = "static"

    @property
    def batch_tokens(self) -> int:
        return max(self.work.batch_tokens, _STATIC_BATCH_TOKENS)

    @property
    def chunk_rows(self) -> int:
        return ROWS_ON_GPU


@dataclass(frozen=True, eq=False)
class OpenDense(DenseRetriever):
    """A SentenceTransformer that a call from Python passes. Scores equal those of the same model in a folder."""

    model: SentenceTransformer

    # ``eq=False`` alone would inherit the comparison by settings, which two different models may share.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def open_model(self) -> SentenceTransformer:
        model = copy.copy(self.model)  # the user's object keeps its prompts
        set_prompts(model, self.settings)
        model.similarity_fn_name = self.settings.similarity or model.similarity_fn_name
        check_room_for_texts(model, self.settings.name)
        check_reading(model, self.settings)
        return model.eval()

    def encoder(self, device: str, task: str) -> TextEncoder:
        """Return the encoder for a task (query or document). The user's model stays on its own device."""
        return TextEncoder(self.open_model(), task, self.batch_tokens)
