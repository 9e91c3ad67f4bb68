"""Kinds of model, a file each, behind one interface.

A retriever makes an index of a release's passages, kept in a folder, and searches it; a re-ranker scores pairs of a
query and a passage. What a kind's module has: ``open_kind(settings, work)``, which gives a :class:`Retriever` or a
:class:`Reranker`.

  settings = ModelSettings("BAAI/bge-small-zh-v1.5", query_prompt="...")
  retriever = open_retriever(settings, Work(["cpu"], "fp32"))
  retriever.index(release, "corpus", folder)
  for hits in retriever.search(release, "corpus", folder, ["a question", "another"], top_k=50): ...
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from baselines.models.settings import ModelSettings
from builders.core.errors import InputError
from builders.store.reader import Release
from builders.store.runs import Hit

# By the name that `--kind` takes; what a model is, its own files say (:mod:`.told`).
RETRIEVERS = {
    "dense": "baselines.kinds.dense",
    "static": "baselines.kinds.static",
    "sparse": "baselines.kinds.sparse",
    "multi-vector": "baselines.kinds.multi_vector",
}
RERANKERS = {
    "cross": "baselines.kinds.cross",
    "llm": "baselines.kinds.llm",
    "listwise": "baselines.kinds.listwise",
}


@dataclass(frozen=True)
class Work:
    """What computes, and how much at a time: changes no result beyond its last digits.

    Attributes:
        devices: as :func:`baselines.models.devices.devices_of` gives them: a process each.
        dtype: fp32, fp16 or bf16 (:func:`baselines.models.devices.dtype_of`).
        batch_tokens: of a batch, padding included; None: as the device takes it.
        tokenizers: processes a device; None: as the device wants them.
        parallel: questions at a time to a model behind an endpoint.
    """

    devices: Sequence[str]
    dtype: str
    batch_tokens: int | None = None
    tokenizers: int | None = None
    parallel: int = 4


class Retriever(Protocol):
    """Finds the best passages of queries."""

    def about(self) -> dict[str, Any]:
        """What decides the results, as JSON values: name and fingerprint of the model, precision, what else was said.

        Opens the model.
        """

    def index(self, release: Release, config: str, folder: Path) -> None:
        """Have the index of the passages of a corpus config in ``folder``.

        An index from the same release, model and settings is left as it is; killed, the work goes on where it was.
        :class:`InputError` where ``folder`` is something else.
        """

    def search(
        self, release: Release, config: str, folder: Path, queries: Sequence[str], top_k: int
    ) -> Iterator[list[Hit]]:
        """The ``top_k`` best passages of each query, in the queries' order: scores falling, ties by corpus id.

        Args:
            release, config, folder: as of :meth:`index`, which has been called.
            queries: texts, without any prompt.
            top_k: passages a query; fewer, where fewer are found.
        """


class Reranker(Protocol):
    """Scores pairs: the higher, the better the passage answers the query."""

    def about(self) -> dict[str, Any]:
        """What decides the scores, as JSON values. Opens the model, or asks nobody where it is another's."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """A finite score of every (query, passage), in the pairs' order; to be compared within a query.

        The pairs of a query come one after the other, in the order that is re-ranked.
        """


def open_retriever(settings: ModelSettings, work: Work, kind: str = "") -> Retriever:
    """The retriever of a model: of the kind that its own files say, or of ``kind``. Raises :class:`InputError`."""
    if not kind:
        from baselines.kinds.told import kind_told

        kind = kind_told(settings)
    if kind not in RETRIEVERS:
        raise InputError(f"is a model of kind {kind}; expected {', '.join(RETRIEVERS)}", path=settings.name)
    found: Retriever = importlib.import_module(RETRIEVERS[kind]).open_kind(settings, work)
    return found


def open_reranker(settings: ModelSettings, work: Work, kind: str = "") -> Reranker:
    """The re-ranker of a model: of the kind that its own files say, or of ``kind``. Raises :class:`InputError`."""
    if not kind:
        from baselines.kinds.told import reranker_told

        kind = reranker_told(settings)
    found: Reranker = importlib.import_module(RERANKERS[kind]).open_kind(settings, work)
    return found
