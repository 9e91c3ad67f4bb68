"""The ``elasticsearch`` engine: a server indexes and searches this project's tokens.

The name of an index contains a hash of the corpus, the analyzer, k1 and b. ``_meta`` in the mapping records that the
index is complete. The index has one shard, because BM25 counts words per shard. Requests to a busy server are retried.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from elastic_transport import ConnectionError, NodeConfig, Urllib3HttpNode
from elasticsearch import ApiError, Elasticsearch, TransportError, UnsupportedProductError
from elasticsearch.helpers import streaming_bulk

from baselines.bm25.bm25_index import IndexedTexts, InvertedIndex
from baselines.bm25.tokens import K1, B
from builders.core.errors import InputError, log
from builders.core.folders import key_of
from builders.core.redaction import register_secret, without_credentials
from builders.core.reply_limits import run_within
from builders.store.runs import Hit, RunColumns, best_first, columns_of

_VERSION = "elasticsearch 1"  # increase the number when the mappings change
API_KEY = "ELASTICSEARCH_API_KEY"  # environment variable
_WINDOW = 100_000  # largest number of hits per search
_TRIES = 8  # tries of a request to a busy server
_BUSY = (429, 502, 503, 504)  # HTTP statuses of a busy server
_FORBIDDEN = (401, 403)  # HTTP statuses of a request without the right credentials
# Seconds before the first retry of rejected passages; each further pause is twice as long.
_PAUSE = 0.5
# Limits of one reply.
REPLY_SECONDS = 600
REPLY_BYTES = 1 << 30
_READ_BYTES = 1 << 16  # bytes of a reply that are read at a time
# Hits beyond the top k in the first search, which show if passages tie with the last hit.
_EXTRA_HITS = 10
_TIE = 1e-6  # relative difference of two 32-bit sums of the same numbers, at most
_RANKED = {"sort": [{"_score": "desc"}, {"id": "asc"}], "track_total_hits": False}
_INDEX = {
    "number_of_shards": 1,
    "max_result_window": _WINDOW,
    "analysis": {
        # Lucene's limit for a term is 32,766 bytes, and a character has at most 4 bytes.
        "tokenizer": {"tokens": {"type": "whitespace", "max_token_length": 8_000}},
        "analyzer": {"tokens": {"type": "custom", "tokenizer": "tokens"}},
    },
}
_MAPPINGS = {
    "dynamic": "strict",
    "_source": {"enabled": False},
    "properties": {
        "id": {"type": "keyword", "index": False},
        "text": {"type": "text", "analyzer": "tokens", "similarity": "tokens", "index_options": "freqs"},
    },
}


class _TooLong(Exception):
    """A reply has more bytes than :data:`REPLY_BYTES`."""


class LimitedNode(Urllib3HttpNode):
    """A connection to the server whose replies have limits of time and size.

    The client has no option for the size of a reply. This node therefore replaces ``urlopen`` of its own urllib3 pool,
    which Urllib3HttpNode of elastic-transport 8 calls for every request. Other pools are not changed.
    """

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self._plain_urlopen = self.pool.urlopen
        self.pool.urlopen = self._read_reply  # type: ignore[method-assign, assignment]

    def _read_reply(self, method: str, target: str, **options: Any) -> SimpleNamespace:
        """Send a request as ``urlopen`` does, and return the attributes of the reply that the client reads.

        Raises :class:`_TooLong` as soon as the reply has more than :data:`REPLY_BYTES`.
        """
        response: Any = self._plain_urlopen(method, target, preload_content=False, **options)
        content = bytearray()
        try:
            for block in response.stream(_READ_BYTES, decode_content=True):
                content += block
                if len(content) > REPLY_BYTES:
                    raise _TooLong
        finally:
            # Only a connection whose reply is read to the end can be used for the next request.
            if len(content) > REPLY_BYTES:
                response.close()  # the rest of the reply is not read
            else:
                response.release_conn()
        return SimpleNamespace(data=bytes(content), status=response.status, headers=response.headers)

    def perform_request(self, *arguments: Any, **options: Any) -> Any:
        """Send a request. Raises TransportError if the reply exceeds a limit of time or size.

        The client does not repeat a request after a TransportError, but would after its subclass ConnectionError.
        """
        try:
            return run_within(REPLY_SECONDS, lambda: super(LimitedNode, self).perform_request(*arguments, **options))
        except TimeoutError:
            raise TransportError(f"no complete reply within {REPLY_SECONDS} seconds") from None
        except ConnectionError as error:
            # The node wraps every exception of a request in a ConnectionError.
            if any(isinstance(cause, _TooLong) for cause in error.errors):
                raise TransportError(f"a reply has over {REPLY_BYTES:,} bytes") from None
            raise


class ElasticsearchIndex(InvertedIndex):
    """An index on a server. ``address`` is the server's URL without credentials."""

    def __init__(self, client: Elasticsearch, address: str, name: str, texts: IndexedTexts) -> None:
        self.client = client
        self.address = address
        self.name = name
        self.analyzer = texts.analyzer
        self.passages = texts.release.rows(texts.config, texts.split)

    def search_columns(self, query_ids: Sequence[str], queries: list[list[str]], top_k: int) -> RunColumns:
        """Return each query's ``top_k`` best passages, by falling score, then by id. ``queries`` are lists of tokens.

        Raises :class:`InputError` if the server refuses a search, or ``top_k`` is above its limit.
        """
        if top_k > _WINDOW:
            raise InputError(f"--top-k {top_k}: Elasticsearch returns at most {_WINDOW} passages per search")
        hits_by_query: list[list[Hit]] = [[] for _ in queries]
        # Number of hits to request, by the number of the query. Queries without a token have no hit.
        sizes = {number: min(top_k + _EXTRA_HITS, _WINDOW) for number, words in enumerate(queries) if words}
        # Search until each query has a hit below the top k that does not tie. Most queries need one search.
        while sizes:
            searches: list[dict[str, Any]] = []
            for number, size in sizes.items():
                query = {"match": {"text": {"query": " ".join(queries[number])}}}
                searches.append({})  # the header of a search, which could name another index
                searches.append({**_RANKED, "size": size, "query": query})
            with _one_line_errors(self.address):
                responses = self.client.msearch(index=self.name, searches=searches)["responses"]
            for (number, size), response in zip(list(sizes.items()), responses, strict=True):
                if "error" in response:
                    raise self._error_of(response)
                hits: list[Hit] = []
                for hit in response["hits"]["hits"]:
                    score, corpus_id = hit["sort"]
                    hits.append((corpus_id, float(score)))
                hits_by_query[number], is_settled = _settle_ties(hits, top_k)
                may_have_further_hits = len(hits) == size < _WINDOW
                # Further passages may tie with the last hit.
                if not is_settled and may_have_further_hits:
                    sizes[number] = min(4 * size, _WINDOW)
                else:
                    del sizes[number]
        return columns_of(list(zip(query_ids, hits_by_query, strict=True)))

    def is_complete(self, key: dict[str, Any]) -> bool:
        """True if the server's index was filled with the same ``key`` and has every passage.

        ``key`` has everything that the index depends on. A warning is logged for an incomplete index.
        """
        if not self.client.indices.exists(index=self.name):
            return False
        meta = self.client.indices.get_mapping(index=self.name)[self.name]["mappings"].get("_meta")
        if meta == {"key": key, "whole": True} and self.client.count(index=self.name)["count"] == self.passages:
            return True
        log.warning("%s/%s is incomplete; rebuilding the index", self.address, self.name)
        return False

    def fill(self, texts: IndexedTexts, workers: int, key: dict[str, Any]) -> None:
        """Create and fill the index, with ``workers`` processes. An existing index is replaced.

        ``key`` has everything that the index depends on, with ``k1`` and ``b``. The server stores the key.
        """
        indices = self.client.indices
        indices.delete(index=self.name, ignore_unavailable=True)
        similarity = {"tokens": {"type": "BM25", "k1": key["k1"], "b": key["b"]}}
        # Without refreshes, the server writes fewer and larger segments.
        indices.create(
            index=self.name,
            settings={"index": {**_INDEX, "refresh_interval": "-1", "similarity": similarity}},
            mappings={**_MAPPINGS, "_meta": {"key": key, "whole": False}},
        )
        failures = streaming_bulk(
            self.client,
            _bulk_actions(texts, workers),
            index=self.name,
            yield_ok=False,
            chunk_size=2_000,
            max_chunk_bytes=4 << 20,
            raise_on_error=False,
            max_retries=_TRIES - 1,
            initial_backoff=_PAUSE,
            retry_on_status=_BUSY,
        )
        # Only failures are yielded, and the first of them ends the work.
        for _, failure in failures:
            raise self._error_of(failure["index"])
        # Make the passages visible to searches, and return to the default refreshes.
        indices.refresh(index=self.name)
        indices.put_settings(index=self.name, settings={"index": {"refresh_interval": None}})
        # Only now is the index marked as complete.
        indices.put_mapping(index=self.name, meta={"key": key, "whole": True})

    def _error_of(self, response: dict[str, Any]) -> InputError:
        return InputError(f"{self.address}: {self.name}: {_error_text(response['status'], response)}")


