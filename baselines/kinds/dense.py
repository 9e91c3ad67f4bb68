"""Dual-encoders of one vector a text (SentenceTransformer): embeddings kept as `encode` keeps them, exact search."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from baselines.encode import ROWS_ON_CPU, ROWS_ON_GPU
from baselines.encode.chunks import Job, check_input, encode
from baselines.kinds import Work
from baselines.models.devices import batch_tokens, tokenizers
from baselines.models.encoder import Encoder
from baselines.models.loading import commit_of, described, fingerprint, moved, open_encoder
from baselines.models.settings import ModelSettings
from baselines.models.used import used
from baselines.passages import open_passages
from baselines.search.retrieve import id_ranks, named
from baselines.vectors import scan
from baselines.vectors.embeddings import open_vectors
from baselines.vectors.engines import FaissEngine, TorchEngine
from builders.core.errors import InputError
from builders.store.reader import Release
from builders.store.runs import Hit


class Dense:
    """See :class:`baselines.kinds.Retriever`. The folder is one of `encode`, which `search` takes as well."""

    rows_on_cpu = ROWS_ON_CPU  # of a file
    batch_tokens: int | None = None  # where ``work`` says none; None: as the device takes it

    def __init__(self, settings: ModelSettings, work: Work) -> None:
        self._settings, self._work = replace(settings, revision=commit_of(settings.name, settings.revision)), work

    def about(self) -> dict[str, Any]:
        model = open_encoder(self._settings)
        about = described(self._settings, model, self._work.dtype)
        size = {"similarity": model.similarity_fn_name, "dim": model.get_embedding_dimension()}
        return {**about, **size, "used": used(model)}

    def index(self, release: Release, config: str, folder: Path) -> None:
        check_input(release.path, config, "corpus", folder)
        encode(self._job(release, config), folder, list(self._work.devices))

    def search(
        self, release: Release, config: str, folder: Path, queries: Sequence[str], top_k: int
    ) -> Iterator[list[Hit]]:
        vectors = open_vectors(folder)
        vectors.check("passages", release, config, "corpus")
        model = open_encoder(self._settings)
        told = vectors.manifest["model"]
        if told["fingerprint"] != fingerprint(model) or told.get("max_length") != self._settings.max_length:
            raise InputError("was encoded by another model, or by this one with other settings", path=folder)
        moved(model, self._work.devices[0], self._work.dtype)
        asked = Encoder(model, "query", self._work.batch_tokens).encode(queries)
        on_faiss = self._work.devices[0] == "cpu" and importlib.util.find_spec("faiss") is not None
        kind = FaissEngine if on_faiss else TorchEngine
        count = 2 * top_k
        found = scan.search(
            vectors,
            asked,
            [kind(asked, count, device) for device in self._work.devices],
            top_k,
            count,
            lambda: id_ranks(release, config),
        )
        yield from named(found, open_passages(release, config), top_k)

    def _job(self, release: Release, config: str) -> Job:
        devices = list(self._work.devices)
        return Job(
            release=release.path,
            config=config,
            split="corpus",
            settings=self._settings,
            dtype=self._work.dtype,
            batch_tokens=self._work.batch_tokens or self.batch_tokens or batch_tokens(devices[0]),
            tokenizers=tokenizers(devices) if self._work.tokenizers is None else self._work.tokenizers,
            chunk_rows=self.rows_on_cpu if devices[0] == "cpu" else ROWS_ON_GPU,
        )


def open_kind(settings: ModelSettings, work: Work) -> Dense:
    """A dual-encoder as a retriever."""
    return Dense(settings, work)
