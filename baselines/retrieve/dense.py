"""Dual-encoders of one vector a text (SentenceTransformer): embeddings as `encode` writes them, exact search.

Static embeddings (StaticEmbedding: a vector a token, looked up and averaged) are dual-encoders without a network.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from baselines.retrieve import exact_search
from baselines.retrieve.devices import dtype_of, moved
from baselines.retrieve.encoder import Encoder, Floats, Halves
from baselines.retrieve.exact_search import FaissEngine, TorchEngine
from baselines.retrieve.index import ROWS_ON_GPU, Arrays, Index, Retriever
from baselines.retrieve.models import fingerprint, open_encoder
from baselines.retrieve.passages import Passages, Rows
from baselines.retrieve.settings import ModelSettings
from builders.core.errors import InputError, log


def nearest(
    vectors: Index, queries: Halves, passages: Passages, devices: Sequence[str], top_k: int, engine: str = ""
) -> Iterator[tuple[Rows, Floats]]:
    """(rows, scores) of the ``top_k`` best of each query by inner product, exactly, and of all that tie with the last.

    Args:
        vectors: the passages' embeddings, or some of them.
        queries: embeddings, shape (queries, dimensions).
        passages: the collection that the rows of ``vectors`` are of.
        devices: that search a block of passages each.
        top_k: passages a query.
        engine: ``torch`` or ``faiss``; empty: FAISS on a CPU that has it.
    """
    count, chosen = 2 * top_k, vectors.chosen
    faiss = devices[0] == "cpu" and importlib.util.find_spec("faiss") is not None
    kind = FaissEngine if (engine or ("faiss" if faiss else "torch")) == "faiss" else TorchEngine
    engines = [kind(queries, count, device) for device in devices]

    def ranks() -> Rows:
        return passages.ranks() if chosen is None else passages.ranks()[chosen]

    for rows, scores in exact_search.search(vectors, queries, engines, top_k, count, ranks):
        yield rows if chosen is None else chosen[rows], scores


def encoding_model(name: str, vectors: Index, device: str, dtype: str, revision: str = "") -> SentenceTransformer:
    """A dual-encoder for queries, of the given device and ``--dtype``.

    Raises :class:`InputError` where it is not the model that encoded the passages ``vectors``.
    """
    wanted, precision = vectors.manifest["model"], dtype_of(dtype, device)
    # Cut and prompted as the passages were.
    given = {"max_length": wanted.get("max_length"), **(wanted.get("settings") or {})}
    model = open_encoder(ModelSettings(name, revision=revision, **given))
    expect_model(vectors, name, fingerprint(model), precision)
    found: SentenceTransformer = moved(model, device, precision)
    return found


def expect_model(vectors: Index, path: Path | str, queries_by: str, precision: str) -> None:
    """Refuse queries, or a model for them, of another fingerprint than the passages'; warn of another precision."""
    wanted = vectors.manifest["model"]
    if queries_by != wanted["fingerprint"]:
        problem = f"is not the model that encoded {vectors.path} ({wanted['name']!r}): weights or settings differ"
        raise InputError(problem, path=path)
    if vectors.precision != precision:
        message = "%s: the passages were encoded in %s, the queries in %s"
        log.warning(message, vectors.path, vectors.precision, precision)


class Dense(Retriever):
    """A dual-encoder. The folder is one of `encode`, which `search` takes as well."""

    kind, side = "dense", Encoder

    def open_model(self) -> SentenceTransformer:
        return open_encoder(self.settings)

    def size(self, model: SentenceTransformer) -> dict[str, Any]:
        return {"dim": model.get_embedding_dimension()}

    def arrays(self, found: Halves) -> Arrays:
        return {"": found}

    def found(
        self, index: Index, passages: Passages, queries: Sequence[str], top_k: int
    ) -> Iterator[tuple[Rows, Floats]]:
        asked = self.encoder(self.work.devices[0], "query").encode(queries)
        return nearest(index, asked, passages, self.work.devices, top_k)


class Static(Dense):
    """Static embeddings: nothing is padded or waits for a device, so batches and files are large on a CPU, too."""

    kind = "static"

    @property
    def batch_tokens(self) -> int:
        return max(self.work.batch_tokens, 1 << 20)

    @property
    def chunk_rows(self) -> int:
        return ROWS_ON_GPU
