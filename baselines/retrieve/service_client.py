"""Ask a service for vectors of texts, or for scores of passages. This module does not import PyTorch.

Texts are sent in requests of limited size, several at a time. The answers of every request are kept at once
(:mod:`.answer_store`), so a stop loses at most the requests that are running. A request that the service refuses is
split until one text is left, which the error names. All answers must be from the same model, and vectors must have the
same number of dimensions.

Two short texts are sent first. Their answer has the model's name and the number of dimensions. Their vectors tell
models of one name apart: a service that has another model than before gets a store of its own.
"""

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from baselines.core.endpoint_options import EndpointOptions, input_type_field
from baselines.core.latency import Latency
from baselines.retrieve.answer_store import AnswerStore, StoredAnswer, batches_of, text_key
from baselines.retrieve.own_search import PROBE_TEXTS, widest_dimension
from baselines.retrieve.search_engines import Floats
from baselines.retrieve.service_replies import ServiceAnswer, name_text, read_scores, read_vectors
from builders.core.api_service import ApiService, RequestFailed
from builders.core.cache import writable_cache
from builders.core.errors import Unfinished, log
from builders.core.folders import key_of
from builders.core.reply_limits import in_daemon_threads
from builders.core.shares import report_share

_LARGEST_DIM = 8_192
_BYTES_PER_NUMBER = 26  # of a number in JSON
_REPLY_BYTES = 1 << 20  # of an answer besides its vectors
_SCORE_BYTES = 8
_NO_SUCH_FIELD = 422  # TEI's answer to a request without its field `texts`
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class ServiceText:
    """A text of a request: with its prompt, or a passage that is scored for ``query``."""

    text: str
    query: str = ""

    @property
    def key(self) -> bytes:
        return text_key(self.text, self.query)


