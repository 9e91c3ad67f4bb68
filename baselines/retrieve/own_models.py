"""Call a user's own encoder or re-ranker, and check what it returns. This module does not import PyTorch."""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from builders.core.errors import Unfinished, UsageError
from builders.core.shares import report_share

Numbers = npt.NDArray[Any]  # real numbers in at most 64 bits
_LARGEST_NUMBER_BYTES = 8
_LARGEST_EXACT_INTEGER = 2**53  # larger integers are rounded by a float
ENCODER_EXPECTED = (
    "expected a function of a list of texts, an object with encode, or an object with encode_query and encode_document"
)
RERANKER_EXPECTED = "expected a function of a list of (query, passage), or an object with predict"


class WrongOutput(Unfinished):
    """The wrong output of a user's model. Vectors of earlier calls are kept, so that a mended model goes on."""


@dataclass(frozen=True)
class OwnModel:
    """A method or function of a user's model.

    Attributes:
        name: the model's name for errors.
        function: takes a list of texts or pairs, and returns an array.
        batch_size: texts or pairs per call.
    """

    name: str
    function: Callable[[list[Any]], Any]
    batch_size: int

    def vectors(self, texts: Sequence[str], dimensions: int | None = None) -> Numbers:
        """Return a copy of the model's vectors in 64 bits, shape (texts, dimensions).

        Raises :class:`WrongOutput` if the model returns other vectors than ``dimensions`` finite numbers per text.
        """
        parts: list[Numbers] = []
        for start in range(0, len(texts), self.batch_size):
            batch = list(texts[start : start + self.batch_size])
            expected = f"an array of shape ({len(batch)}, dimensions)"
            count = len(batch)  # before the call, because a function may empty the list
            rows = self._numbers(self.function(batch), expected)
            if rows.ndim != 2 or len(rows) != count or rows.shape[1] == 0:
                raise self._wrong(expected, describe(rows))
            dimensions = dimensions or rows.shape[1]
            if rows.shape[1] != dimensions:
                raise self._wrong(f"{dimensions} dimensions, as in earlier calls", f"{rows.shape[1]} dimensions")
            parts.append(rows.astype(np.float64))  # a copy, because a model may return the same buffer at each call
            report_share((start + count) / len(texts))
        return np.concatenate(parts) if parts else np.empty((0, dimensions or 0))

    def scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the score of every pair. Raises :class:`WrongOutput` for another output than finite numbers."""
        scores: list[float] = []  # Python's numbers, because NumPy would round integers of different types
        for start in range(0, len(pairs), self.batch_size):
            batch = list(pairs[start : start + self.batch_size])
            count = len(batch)
            batch_scores = self._numbers(self.function(batch), f"an array of shape ({count},)")
            if batch_scores.ndim == 2 and batch_scores.shape[1] == 1:
                batch_scores = batch_scores[:, 0]
            if batch_scores.shape != (count,):
                raise self._wrong(f"an array of shape ({count},)", describe(batch_scores))
            scores += batch_scores.tolist()
            report_share((start + count) / len(pairs))
        return _as_floats(scores)

    def _numbers(self, returned: Any, expected: str) -> Numbers:
        """Return real, finite numbers. Raises :class:`WrongOutput`."""
        if inspect.isawaitable(returned):
            if inspect.iscoroutine(returned):
                returned.close()
            raise self._wrong(expected, "a coroutine; pass a function that is not async")
        try:
            array = to_array(returned)
        except (TypeError, ValueError, RuntimeError, AttributeError):
            array = None
        if array is None or array.dtype.kind not in "biuf":
            raise self._wrong(expected, describe(returned if array is None else array))
        if not np.isfinite(array).all():
            raise self._wrong("finite numbers", "NaN or infinity")
        if array.dtype.itemsize <= _LARGEST_NUMBER_BYTES:
            return array
        with np.errstate(over="ignore", under="ignore"):
            narrow = array.astype(np.float64)
        if not np.isfinite(narrow).all() or ((narrow == 0) & (array != 0)).any():
            raise self._wrong("numbers that 64 bits can hold", "larger or smaller numbers")
        return narrow

    def _wrong(self, expected: str, returned: str) -> WrongOutput:
        return WrongOutput(f"{self.name}: expected {expected}, found {returned}")


def open_own_encoder(model: object, task: str, batch_size: int) -> OwnModel:
    """Return the function of a user's encoder for a task (query or document).

    Raises :class:`UsageError` if the object is no encoder.
    """
    name = name_of(model)
    expect_instance(model, ENCODER_EXPECTED)
    sides = [callable(getattr(model, side, None)) for side in ("encode_query", "encode_document")]
    has_encode = callable(getattr(model, "encode", None))
    if callable(getattr(model, f"encode_{task}", None)) and (has_encode or all(sides)):
        return OwnModel(name, getattr(model, f"encode_{task}"), batch_size)
    if has_encode:
        return OwnModel(name, model.encode, batch_size)  # type: ignore[attr-defined]
    if callable(getattr(model, "predict", None)):
        raise UsageError(f"model: {name} scores pairs; name the run to re-rank by run=RUN")
    if callable(model) and not any(sides):
        return OwnModel(name, model, batch_size)
    raise UsageError(f"model: {ENCODER_EXPECTED}, found {name}")


def open_own_reranker(model: object, batch_size: int) -> OwnModel:
    """Return the function of a user's re-ranker. Raises :class:`UsageError` if the object is no re-ranker."""
    expect_instance(model, RERANKER_EXPECTED)
    predict = getattr(model, "predict", None)
    if callable(predict):
        return OwnModel(name_of(model), predict, batch_size)
    if callable(model):
        return OwnModel(name_of(model), model, batch_size)
    raise UsageError(f"model: {RERANKER_EXPECTED}, found {name_of(model)}")


