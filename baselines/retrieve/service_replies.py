"""Read the answers of services: vectors of OpenAI's `/v1/embeddings`, and scores of `/v1/rerank`.

Every answer must have one finite value for each text of its request, in the order of the field ``index``. This module
imports no model library.
"""

import base64
import binascii
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np

from baselines.retrieve.search_engines import Floats
from builders.core.errors import InputError, Unfinished
from builders.core.redaction import quote_reply
from builders.core.typed import describe_json_error, json_of

_QUOTED_CHARACTERS = 80  # of an answer that is no JSON
_TEXT_CHARACTERS = 40  # of a text in an error
_LONGEST_MODEL_NAME = 200
_FLOAT_BYTES = 4
_LARGEST_DIM = 65_536
T = TypeVar("T")


class _Usage(msgspec.Struct):
    total_tokens: int | None = None
    prompt_tokens: int | None = None


class _Vector(msgspec.Struct):
    index: int
    embedding: Any  # a list of numbers, or the base64 of 32-bit floats


class _Embeddings(msgspec.Struct):
    data: list[_Vector]
    model: str | None = None
    usage: _Usage | None = None


class _Score(msgspec.Struct):
    index: int
    relevance_score: Any = None
    score: Any = None  # the name of TEI


class _Scores(msgspec.Struct):
    results: list[_Score]
    model: str | None = None
    usage: _Usage | None = None


@dataclass(frozen=True)
class ServiceAnswer:
    """The values of an answer, as bytes in the order of the texts.

    Attributes:
        values: the vectors as 32-bit floats, or the scores as a 64-bit float.
        model: the model that the service names, or "".
        tokens: the tokens that the service counts, or None.
    """

    values: list[bytes]
    model: str
    tokens: int | None


def name_text(text: str) -> str:
    """Return the beginning of a text and its length, for an error."""
    return f"the text {text[:_TEXT_CHARACTERS]!r} ({len(text):,} characters)"


def read_vectors(content: bytes, texts: Sequence[str], url: str, dim: int | None = None) -> ServiceAnswer:
    """Return the vectors of an answer, in the texts' order.

    Args:
        content: the answer.
        texts: the texts of the request.
        url: the service's address, for errors.
        dim: the expected number of dimensions (default: that of the answer's first vector).

    Raises:
        InputError: the answer does not have one vector of ``dim`` finite numbers for each text.
    """
    answer = _decode(content, _Embeddings, url, "vectors; the address of OpenAI's API ends in /v1")
    values = []
    for text, entry in zip(texts, _in_order(answer.data, len(texts), "data", url), strict=True):
        vector = _vector_of(entry.embedding)
        if vector is None or vector.ndim != 1 or not 1 <= len(vector) <= _LARGEST_DIM:
            raise Unfinished(f"answered no vector of numbers for {name_text(text)}", path=url)
        dim = dim or len(vector)
        if len(vector) != dim:
            problem = f"answered {len(vector)} dimensions for {name_text(text)}; expected {dim}, as in its first answer"
            raise Unfinished(problem, path=url)
        if not np.isfinite(vector).all():
            raise Unfinished(f"answered NaN or infinity for {name_text(text)}", path=url)
        values.append(vector.tobytes())
    return ServiceAnswer(values, (answer.model or "")[:_LONGEST_MODEL_NAME], _tokens_of(answer.usage))


def read_scores(content: bytes, texts: Sequence[str], url: str) -> ServiceAnswer:
    """Return the scores of an answer, in the texts' order: of Jina's, Cohere's and vLLM's API, or of TEI's.

    Raises :class:`InputError` if the answer does not have one finite score for each text.
    """
    # TEI answers with the list alone.
    if content.lstrip()[:1] == b"[":
        content = b'{"results":' + content + b"}"
    answer = _decode(content, _Scores, url, "scores; the address of a re-ranker ends in /rerank")
    values = []
    for text, entry in zip(texts, _in_order(answer.results, len(texts), "results", url), strict=True):
        score = entry.score if entry.relevance_score is None else entry.relevance_score
        is_number = isinstance(score, int | float) and not isinstance(score, bool)
        if not is_number or not math.isfinite(score) or abs(score) > np.finfo(np.float32).max:
            raise Unfinished(f"answered no finite score for {name_text(text)}", path=url)
        values.append(np.float64(score).tobytes())
    return ServiceAnswer(values, (answer.model or "")[:_LONGEST_MODEL_NAME], _tokens_of(answer.usage))


