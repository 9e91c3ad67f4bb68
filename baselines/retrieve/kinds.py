"""Kinds of model behind one interface, a file each.

A retriever makes an index of a release's passages, kept in a folder, and searches it; a re-ranker scores pairs of a
query and a passage.

  settings = ModelSettings("BAAI/bge-small-zh-v1.5", query_prompt="...")
  retriever = open_retriever(settings, Work(["cpu"], "fp32"))
  retriever.index(release, "corpus", folder)
  for hits in retriever.search(release, "corpus", folder, ["a question", "another"], top_k=50): ...
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from baselines.retrieve.settings import ModelSettings
from builders.common.command import InputError
from builders.store.reader import Release
from builders.store.runs import Hit

if TYPE_CHECKING:  # the options of `rerank` need the names alone, not the model libraries
    from baselines.retrieve.devices import Work

# By the name that `--kind` takes: the module and its class. Without `--kind`, a model's own files decide.
RETRIEVERS = {
    "dense": ("dense", "Dense"),
    "static": ("dense", "Static"),
    "sparse": ("sparse", "Sparse"),
    "multi-vector": ("multi_vector", "MultiVector"),
}
RERANKERS = {
    "cross": ("cross", "Cross"),
    "llm": ("cross", "LanguageModel"),
    "listwise": ("listwise", "Listwise"),
}


class Retriever(Protocol):
    """Finds the best passages of queries."""

    def about(self) -> dict[str, Any]:
        """Everything that decides the results, as JSON values: the model's name, fingerprint, precision, settings.

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
        """Everything that decides the scores, as JSON values. Opens the model, unless it is behind an endpoint."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """A finite score of every (query, passage), in the pairs' order; to be compared within a query.

        The pairs of a query come one after the other, in the order that is re-ranked.
        """


def open_retriever(settings: ModelSettings, work: Work, kind: str = "") -> Retriever:
    """The retriever of a model: of ``kind``, else of the kind of its own files. Raises :class:`InputError`."""
    from baselines.retrieve.detect_kind import kind_of_model

    kind = kind or kind_of_model(settings)
    if kind not in RETRIEVERS:
        raise InputError(f"is a model of kind {kind}; expected {', '.join(RETRIEVERS)}", path=settings.name)
    found: Retriever = _class_of(*RETRIEVERS[kind])(settings, work)
    return found


def open_reranker(settings: ModelSettings, work: Work, kind: str = "") -> Reranker:
    """The re-ranker of a model: of ``kind``, else of the kind of its own files. Raises :class:`InputError`."""
    from baselines.retrieve.detect_kind import kind_of_reranker

    found: Reranker = _class_of(*RERANKERS[kind or kind_of_reranker(settings)])(settings, work)
    return found


def _class_of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"baselines.retrieve.{module}"), name)
