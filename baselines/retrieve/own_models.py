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
_REAL_DTYPES = "biuf"  # kinds of NumPy's real dtypes: bool, signed and unsigned integer, float
_LARGEST_EXACT_INTEGER = 2**53  # larger integers are rounded by a float
ENCODER_EXPECTED = (
    "expected a function of a list of texts, an object with encode, or an object with encode_query and encode_document"
)
RERANKER_EXPECTED = "expected a function of a list of (query, passage), or an object with predict"

SEARCHER_EXPECTED = "expected an object with search(queries, top_k)"


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

        Raises :class:`WrongOutput` if the model returns other vectors than ``dimensions`` finite numbers per text
        (None: as many as for the first batch).
        """
        batch_vectors: list[Numbers] = []
        for start in range(0, len(texts), self.batch_size):
            batch = list(texts[start : start + self.batch_size])
            text_count = len(batch)  # before the call, because a function may empty the list
            expected = f"an array of shape ({text_count}, dimensions)"
            vectors = self._to_numbers(self.function(batch), expected)
            if vectors.ndim != 2 or len(vectors) != text_count or vectors.shape[1] == 0:
                raise self._wrong_output(expected, describe_output(vectors))
            dimensions = dimensions or vectors.shape[1]
            if vectors.shape[1] != dimensions:
                raise self._wrong_output(
                    f"{dimensions} dimensions, as in earlier calls", f"{vectors.shape[1]} dimensions"
                )
            # A copy, because a model may return the same buffer at each call.
            batch_vectors.append(vectors.astype(np.float64))
            report_share((start + text_count) / len(texts))
        if not batch_vectors:
            return np.empty((0, dimensions or 0))
        return np.concatenate(batch_vectors)

    def scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the score of every pair. Raises :class:`WrongOutput` for another output than finite numbers."""
        # Python's numbers, because NumPy would round integers of different types.
        scores: list[float] = []
        for start in range(0, len(pairs), self.batch_size):
            batch = list(pairs[start : start + self.batch_size])
            pair_count = len(batch)  # before the call, because a function may empty the list
            expected = f"an array of shape ({pair_count},)"
            batch_scores = self._to_numbers(self.function(batch), expected)
            # Many re-rankers return a column of scores.
            if batch_scores.ndim == 2 and batch_scores.shape[1] == 1:
                batch_scores = batch_scores[:, 0]
            if batch_scores.shape != (pair_count,):
                raise self._wrong_output(expected, describe_output(batch_scores))
            scores += batch_scores.tolist()
            report_share((start + pair_count) / len(pairs))
        return _to_floats(scores)

    def _to_numbers(self, model_output: Any, expected: str) -> Numbers:
        """Return a model's output as real, finite numbers of at most 64 bits.

        ``expected`` is the expected output, for the error. Raises :class:`WrongOutput` for another output.
        """
        if inspect.isawaitable(model_output):
            if inspect.iscoroutine(model_output):
                # Otherwise Python warns that the coroutine was never awaited.
                model_output.close()
            raise self._wrong_output(expected, "a coroutine; pass a function that is not async")
        try:
            numbers = to_array(model_output)
        except (TypeError, ValueError, RuntimeError, AttributeError):
            numbers = None
        if numbers is None:
            raise self._wrong_output(expected, describe_output(model_output))
        if numbers.dtype.kind not in _REAL_DTYPES:
            raise self._wrong_output(expected, describe_output(numbers))
        if not np.isfinite(numbers).all():
            raise self._wrong_output("finite numbers", "NaN or infinity")
        if numbers.dtype.itemsize <= _LARGEST_NUMBER_BYTES:
            return numbers
        # Numbers of 80 or 128 bits may overflow in 64 bits, or become 0.
        with np.errstate(over="ignore", under="ignore"):
            narrow_numbers = numbers.astype(np.float64)
        has_vanished = (narrow_numbers == 0) & (numbers != 0)
        if not np.isfinite(narrow_numbers).all() or has_vanished.any():
            raise self._wrong_output("numbers that 64 bits can hold", "larger or smaller numbers")
        return narrow_numbers

    def _wrong_output(self, expected: str, received: str) -> WrongOutput:
        return WrongOutput(f"{self.name}: expected {expected}, found {received}")


def open_own_encoder(model: object, task: str, batch_size: int) -> OwnModel:
    """Return the function of a user's encoder for a task (query or document).

    Raises :class:`UsageError` if the object is no encoder.
    """
    model_name = name_of(model)
    expect_instance(model, ENCODER_EXPECTED)
    has_encode = _has_method(model, "encode")
    has_encode_query = _has_method(model, "encode_query")
    has_encode_document = _has_method(model, "encode_document")
    # The task's own method comes first, but only if the model can also encode the other task.
    if _has_method(model, f"encode_{task}") and (has_encode or (has_encode_query and has_encode_document)):
        return OwnModel(model_name, getattr(model, f"encode_{task}"), batch_size)
    if has_encode:
        return OwnModel(model_name, model.encode, batch_size)  # type: ignore[attr-defined]
    if _has_method(model, "predict"):
        raise UsageError(f"model: {model_name} scores pairs; name the run to re-rank by run=RUN")
    if callable(model) and not (has_encode_query or has_encode_document):
        return OwnModel(model_name, model, batch_size)
    raise UsageError(f"model: {ENCODER_EXPECTED}, found {model_name}")


