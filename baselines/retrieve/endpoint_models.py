"""Models behind an endpoint, as retrievers and re-rankers. Vectors are stored as those of models on this machine."""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from baselines.core.endpoint_options import EndpointOptions
from baselines.core.settings import ModelOptions, ModelSettings
from baselines.retrieve.dense import DenseRetriever
from baselines.retrieve.devices import Work
from baselines.retrieve.encoder import Halves
from baselines.retrieve.own_vectors import unit_rows
from baselines.retrieve.rerankers import OpenReranker, PairJob, endpoint_work
from baselines.retrieve.service_client import EmbeddingService, RerankService, ServiceCosts, open_service
from baselines.retrieve.vector_stores import FLOAT16
from builders.core.errors import InputError, Unfinished, log
from builders.core.folders import key_of
from builders.store.reader import Release

_SMALLEST_HALF = 2.0**-14  # smaller 16-bit numbers have fewer digits
_DEFAULT = "the default"
_UNKNOWN_PRECISION = "unknown (endpoint)"


class EndpointEncoder:
    """The encoder of queries or passages behind an endpoint, with the method of :class:`.encoder.TextEncoder`.

    Args:
        service: the model that returns the vectors.
        prompt: text put before every text, or "".
        similarity: cosine (vectors are scaled to unit length) or dot.
    """

    def __init__(self, service: EmbeddingService, prompt: str, similarity: str) -> None:
        self._service = service
        self._prompt = prompt
        self._similarity = similarity

    def encode(self, texts: Sequence[str]) -> Halves:
        """Return embeddings of shape (texts, dimensions), of unit length for cosine. Raises :class:`InputError`."""
        vectors = self._service.vectors([self._prompt + text for text in texts])
        zero_count = int((~vectors.any(axis=1)).sum())
        if zero_count:
            log.warning("%d of %d texts have a vector of zeros", zero_count, len(texts))
        if self._similarity == "cosine":
            return unit_rows(vectors).astype(np.float16)
        largest_numbers = np.abs(vectors).max(axis=1, initial=0)
        if ((largest_numbers > 0) & (largest_numbers < _SMALLEST_HALF)).any():
            raise InputError("the vectors have numbers that are too small for 16 bits (try --similarity cosine)")
        with np.errstate(over="ignore"):
            halves: Halves = vectors.astype(np.float16)
        if not np.isfinite(halves).all():
            raise InputError("the vectors have numbers that are too large for 16 bits (try --similarity cosine)")
        return halves


@dataclass(frozen=True, eq=False)
class EndpointDense(DenseRetriever):
    """A dual-encoder behind an endpoint. ``settings`` has only the name of the passages' model.

    Attributes:
        query_service, passage_service: the models for queries and for passages. Often they are the same object.
        query_prompt, passage_prompt: text put before every query or passage, or "".
        costs: the costs of both services.
        url: the address of the requests.
        similarity: cosine (vectors are scaled to unit length) or dot.
    """

    query_service: EmbeddingService
    passage_service: EmbeddingService
    query_prompt: str
    passage_prompt: str
    costs: ServiceCosts
    url: str
    similarity: str

    # ``eq=False`` alone would inherit the comparison by settings, which do not have the endpoint.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @functools.cached_property
    def result_inputs(self) -> dict[str, Any]:
        """Everything about the model that affects the vectors of passages. Sends the first requests."""
        facts = self.passage_service.facts
        fingerprint = key_of([facts, self.passage_prompt, self.similarity])
        return {
            "name": self.settings.name,
            "fingerprint": fingerprint,
            "answered_by": facts["answered_by"],
            "dim": facts["dim"],
            "similarity": self.similarity,
        }

    @functools.cached_property
    def query_facts(self) -> dict[str, Any]:
        """Everything about the model that affects the vectors of queries. Sends the first request of another model.

        Raises :class:`Unfinished` if queries have another number of dimensions than passages.
        """
        facts = self.query_service.facts
        if facts["dim"] != self.result_inputs["dim"]:
            problem = f"answered {facts['dim']} dimensions for queries, but {self.result_inputs['dim']} for passages"
            raise Unfinished(problem, path=self.url)
        return {**facts, "prompt": self.query_prompt}

    def encoder(self, device: str, task: str) -> EndpointEncoder:
        """Return the encoder for a task (query or document). ``device`` is not used."""
        if task == "query":
            self.query_facts  # noqa: B018 (checks the dimensions)
            return EndpointEncoder(self.query_service, self.query_prompt, self.similarity)
        return EndpointEncoder(self.passage_service, self.passage_prompt, self.similarity)

    def _origin(self, release: Release, config: str, split: str, store: str = FLOAT16) -> dict[str, Any]:
        origin = super()._origin(release, config, split, store)
        # Queries may have another model than passages.
        if split != "corpus":
            origin["model"]["queries"] = self.query_facts
        return origin

    @property
    def is_remote(self) -> bool:
        return True

    def measured_costs(self) -> dict[str, Any]:
        return {"endpoint": {"url": self.url, **self.costs.values()}}


