"""Kinds of model behind one interface: retrievers (:mod:`.index`) and re-rankers (:mod:`.rerankers`).

A retriever makes an index of a release's passages, kept in a folder, and searches it; a re-ranker scores pairs of a
query and a passage.

  settings = ModelSettings("BAAI/bge-small-zh-v1.5", query_prompt="...")
  retriever = open_retriever(settings, Work(("cpu",), "fp32"))
  index = retriever.index(release, "corpus", folder)
  for hits in retriever.search(release, "corpus", index, ["a question", "another"], top_k=50): ...
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from baselines.retrieve.settings import ModelSettings
from builders.core.errors import InputError

if TYPE_CHECKING:  # the options of `rerank` need the names alone, not the model libraries
    from baselines.retrieve.devices import Work
    from baselines.retrieve.index import Retriever

# By the name that `--kind` takes: the module and its class. Without `--kind`, a model's own files decide.
RETRIEVERS = {
    "dense": ("dense", "Dense"),
    "static": ("dense", "Static"),
    "sparse": ("sparse", "Sparse"),
    "multi-vector": ("multi_vector", "MultiVector"),
}
RERANKERS = ("cross", "llm", "listwise")


def open_retriever(settings: ModelSettings, work: Work, kind: str = "") -> Retriever:
    """The retriever of a model: of ``kind``, else of the kind of its own files. Raises :class:`InputError`."""
    from baselines.retrieve.hub_models import commit_of
    from baselines.retrieve.models import kind_of_model

    kind = kind or kind_of_model(settings)
    if kind not in RETRIEVERS:
        raise InputError(f"is a model of kind {kind}; expected {', '.join(RETRIEVERS)}", path=settings.name)
    at_commit = settings.but(revision=commit_of(settings.name, settings.revision))
    module, name = RETRIEVERS[kind]
    found: Retriever = getattr(importlib.import_module(f"baselines.retrieve.{module}"), name)(at_commit, work)
    return found