def _bulk_actions(texts: IndexedTexts, workers: int) -> Iterator[dict[str, str]]:
    """Yield the passages as actions of a bulk request.

    The row number is the _id, so that a passage that is sent twice after a lost response is stored once.
    """
    ids = chain.from_iterable(batch.to_pylist() for batch in texts.column("_id"))
    for row, (corpus_id, tokens) in enumerate(zip(ids, texts.tokens(workers), strict=True)):
        yield {"_id": str(row), "id": corpus_id, "text": tokens}


@contextmanager
def _one_line_errors(address: str) -> Iterator[None]:
    """Raise an error of the client or the server as an :class:`InputError` of one line."""
    try:
        yield
    except UnsupportedProductError:
        raise InputError(f"{address}: this server is not Elasticsearch; correct --address") from None
    except ApiError as error:
        raise InputError(f"{address}: {_error_text(error.status_code, error.body)}") from None
    except TransportError as error:
        raise InputError(f"{address}: {error.message}") from None


def _error_text(status: int, body: Any) -> str:
    """Return the status and the reason of a reply. The body is an object with an error, or a text."""
    error = body.get("error", "") if isinstance(body, dict) else body
    reason = error.get("reason", "") if isinstance(error, dict) else error
    hint = ""
    if status in _FORBIDDEN:
        hint = f" (USER:PASSWORD@ in --address, or {API_KEY})"
    return f"HTTP {status}: {reason}{hint}"


