"""Dual-encoders of one vector a text (SentenceTransformer): embeddings as `encode` writes them, exact search.

Static embeddings (StaticEmbedding: a vector a token, looked up and averaged) are dual-encoders without a network.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from sentence_transformers import SentenceTransformer

from baselines.retrieve import embeddings, exact_search
from baselines.retrieve.devices import Work, dtype_of, moved
from baselines.retrieve.embeddings import Vectors, encode, open_vectors
from baselines.retrieve.encoder import Encoder, Halves
from baselines.retrieve.exact_search import FaissEngine, TorchEngine
from baselines.retrieve.index import ROWS_ON_GPU, Job, Retriever, check_input, job_of, named
from baselines.retrieve.models import fingerprint, open_encoder
from baselines.retrieve.passages import Passages, Rows, open_passages
from baselines.retrieve.settings import ModelSettings
from builders.core.errors import InputError, install, log
from builders.store.reader import Release
from builders.store.runs import Hit


def nearest(
    vectors: Vectors,
    queries: Halves,
    passages: Passages,
    ranks: Callable[[], Rows],
    devices: Sequence[str],
    top_k: int,
    engine: str = "",
) -> Iterator[list[Hit]]:
    """The ``top_k`` best passages of each query by inner product, exactly: scores falling, ties by corpus id.

    Args:
        vectors: the passages' embeddings, or some of them.
        queries: embeddings, shape (queries, dimensions).
        passages: the collection that the rows of ``vectors`` are of.
        ranks: gives :func:`id_ranks`; called only where very many passages tie.
        devices: that search a block of passages each.
        top_k: passages a query.
        engine: faiss, torch or empty (:func:`expect_engine`).
    """
    count, chosen = 2 * top_k, vectors.chosen
    kind = FaissEngine if expect_engine(engine, devices[0]) == "faiss" else TorchEngine
    engines = [kind(queries, count, device) for device in devices]

    def own_ranks() -> Rows:
        return ranks() if chosen is None else ranks()[chosen]

    found = exact_search.search(vectors, queries, engines, top_k, count, own_ranks)
    yield from named(((rows if chosen is None else chosen[rows], scores) for rows, scores in found), passages, top_k)


def expect_engine(wanted: str, device: str) -> str:
    """``torch`` or ``faiss``: the one that is wanted, else FAISS on a CPU that has it. Raises :class:`InputError`."""
    has_faiss = importlib.util.find_spec("faiss") is not None
    if wanted == "faiss" and not has_faiss:
        raise InputError(f"FAISS is not installed: {install('builders')}; or --engine torch")
    return wanted or ("faiss" if has_faiss and device == "cpu" else "torch")


def id_ranks(release: Release, config: str, split: str = "corpus") -> Rows:
    """Each passage's rank in the order of the corpus ids, shape (passages,)."""
    ids = release.table(config, split, ["_id"]).column("_id")
    ranks = np.empty(len(ids), np.int64)
    ranks[pc.sort_indices(ids).to_numpy()] = np.arange(len(ids))
    return ranks


def encoding_model(name: str, vectors: Vectors, device: str, dtype: str, revision: str = "") -> SentenceTransformer:
    """A dual-encoder for queries, of the given device and ``--dtype``.

    Raises :class:`InputError` where it is not the model that encoded the passages ``vectors``.
    """
    wanted = vectors.manifest["model"]
    # Cut and prompted as the passages were.
    given = {"max_length": wanted.get("max_length"), **(wanted.get("settings") or {})}
    model = open_encoder(ModelSettings(name, revision=revision, **given))
    if fingerprint(model) != wanted["fingerprint"]:
        raise InputError(
            f"is not the model that encoded {vectors.path} ({wanted['name']!r}): weights or settings differ",
            path=name,
        )
    precision = dtype_of(dtype, device)
    warn_of_precision(vectors, precision)
    found: SentenceTransformer = moved(model, device, precision)
    return found


def query_vectors(path: Path, vectors: Vectors, release: Release, config: str, split: str) -> Vectors:
    """The embeddings of a split's queries in a directory.

    Raises :class:`InputError` where they are others, or of another model than the passages' ``vectors``.
    """
    given, wanted = open_vectors(path), vectors.manifest["model"]
    given.check("queries", release, config, split)
    if given.dim != vectors.dim:
        raise InputError(f"has {given.dim} dimensions, {vectors.path} has {vectors.dim}", path=given.path)
    if given.manifest["model"]["fingerprint"] != wanted["fingerprint"]:
        raise InputError(
            f"was encoded by another model ({given.manifest['model']['name']!r}) than {vectors.path} "
            f"({wanted['name']!r})",
            path=given.path,
        )
    warn_of_precision(vectors, given.precision)
    return given


def warn_of_precision(vectors: Vectors, queries_in: str) -> None:
    """Warn where queries and passages were encoded in different precisions."""
    if vectors.precision != queries_in:
        log.warning(
            "%s: the passages were encoded in %s, the queries in %s", vectors.path, vectors.precision, queries_in
        )


class Dense(Retriever):
    """A dual-encoder. The folder is one of `encode`, which `search` takes as well."""

    def open_model(self) -> SentenceTransformer:
        return open_encoder(self.settings)

    def size(self, model: SentenceTransformer) -> dict[str, Any]:
        return {"dim": model.get_embedding_dimension()}

    def job(self, release: Release, config: str) -> Job:
        return job_of(embeddings.__name__, release, config, self.settings, self.work)

    def index(self, release: Release, config: str, folder: Path) -> None:
        check_input(Vectors, release, config, "corpus", folder)
        encode(self.job(release, config), folder, self.work.devices)

    def search(
        self, release: Release, config: str, folder: Path, queries: Sequence[str], top_k: int
    ) -> Iterator[list[Hit]]:
        vectors = open_vectors(folder)
        vectors.check("passages", release, config, "corpus")
        model, about, devices = self.open_model(), vectors.manifest["model"], self.work.devices
        if about["fingerprint"] != fingerprint(model) or about.get("max_length") != self.settings.max_length:
            raise InputError("was encoded by another model, or by this one with other settings", path=folder)
        asked = Encoder(moved(model, devices[0], self.work.dtype), "query", self.work.batch_tokens).encode(queries)
        passages = open_passages(release, config)
        yield from nearest(vectors, asked, passages, lambda: id_ranks(release, config), devices, top_k)


class Static(Dense):
    """Static embeddings: nothing is padded or waits for a device, so batches and files are large on a CPU, too."""

    def job(self, release: Release, config: str) -> Job:
        work = Work(self.work.devices, self.work.dtype, self.work.batch_tokens or 1 << 20, self.work.tokenizers)
        return job_of(embeddings.__name__, release, config, self.settings, work, chunk_rows=ROWS_ON_GPU)