def open_endpoint_encoder(model: str, options: ModelOptions) -> EndpointDense:
    """Open a dual-encoder behind the endpoint of ``options``. Nothing is sent yet."""
    endpoint = _endpoint_of(options)
    service = open_service(endpoint, "embeddings")
    costs = ServiceCosts()
    passage_service = EmbeddingService(service, model, endpoint.passage_input_type, endpoint, costs)
    # Queries often have the same model and input type, so one service checks the model once.
    query_service = passage_service
    query_model = endpoint.query_model or model
    if (query_model, endpoint.query_input_type) != (model, endpoint.passage_input_type):
        query_service = EmbeddingService(service, query_model, endpoint.query_input_type, endpoint, costs)
    return EndpointDense(
        ModelSettings(model),
        replace(endpoint_work(endpoint.parallel), dtype=_UNKNOWN_PRECISION),
        query_service,
        passage_service,
        options.query_prompt or "",
        options.passage_prompt or "",
        costs,
        service.url,
        options.similarity or "cosine",
    )


def describe_endpoint_settings(options: ModelOptions) -> dict[str, Any]:
    """Return the settings of a dual-encoder behind an endpoint and their sources, for a run's manifest.

    By the setting's name, each has ``value`` and ``says``, its source: an option or the default.
    """
    endpoint = _endpoint_of(options)
    values = {
        "query_prompt": (options.query_prompt, ""),
        "passage_prompt": (options.passage_prompt, ""),
        "query_model": (endpoint.query_model, None),
        "query_input_type": (endpoint.query_input_type, None),
        "passage_input_type": (endpoint.passage_input_type, None),
        "dimensions": (endpoint.dimensions, None),
        "similarity": (options.similarity, "cosine"),
    }
    settings = {}
    for name, (value, default) in values.items():
        source = _DEFAULT if value is None else f"--{name.replace('_', '-')}"
        settings[name] = {"value": default if value is None else value, "says": source}
    return settings


@dataclass(frozen=True)
class EndpointReranker(OpenReranker):
    """A re-ranker behind an endpoint. Its scores are those of the service, for example from 0 to 1.

    Attributes:
        service: the model that scores passages.
        costs: the costs of the service.
        url: the address of the requests.
    """

    kind = "cross"
    service: RerankService
    costs: ServiceCosts
    url: str

    def result_inputs(self) -> dict[str, Any]:
        facts = self.service.facts
        return {"kind": self.kind, **facts, "query_prompt": self.settings.query_prompt or ""}

    def score(self, pairs: Sequence[tuple[str, str]], device: str) -> list[float]:
        """Return the score of every (query, passage), in order. ``device`` is not used.

        Adjacent pairs of the same query are sent together.
        """
        query_prompt = self.settings.query_prompt or ""
        groups = []
        for query_text, query_pairs in itertools.groupby(pairs, key=lambda pair: pair[0]):
            groups.append((query_prompt + query_text, [passage_text for _, passage_text in query_pairs]))
        return self.service.scores(groups)

    @property
    def is_remote(self) -> bool:
        return True

    def measured_costs(self) -> dict[str, Any]:
        return {"endpoint": {"url": self.url, **self.costs.values()}}


def open_endpoint_job(model: str, options: ModelOptions, work: Work, release: Release, corpus: str) -> PairJob:
    """Return the job of a re-ranker behind the endpoint of ``options``. Nothing is sent yet.

    ``corpus`` is the config of the release's passages.
    """
    endpoint = _endpoint_of(options)
    service = open_service(endpoint, "rerank")
    costs = ServiceCosts()
    settings = ModelSettings(model, query_prompt=options.query_prompt)
    rerank_service = RerankService(service, model, endpoint, costs)
    return PairJob(release.path, corpus, "corpus", EndpointReranker(settings, work, rerank_service, costs, service.url))


def _endpoint_of(options: ModelOptions) -> EndpointOptions:
    assert options.endpoint is not None  # the callers check the option
    return options.endpoint