class ServiceCosts:
    """The costs of the answers that a command has used, whenever they were requested. Thread-safe.

    Attributes:
        texts: number of distinct texts.
        kept_texts: number of those whose answer an earlier request had brought.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted_keys: set[bytes] = set()
        self.texts = 0
        self.kept_texts = 0
        self._requests = 0.0
        self._tokens: float | None = 0.0
        self._seconds_of_answers = 0.0
        self._own_request_seconds: list[float] = []

    def add_request(self, seconds: float) -> None:
        """Note the time of a successful request of this command, without earlier attempts."""
        with self._lock:
            self._own_request_seconds.append(seconds)

    def add(self, key: bytes, answer: StoredAnswer, *, is_kept: bool) -> None:
        """Count the answer of a text, but only once. ``is_kept``: an earlier request has brought the answer."""
        with self._lock:
            if key in self._counted_keys:
                return
            self._counted_keys.add(key)
            self.texts += 1
            self.kept_texts += is_kept
            self._requests += answer.requests
            self._seconds_of_answers += answer.seconds
            # The sum is unknown as soon as the service has not counted the tokens of a text.
            if self._tokens is not None:
                self._tokens = None if answer.tokens is None else self._tokens + answer.tokens

    def values(self) -> dict[str, Any]:
        """Return the costs as JSON values, for a manifest."""
        costs: dict[str, Any] = {
            "texts": self.texts,
            "kept_texts": self.kept_texts,
            "requests": round(self._requests),
            "tokens": None if self._tokens is None else round(self._tokens),
            "request_seconds": round(self._seconds_of_answers, 3),
        }
        # If every answer was kept, this command has only asked about the probe texts, which are not counted.
        if self._own_request_seconds:
            latency = Latency.of_seconds(self._own_request_seconds).to_json()
            latency["requests"] = latency.pop("queries")
            costs["request_latency"] = latency
        return costs


class ServiceAsker:
    """Ask a service about texts, in parallel, and keep the answers.

    Args:
        store: the kept answers.
        ask: a function that sends one request with some texts. Returns the answer, and its seconds.
        options: the size of requests, and the number of simultaneous requests.
        costs: counts the answers.
    """

    def __init__(
        self,
        store: AnswerStore,
        ask: Callable[[Sequence[ServiceText]], tuple[ServiceAnswer, float]],
        options: EndpointOptions,
        costs: ServiceCosts,
    ) -> None:
        self._store = store
        self._ask = ask
        self._options = options
        self._costs = costs

    def values(self, groups: Sequence[Sequence[ServiceText]]) -> list[bytes]:
        """Return the value of every text of all groups, in order. A request has texts of one group only.

        Raises :class:`InputError`.
        """
        texts = list(itertools.chain.from_iterable(groups))
        keys = [text.key for text in texts]
        answers = self._store.read(list(dict.fromkeys(keys)))
        for key, answer in answers.items():
            self._costs.add(key, answer, is_kept=True)
        tasks = self._make_tasks(groups, answers.keys())
        asked_count = sum(map(len, tasks))
        done_count = 0
        for task_number, new_answers in in_daemon_threads(self._answer_task, tasks, self._options.parallel):
            answers |= new_answers
            done_count += len(tasks[task_number])
            report_share(done_count / asked_count)
        report_share(1.0)
        return [answers[key].value for key in keys]

    def _make_tasks(self, groups: Sequence[Sequence[ServiceText]], kept_keys: Any) -> list[list[ServiceText]]:
        """Return the texts of each request. ``kept_keys`` are the keys of the texts whose answers are kept already.

        The requests are planned before kept texts are dropped, so a command that is started again sends the same
        requests as before. The vectors of some services depend on the other texts of a request in their last digits.
        """
        tasks = []
        planned_keys = set(kept_keys)
        for group in groups:
            plain_texts = [text.text for text in group]
            for batch in batches_of(
                plain_texts,
                most_texts=self._options.request_texts,
                most_characters=self._options.request_characters,
            ):
                task = []
                for number in batch:
                    if group[number].key not in planned_keys:
                        planned_keys.add(group[number].key)
                        task.append(group[number])
                if task:
                    tasks.append(task)
        return tasks

    def _answer_task(self, texts: Sequence[ServiceText]) -> dict[bytes, StoredAnswer]:
        """Request the answers for some texts, and keep the answers. A refused request is split."""
        try:
            answer, seconds = self._ask(texts)
        except RequestFailed as error:
            if not error.may_be_split:
                raise
            if len(texts) == 1:
                raise Unfinished(f"{error}; the request had {name_text(texts[0].text)}") from None
            log.info("%s; sending its %d texts in two requests", error, len(texts))
            middle = len(texts) // 2
            return self._answer_task(texts[:middle]) | self._answer_task(texts[middle:])
        self._costs.add_request(seconds)
        keys = [text.key for text in texts]
        self._store.write(keys, answer.values, tokens=answer.tokens, seconds=seconds)
        share = 1 / len(keys)  # each text has an equal share of the request's costs
        new_answers = {}
        for key, value in zip(keys, answer.values, strict=True):
            tokens = None if answer.tokens is None else answer.tokens * share
            new_answers[key] = StoredAnswer(value, share, tokens, seconds * share)
            self._costs.add(key, new_answers[key], is_kept=False)
        return new_answers


def _expect_model(answered_model: str, expected_model: str, url: str) -> None:
    if answered_model != expected_model:
        problem = f"answered with the model {answered_model!r}; expected {expected_model!r}, as in its first answer"
        raise Unfinished(problem, path=url)


def _open_store(facts: dict[str, Any], value_bytes: int) -> AnswerStore:
    return AnswerStore(writable_cache("endpoints") / f"{key_of(facts)}.sqlite", value_bytes)


class EmbeddingService:
    """A model that a service offers for vectors of one task: queries or passages.

    Args:
        service: the service at the address of requests.
        model: the model's name for the service.
        input_type: the input type of the task, or None.
        options: the options of the endpoint.
        costs: counts the answers.
    """

    def __init__(
        self,
        service: ApiService,
        model: str,
        input_type: str | None,
        options: EndpointOptions,
        costs: ServiceCosts,
    ) -> None:
        self._service = service
        self._model = model
        self._options = options
        self._costs = costs
        self._fields: dict[str, Any] = dict(input_type_field(input_type))
        if options.dimensions is not None:
            self._fields["dimensions"] = options.dimensions

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """Everything that the vectors depend on, as JSON values. Sends the first request."""
        # In a thread, because a signal ends the wait for a thread at once. The only task yields (number, result).
        ((_, answer),) = in_daemon_threads(self._request_probes, [PROBE_TEXTS], 1)
        vectors = np.array([np.frombuffer(value, np.float32) for value in answer.values])
        if not vectors.any(axis=1).all():
            raise Unfinished("answered a vector of zeros", path=self._service.url)
        dim = int(vectors.shape[1])
        if self._options.dimensions not in (None, dim):
            problem = f"answered {dim} dimensions; expected the {self._options.dimensions} of --dimensions"
            raise Unfinished(problem, path=self._service.url)
        return {
            "name": self._model,
            "answered_by": answer.model,
            "fields": self._fields,
            "dim": dim,
            # Vectors of a service vary slightly between calls, but this dimension does not.
            "probe": widest_dimension(vectors.astype(np.float64)),
        }

    def _request_probes(self, texts: Sequence[str]) -> ServiceAnswer:
        answer, _ = self._request(texts)
        return answer

    def _request(self, texts: Sequence[str], dim: int | None = None) -> tuple[ServiceAnswer, float]:
        """Send one request. Return the vectors, and the seconds. ``dim`` is the expected number of dimensions."""
        body = {
            "model": self._model,
            "input": list(texts),
            "encoding_format": self._options.encoding_format,
            **self._fields,
        }
        reply = self._service.post(body, may_be_split=len(texts) > 1)
        return read_vectors(reply.content, texts, self._service.url, dim), reply.seconds

    def _request_checked(self, texts: Sequence[ServiceText]) -> tuple[ServiceAnswer, float]:
        """Send one request. Raises :class:`InputError` if another model or other dimensions come than at first."""
        answer, seconds = self._request([text.text for text in texts], self.facts["dim"])
        _expect_model(answer.model, self.facts["answered_by"], self._service.url)
        return answer, seconds

    @functools.cached_property
    def _asker(self) -> ServiceAsker:
        store = _open_store({"url": self._service.url, **self.facts}, self.facts["dim"] * _FLOAT_BYTES)
        return ServiceAsker(store, self._request_checked, self._options, self._costs)

    def vectors(self, texts: Sequence[str]) -> Floats:
        """Return the vectors of texts, shape (texts, dimensions). Raises :class:`InputError`."""
        values = self._asker.values([[ServiceText(text) for text in texts]])
        vectors = np.empty((len(texts), self.facts["dim"]), np.float32)
        for row, value in enumerate(values):
            vectors[row] = np.frombuffer(value, np.float32)
        return vectors


class RerankService:
    """A model that a service offers to score passages for a query."""

    def __init__(self, service: ApiService, model: str, options: EndpointOptions, costs: ServiceCosts) -> None:
        self._service = service
        self._model = model
        self._options = options
        self._costs = costs
        self._has_tei_fields = False

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """The model's name, and the name in the service's answer. Sends the first request."""
        texts = [ServiceText(text, PROBE_TEXTS[0]) for text in PROBE_TEXTS]
        # In a thread, because a signal ends the wait for a thread at once. The only task yields (number, result).
        ((_, (answer, _)),) = in_daemon_threads(self._request_first, [texts], 1)
        return {"name": self._model, "answered_by": answer.model}

    def _request_first(self, texts: Sequence[ServiceText]) -> tuple[ServiceAnswer, float]:
        """Send the first request, which shows if the service has the fields of TEI or those of Jina and Cohere."""
        try:
            return self._request(texts)
        except RequestFailed as error:
            if error.status != _NO_SUCH_FIELD:
                raise
        # TEI names the field of the passages `texts`.
        self._has_tei_fields = True
        return self._request(texts)

    def _request(self, texts: Sequence[ServiceText]) -> tuple[ServiceAnswer, float]:
        """Send one request with passages of the same query. Return their scores, and the seconds."""
        passages = [text.text for text in texts]
        body: dict[str, Any] = {"query": texts[0].query}
        if self._has_tei_fields:
            body["texts"] = passages
        else:
            body |= {"model": self._model, "documents": passages, "top_n": len(passages)}
        reply = self._service.post(body, may_be_split=len(texts) > 1)
        return read_scores(reply.content, passages, self._service.url), reply.seconds

    def _request_checked(self, texts: Sequence[ServiceText]) -> tuple[ServiceAnswer, float]:
        """Send one request. Raises :class:`InputError` if another model answers than at first."""
        answer, seconds = self._request(texts)
        _expect_model(answer.model, self.facts["answered_by"], self._service.url)
        return answer, seconds

    @functools.cached_property
    def _asker(self) -> ServiceAsker:
        store = _open_store({"url": self._service.url, **self.facts}, _SCORE_BYTES)
        return ServiceAsker(store, self._request_checked, self._options, self._costs)

    def scores(self, groups: Sequence[tuple[str, Sequence[str]]]) -> list[float]:
        """Return the score of every passage of all groups, in order. A group is a query and its passages, as texts.

        Raises :class:`InputError`.
        """
        text_groups = []
        for query_text, passage_texts in groups:
            text_groups.append([ServiceText(passage_text, query_text) for passage_text in passage_texts])
        return [float(np.frombuffer(value, np.float64)[0]) for value in self._asker.values(text_groups)]


def open_service(options: EndpointOptions, path_end: str) -> ApiService:
    """Return the service at an endpoint. ``path_end`` is embeddings or rerank, which the address may lack."""
    address, has_parameters, parameters = options.address.partition("?")
    address = address.rstrip("/")
    if address.rpartition("/")[2] != path_end:
        address += f"/{path_end}"
    if has_parameters:
        address += f"?{parameters}"
    reply_bytes = _REPLY_BYTES + (options.request_texts + len(PROBE_TEXTS)) * _LARGEST_DIM * _BYTES_PER_NUMBER
    return ApiService(address, reply_bytes)
