"""Types of the models and search engines that a call from Python passes.

:mod:`baselines.retrieve.own_models` checks models, and :mod:`baselines.retrieve.searchers` checks search engines.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable


@runtime_checkable
class Encoder(Protocol):
    """A model with one vector per text."""

    def encode(self, texts: list[str]) -> Any:
        """Return an array of finite numbers, shape (texts, dimensions): of NumPy, PyTorch or SciPy, or nested lists."""


@runtime_checkable
class QueryPassageEncoder(Protocol):
    """A model that encodes queries and passages differently. Both arrays have the same number of dimensions."""

    def encode_query(self, texts: list[str]) -> Any:
        """Return an array for queries, as :meth:`Encoder.encode` does."""

    def encode_document(self, texts: list[str]) -> Any:
        """Return an array for passages, as :meth:`Encoder.encode` does."""


@runtime_checkable
class Reranker(Protocol):
    """A model that scores (query, passage) pairs."""

    def predict(self, pairs: list[tuple[str, str]]) -> Any:
        """Return an array of finite numbers, shape (pairs,). The highest score is the best."""


@runtime_checkable
class Searcher(Protocol):
    """A search engine that has indexed the passages of a release by their ids."""

    def search(self, queries: list[str], top_k: int) -> Sequence[Sequence[tuple[str, float]]]:
        """Return at most ``top_k`` hits (passage id, score) for each query, best first. Scores never rise."""


# A function in place of an object.
EncodeFunction: TypeAlias = Callable[[list[str]], Any]
ScoreFunction: TypeAlias = Callable[[list[tuple[str, str]]], Any]
# A function of one query and top_k, which ``baselines.make_searcher`` turns into a searcher.
SearchFunction: TypeAlias = Callable[[str, int], Sequence[tuple[str, float]]]
OwnEncoder: TypeAlias = Encoder | QueryPassageEncoder | EncodeFunction
OwnReranker: TypeAlias = Reranker | ScoreFunction
