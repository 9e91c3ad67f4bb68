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

from baselines.bm25.bm25_index import Index, Texts
from baselines.bm25.tokens import K1, B
from builders.core.errors import InputError, log
from builders.core.folders import key_of
from builders.core.redaction import register_secret, without_credentials
from builders.core.reply_limits import run_within
from builders.store.runs import Columns, Hit, best_first, columns_of

API_KEY = "ELASTICSEARCH_API_KEY"  # environment variable
_WINDOW = 100_000  # largest number of hits per search
_TRIES, _BUSY = 8, (429, 502, 503, 504)
# Limits of one reply.
REPLY_SECONDS = 600
REPLY_BYTES = 1 << 30
_PAUSE = 0.5  # seconds before the first retry of rejected passages; each further pause is twice as long
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
    """A connection to the server whose replies have limits of time and size."""

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self._plain_urlopen = self.pool.urlopen
        self.pool.urlopen = self._read_reply  # type: ignore[method-assign, assignment]

    def _read_reply(self, method: str, target: str, **options: Any) -> SimpleNamespace:
        response: Any = self._plain_urlopen(method, target, preload_content=False, **options)
        content = bytearray()
        try:
            for part in response.stream(1 << 16, decode_content=True):
                content += part
                if len(content) > REPLY_BYTES:
                    raise _TooLong
        finally:
            if len(content) > REPLY_BYTES:
                response.close()  # the rest of the reply is not read
            else:
                response.release_conn()
        return SimpleNamespace(data=bytes(content), status=response.status, headers=response.headers)

    def perform_request(self, *words: Any, **options: Any) -> Any:
        """Send a request. Raises TransportError, after which the client does not try again, for a limit."""
        try:
            return run_within(REPLY_SECONDS, lambda: super(LimitedNode, self).perform_request(*words, **options))
        except TimeoutError:
            raise TransportError(f"no complete reply within {REPLY_SECONDS} seconds") from None
        except ConnectionError as error:
            if any(isinstance(cause, _TooLong) for cause in error.errors):
                raise TransportError(f"a reply has over {REPLY_BYTES:,} bytes") from None
            raise


class ElasticsearchIndex(Index):
    """An index on a server. ``address`` is the server's URL without credentials."""

    def __init__(self, client: Elasticsearch, address: str, name: str, texts: Texts) -> None:
        self.client, self.address, self.name, self.analyzer = client, address, name, texts.analyzer
        self.passages = texts.release.rows(texts.config, texts.split)

    def search_columns(self, ids: Sequence[str], queries: list[list[str]], top_k: int) -> Columns:
        if top_k > _WINDOW:
            raise InputError(f"--top-k {top_k}: Elasticsearch returns at most {_WINDOW} passages per search")
        found: list[list[Hit]] = [[] for _ in queries]
        sizes = {number: min(top_k + 10, _WINDOW) for number, words in enumerate(queries) if words}
        while sizes:
            asked = ((size, {"match": {"text": {"query": " ".join(queries[n])}}}) for n, size in sizes.items())
            searches = [each for size, query in asked for each in ({}, {**_RANKED, "size": size, "query": query})]
            with _one_line(self.address):
                responses = self.client.msearch(index=self.name, searches=searches)["responses"]
            for (number, size), response in zip(list(sizes.items()), responses, strict=True):
                if "error" in response:
                    raise self._failed(response)
                hits = [(hit["sort"][1], float(hit["sort"][0])) for hit in response["hits"]["hits"]]
                found[number], is_sure = _settle(hits, top_k)
                if is_sure or not len(hits) == size < _WINDOW:
                    del sizes[number]
                else:  # further passages may tie with the last hit
                    sizes[number] = min(4 * size, _WINDOW)
        return columns_of(list(zip(ids, found, strict=True)))

    def is_whole(self, key: dict[str, Any]) -> bool:
        """True if the server's index is complete and has every passage."""
        if not self.client.indices.exists(index=self.name):
            return False
        meta = self.client.indices.get_mapping(index=self.name)[self.name]["mappings"].get("_meta")
        if meta == {"key": key, "whole": True} and self.client.count(index=self.name)["count"] == self.passages:
            return True
        log.warning("%s/%s is incomplete; rebuilding the index", self.address, self.name)
        return False

    def fill(self, texts: Texts, workers: int, key: dict[str, Any]) -> None:
        """Create and fill the index, with ``workers`` processes. An existing index is replaced."""
        indices = self.client.indices
        indices.delete(index=self.name, ignore_unavailable=True)
        bm25 = {"tokens": {"type": "BM25", "k1": key["k1"], "b": key["b"]}}
        indices.create(
            index=self.name,
            settings={"index": {**_INDEX, "refresh_interval": "-1", "similarity": bm25}},
            mappings={**_MAPPINGS, "_meta": {"key": key, "whole": False}},
        )
        ids = chain.from_iterable(some.to_pylist() for some in texts.column("_id"))
        # The row number is the _id, so that a passage that is sent twice after a lost response is stored once.
        rows = enumerate(zip(ids, texts.tokens(workers), strict=True))
        actions = ({"_id": str(row), "id": corpus_id, "text": text} for row, (corpus_id, text) in rows)
        options: dict[str, Any] = {"chunk_size": 2_000, "max_chunk_bytes": 4 << 20, "raise_on_error": False}
        options |= {"max_retries": _TRIES - 1, "initial_backoff": _PAUSE, "retry_on_status": _BUSY}
        for _, failed in streaming_bulk(self.client, actions, index=self.name, yield_ok=False, **options):
            raise self._failed(failed["index"])
        indices.refresh(index=self.name)
        indices.put_settings(index=self.name, settings={"index": {"refresh_interval": None}})
        indices.put_mapping(index=self.name, meta={"key": key, "whole": True})

    def _failed(self, answer: dict[str, Any]) -> InputError:
        return InputError(f"{self.address}: {self.name}: {_reason(answer['status'], answer)}")