def is_encoder(model: object) -> bool:
    """True for an object that encodes texts, also if it could score pairs by calling it."""
    has_methods = any(callable(getattr(model, name, None)) for name in ("encode", "encode_query"))
    return has_methods and not callable(getattr(model, "predict", None))


def expect_instance(model: object, expected: str) -> None:
    """Raise :class:`UsageError` for a class in place of its instance."""
    if inspect.isclass(model):
        raise UsageError(f"model: {expected}, found the class {model.__name__}; pass an instance")


def name_of(model: object) -> str:
    """Return the name of a function, or of an object's class."""
    name = getattr(model, "__name__", None)
    return name if isinstance(name, str) else type(model).__name__


def to_array(returned: Any) -> Numbers | None:
    """Return a model's output as an array of NumPy, or None for an object that holds no array."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(returned, torch.Tensor):
        tensor = returned.detach().cpu().to_dense()
        # NumPy has no bfloat16. Integers stay, because floats would round large ones.
        array: Numbers = (tensor.double() if tensor.is_floating_point() else tensor.resolve_conj()).numpy()
        return array
    if hasattr(returned, "toarray"):  # a sparse matrix of SciPy
        return np.asarray(returned.toarray())
    if isinstance(returned, np.ma.MaskedArray):
        return None if np.ma.is_masked(returned) else np.asarray(returned.data)
    if isinstance(returned, list | tuple):
        rows = [to_array(row) if hasattr(row, "__len__") and not isinstance(row, str) else row for row in returned]
        return None if any(row is None for row in rows) else np.array(rows)
    # The array interfaces of other libraries. Without them, NumPy would wrap any object in an array of one object.
    if hasattr(returned, "__array__") or hasattr(returned, "__array_interface__") or isinstance(returned, memoryview):
        return np.asarray(returned)
    return None


def describe(returned: Any) -> str:
    """Describe a model's output for an error."""
    if isinstance(returned, np.ma.MaskedArray):
        return "a masked array"
    if isinstance(returned, np.ndarray):
        kind = "" if returned.dtype.kind in "biuf" else f" and dtype {returned.dtype}"
        return f"an array of shape {returned.shape}{kind}"
    if isinstance(returned, list | tuple):
        return f"a {type(returned).__name__} of {len(returned)} values that are no rows of numbers of one width"
    return "None" if returned is None else f"a value of type {type(returned).__name__}"


def _as_floats(scores: list[float]) -> list[float]:
    """Return scores as floats. Integers that floats would round are given relative to the highest integer."""
    are_integers = all(isinstance(score, int) for score in scores)
    if are_integers and max(map(abs, scores), default=0) > _LARGEST_EXACT_INTEGER:
        highest = max(scores)
        return [float(score - highest) for score in scores]
    return [float(score) for score in scores]


def similarity_of(model: object) -> str:
    """Return the similarity that a model of sentence-transformers names, or cosine."""
    similarity = getattr(model, "similarity_fn_name", None)
    return similarity if similarity in ("cosine", "dot") else "cosine"