def _decode(content: bytes, answer_type: type[T], url: str, expected: str) -> T:
    """Decode an answer. Raises :class:`InputError` for another answer than JSON of ``answer_type``.

    ``expected`` completes the error: the values that were expected, and a hint to the address.
    """
    if content.lstrip()[:1] == b"<":
        beginning = quote_reply(content[: 4 * _QUOTED_CHARACTERS].decode(errors="replace"), _QUOTED_CHARACTERS)
        raise Unfinished(f"answered with a page ({beginning}); expected JSON with {expected}", path=url)
    # This call only finds out if the content is JSON. Below, json_of decodes it again, and names a wrong field.
    try:
        msgspec.json.decode(content, type=answer_type)
    except msgspec.ValidationError:
        pass
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # Python's servers write NaN, which is no JSON. The check of the vectors then names the text.
        try:
            return msgspec.convert(json.loads(content), answer_type)
        except (ValueError, RecursionError, msgspec.ValidationError):
            problem = describe_json_error(content, str(error), is_line=False)
            raise Unfinished(f"{problem}; expected JSON with {expected}", path=url) from None
    try:
        return json_of(content, answer_type, url)
    except InputError as error:
        # A number of a line after an address would look like a port.
        problem = re.sub(rf"^{re.escape(url)}(:\d+)?: ", "", str(error))
        raise Unfinished(f"{problem}; expected {expected}", path=url) from None


def _in_order(entries: Sequence[Any], text_count: int, field: str, url: str) -> list[Any]:
    """Return the entries of an answer in the order of their index. ``field`` names them in errors.

    Raises :class:`InputError` unless each text has one entry.
    """
    by_index: dict[int, Any] = {}
    for entry in entries:
        if not 0 <= entry.index < text_count:
            raise Unfinished(f"{field} has the index {entry.index} for {text_count} texts", path=url)
        if entry.index in by_index:
            raise Unfinished(f"{field} has the index {entry.index} twice", path=url)
        by_index[entry.index] = entry
    if len(by_index) != text_count:
        lacking = next(index for index in range(text_count) if index not in by_index)
        problem = f"{field} has {len(by_index)} entries for {text_count} texts; the index {lacking} is missing"
        raise Unfinished(problem, path=url)
    return [by_index[index] for index in range(text_count)]


def _vector_of(embedding: Any) -> Floats | None:
    """Return a vector in 32 bits from a list of numbers or from base64, or None for another value."""
    if isinstance(embedding, str):
        try:
            content = base64.b64decode(embedding, validate=True)
        except (binascii.Error, ValueError):
            return None
        if len(content) % _FLOAT_BYTES:
            return None
        return np.frombuffer(content, "<f4").astype(np.float32)
    if not isinstance(embedding, list):
        return None
    # NumPy would read true and "1" as numbers.
    if not all(type(number) in (int, float) for number in embedding):
        return None
    with np.errstate(over="ignore"):
        try:
            return np.array(embedding, np.float64).astype(np.float32)
        except OverflowError:  # an integer that no float can hold; the caller refuses infinity
            return np.full(len(embedding), np.inf, np.float32)


def _tokens_of(usage: _Usage | None) -> int | None:
    """Return the tokens of a request, or None if the service does not say them. Some services answer -1."""
    if usage is None:
        return None
    tokens = usage.total_tokens if usage.total_tokens is not None else usage.prompt_tokens
    return None if tokens is None or tokens < 0 else tokens