def _has_method(model: object, method_name: str) -> bool:
    return callable(getattr(model, method_name, None))


def open_own_reranker(model: object, batch_size: int) -> OwnModel:
    """Return the function of a user's re-ranker. Raises :class:`UsageError` if the object is no re-ranker."""
    expect_instance(model, RERANKER_EXPECTED)
    model_name = name_of(model)
    predict = getattr(model, "predict", None)
    if callable(predict):
        return OwnModel(model_name, predict, batch_size)
    if callable(model):
        return OwnModel(model_name, model, batch_size)
    raise UsageError(f"model: {RERANKER_EXPECTED}, found {model_name}")


def is_encoder(model: object) -> bool:
    """True for an object that encodes texts, even if it can be called, too. An object with ``predict`` scores pairs."""
    can_encode = _has_method(model, "encode") or _has_method(model, "encode_query")
    return can_encode and not _has_method(model, "predict")


def is_searcher(model: object) -> bool:
    """True for a search engine, an object with ``search``.

    Raises :class:`UsageError` for a class. Raises it also for an object with ``search`` and ``encode``, which could be
    measured as a search engine or as an encoder.
    """
    if not _has_method(model, "search"):
        return False
    expect_instance(model, SEARCHER_EXPECTED)
    for method_name in ("encode", "encode_query"):
        if _has_method(model, method_name):
            raise UsageError(
                f"model: {name_of(model)} has search and {method_name}; to measure its search, pass an object with "
                f"search alone, for example make_searcher(FUNCTION); to measure its vectors, pass the method "
                f"{method_name}"
            )
    return True


def expect_instance(model: object, expected: str) -> None:
    """Raise :class:`UsageError` for a class in place of its instance. ``expected`` is the object that was expected."""
    # A class has the methods of its instances, but calling these methods would fail later.
    if inspect.isclass(model):
        raise UsageError(f"model: {expected}, found the class {model.__name__}; pass an instance")


def name_of(model: object) -> str:
    """Return the name of a function, or of an object's class."""
    name = getattr(model, "__name__", None)
    return name if isinstance(name, str) else type(model).__name__


def to_array(model_output: Any) -> Numbers | None:
    """Return a model's output as an array of NumPy, or None for an object that holds no array."""
    # Only a process that has imported PyTorch can have a tensor.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model_output, torch.Tensor):
        return _tensor_to_array(model_output)
    if hasattr(model_output, "toarray"):  # a sparse matrix of SciPy
        return np.asarray(model_output.toarray())
    if isinstance(model_output, np.ma.MaskedArray):
        if np.ma.is_masked(model_output):
            return None
        return np.asarray(model_output.data)
    if isinstance(model_output, list | tuple):
        return _list_to_array(model_output)
    # The array interfaces of other libraries. Without them, NumPy would wrap any object in an array of one object.
    has_array_interface = hasattr(model_output, "__array__") or hasattr(model_output, "__array_interface__")
    if has_array_interface or isinstance(model_output, memoryview):
        return np.asarray(model_output)
    return None


def _tensor_to_array(tensor: Any) -> Numbers:
    """Return a tensor of PyTorch as an array. A tensor on a GPU or a sparse tensor is converted, too."""
    dense_tensor = tensor.detach().cpu().to_dense()
    if dense_tensor.is_floating_point():
        dense_tensor = dense_tensor.double()  # NumPy has no bfloat16
    # Integers keep their type, because floats would round large ones. numpy() refuses a lazily conjugated tensor.
    array: Numbers = dense_tensor.resolve_conj().numpy()
    return array


def _list_to_array(model_output: list[Any] | tuple[Any, ...]) -> Numbers | None:
    """Return a list of numbers or of arrays as one array, or None if one of its items holds no array."""
    rows = []
    for item in model_output:
        if hasattr(item, "__len__") and not isinstance(item, str):
            item = to_array(item)
        if item is None:
            return None
        rows.append(item)
    return np.array(rows)


def describe_output(model_output: Any) -> str:
    """Describe a model's output for an error."""
    if isinstance(model_output, np.ma.MaskedArray):
        return "a masked array"
    if isinstance(model_output, np.ndarray):
        if model_output.dtype.kind in _REAL_DTYPES:
            return f"an array of shape {model_output.shape}"
        return f"an array of shape {model_output.shape} and dtype {model_output.dtype}"
    type_name = type(model_output).__name__
    if isinstance(model_output, list | tuple):
        return f"a {type_name} of {len(model_output)} values that are not all rows of numbers of equal length"
    if model_output is None:
        return "None"
    return f"a value of type {type_name}"


def _to_floats(scores: list[float]) -> list[float]:
    """Return scores as floats. Integers that floats would round are given relative to the highest integer.

    For example, 2**60 and 2**60 + 1 are the same float. They become -1.0 and 0.0, in the same order.
    """
    are_integers = all(isinstance(score, int) for score in scores)
    if are_integers and max(map(abs, scores), default=0) > _LARGEST_EXACT_INTEGER:
        highest_score = max(scores)
        return [float(score - highest_score) for score in scores]
    return [float(score) for score in scores]


def similarity_of(model: object) -> str:
    """Return cosine or dot, whichever a model of sentence-transformers names. Other models have cosine."""
    similarity = getattr(model, "similarity_fn_name", None)
    return similarity if similarity in ("cosine", "dot") else "cosine"