@contextmanager
def _one_line(address: str) -> Iterator[None]:
    try:
        yield
    except UnsupportedProductError:
        raise InputError(f"{address}: this server is not Elasticsearch; correct --address") from None
    except ApiError as error:
        raise InputError(f"{address}: {_reason(error.status_code, error.body)}") from None
    except TransportError as error:
        raise InputError(f"{address}: {error.message}") from None


def _reason(status: int, body: Any) -> str:
    error = body.get("error", "") if isinstance(body, dict) else body
    words = error.get("reason", "") if isinstance(error, dict) else error
    hint = f" (USER:PASSWORD@ in --address, or {API_KEY})" if status in (401, 403) else ""
    return f"HTTP {status}: {words}{hint}"


def _settle(found: list[Hit], top_k: int) -> tuple[list[Hit], bool]:
    """Return the best ``top_k`` hits, and True if no passage after ``found`` can tie with the last of these hits.

    ``found`` has descending scores. The server adds 32-bit numbers in varying order, so equal scores may differ by a
    rounding error. Such scores become equal, and hits with equal scores are sorted by id.
    """
    hits: list[Hit] = []
    previous, shown, is_sure = np.inf, 0.0, False
    for corpus_id, score in found:
        if previous == np.inf or previous - score > 1e-6 * previous:
            if is_sure := len(hits) >= top_k:
                break
            shown = float(str(np.float32(score)))  # the fewest digits that identify a float32
        previous = score
        hits.append((corpus_id, shown))
    return best_first(hits)[:top_k], is_sure


def open_remote(
    texts: Texts, address: str, workers: int, k1: float = K1, b: float = B, ca_certs: Path | None = None
) -> ElasticsearchIndex:
    """Open the server's index of the texts. A missing or incomplete index is built."""
    url = address if "//" in address else f"http://{address}"
    parts = urlsplit(url)
    if ca_certs is not None and (parts.scheme != "https" or not ca_certs.is_file()):
        raise InputError("--ca-certs: expected a file of certificates (PEM) and an https --address", path=ca_certs)
    options: dict[str, Any] = {"ca_certs": str(ca_certs)} if ca_certs else {}
    if "@" not in parts.netloc and os.environ.get(API_KEY):
        options["api_key"] = os.environ[API_KEY]
    register_secret(url)
    logging.getLogger("elastic_transport").setLevel(logging.ERROR)  # this logger reports every request
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
    key = {**texts.key("elasticsearch 1"), "k1": k1, "b": b}
    shown, name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", f"dureader-retrieval-{key_of(key)}"
    index = ElasticsearchIndex(client, shown, name, texts)
    with _one_line(shown):
        client.info()
        whole = index.is_whole(key)
        if not whole:
            index.fill(texts, workers, key)
    log.info("BM25 index %s: %s/%s (%d passages)", "reused" if whole else "built", shown, name, index.passages)
    return index