def _settle_ties(server_hits: list[Hit], top_k: int) -> tuple[list[Hit], bool]:
    """Return the best ``top_k`` hits, and True if no later passage can tie with the last of these hits.

    ``server_hits`` have descending scores. The server adds 32-bit numbers in varying order, so equal scores may differ
    by a rounding error. Such scores become equal, and hits with equal scores are sorted by id. False means that
    ``server_hits`` end before a hit below the top k has a lower score.
    """
    hits: list[Hit] = []
    previous_score = np.inf
    tied_score = 0.0  # score of the current group of ties
    for corpus_id, score in server_hits:
        is_new_group = previous_score == np.inf or previous_score - score > _TIE * previous_score
        if is_new_group and len(hits) >= top_k:
            return best_first(hits)[:top_k], True
        if is_new_group:
            tied_score = float(str(np.float32(score)))  # the fewest digits that identify a float32
        previous_score = score
        hits.append((corpus_id, tied_score))
    return best_first(hits)[:top_k], False


def open_remote(
    texts: IndexedTexts, address: str, workers: int, k1: float = K1, b: float = B, ca_certs: Path | None = None
) -> ElasticsearchIndex:
    """Open the server's index of the texts. A missing or incomplete index is built."""
    tokenizer = texts.analyzer.tokenizer
    if tokenizer and not texts.analyzer.has_known_source:
        raise InputError(
            f"--engine elasticsearch needs a tokenizer whose source is known: {tokenizer.name}: {tokenizer.why_unknown}"
        )
    url = address if "//" in address else f"http://{address}"
    parts = urlsplit(url)
    if ca_certs is not None and (parts.scheme != "https" or not ca_certs.is_file()):
        raise InputError("--ca-certs: expected a file of certificates (PEM) and an https --address", path=ca_certs)
    options: dict[str, Any] = {}
    if ca_certs:
        options["ca_certs"] = str(ca_certs)
    # Credentials in the address are used before the environment's key.
    if "@" not in parts.netloc and os.environ.get(API_KEY):
        options["api_key"] = os.environ[API_KEY]
    register_secret(url)
    # This logger reports every request.
    logging.getLogger("elastic_transport").setLevel(logging.ERROR)
    # The constructor checks the form of the address. It sends no request.
    try:
        client = Elasticsearch(
            url,
            node_class=LimitedNode,
            request_timeout=REPLY_SECONDS,
            max_retries=_TRIES,
            retry_on_status=_BUSY,
            **options,
        )
    except ValueError:
        raise InputError(
            f"--address {without_credentials(address)!r}: expected http(s)://[USER:PASSWORD@]HOST:PORT"
        ) from None
    # The index's name has the hash of everything that the index depends on, so another k1 gets another index.
    key = texts.key(_VERSION) | {"k1": k1, "b": b}
    plain_address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"  # without credentials
    name = f"dureader-retrieval-{key_of(key)}"
    index = ElasticsearchIndex(client, plain_address, name, texts)
    with _one_line_errors(plain_address):
        client.info()  # raises an error for a server that is not Elasticsearch
        is_complete = index.is_complete(key)
        if not is_complete:
            index.fill(texts, workers, key)
    action = "reused" if is_complete else "built"
    log.info("BM25 index %s: %s/%s (%d passages)", action, plain_address, name, index.passages)
    return index
