"""Call a user's own encoder or re-ranker, and check what it returns. This module does not import PyTorch."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from builders.core.errors import Unfinished, UsageError

Numbers = npt.NDArray[Any]  # real numbers in 64 bits
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
            rows = self._numbers(self.function(batch), f"an array of shape ({len(batch)}, dimensions)")
            if rows.ndim != 2 or len(rows) != len(batch) or rows.shape[1] == 0:
                raise self._wrong(f"an array of shape ({len(batch)}, dimensions)", describe(rows))
            dimensions = dimensions or rows.shape[1]
            if rows.shape[1] != dimensions:
                raise self._wrong(f"{dimensions} dimensions, as in earlier calls", f"{rows.shape[1]} dimensions")
            parts.append(rows.astype(np.float64))  # a copy, because a model may return the same buffer at each call
        return np.concatenate(parts) if parts else np.empty((0, dimensions or 0))

    def scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the score of every pair. Raises :class:`WrongOutput` for another output than finite numbers."""
        parts: list[Numbers] = []
        for start in range(0, len(pairs), self.batch_size):
            batch = list(pairs[start : start + self.batch_size])
            scores = self._numbers(self.function(batch), f"an array of shape ({len(batch)},)")
            if scores.ndim == 2 and scores.shape[1] == 1:
                scores = scores[:, 0]
            if scores.shape != (len(batch),):
                raise self._wrong(f"an array of shape ({len(batch)},)", describe(scores))
            parts.append(scores.copy())
        return _as_floats(np.concatenate(parts)) if parts else []

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
            raise self._wrong(expected, describe(returned))
        if not np.isfinite(array).all():
            raise self._wrong("finite numbers", "NaN or infinity")
        return array

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
    if hasattr(returned, "detach"):  # a tensor of PyTorch
        tensor = returned.detach().cpu()
        if tensor.is_sparse:
            tensor = tensor.to_dense()
        array: Numbers = (tensor if tensor.dtype.is_complex else tensor.double()).numpy()
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


def _as_floats(scores: Numbers) -> list[float]:
    """Return scores as floats. Integers that floats would round are given relative to the highest integer."""
    if scores.dtype.kind in "iu" and len(scores) and max(-int(scores.min()), int(scores.max())) > 2**53:
        highest = int(scores.max())
        return [float(int(score) - highest) for score in scores]
    return [float(score) for score in scores]
