"""The ``elasticsearch`` engine: a server indexes and searches our tokens (mapping with a whitespace tokenizer).

The index is named after the corpus, the segmentation, k1 and b; its mapping's ``_meta`` says when it is whole. It has
one shard of the server's: BM25 counts words over a shard.
"""

from __future__ import annotations

import logging
import os
import random
import time
import urllib.parse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from elasticsearch import ApiError, Elasticsearch, NotFoundError, TransportError, UnsupportedProductError
from elasticsearch.helpers import streaming_bulk

from baselines.bm25.index import K1, B, Index, index_key, token_strings
from baselines.bm25.ties import end_of_ties, settle
from baselines.bm25.tokens import WORDS, Analyzer
from baselines.retrieve.passages import expect_ids_once
from builders.common.command import InputError, log
from builders.common.folders import key_of
from builders.common.jobs import in_threads
from builders.store.reader import Release

API_KEY = "ELASTICSEARCH_API_KEY"  # the variable of the environment
_OLDEST = 8  # its major version; earlier ones are no longer maintained
_PASSAGES = 2_000  # that a thread sends at a time, in bulk requests of at most
_BULK = 4 << 20  # bytes: the servers' limit is 100 MB, their advice a few
_WINDOW = 100_000  # hits that a search may ask for
_TRIES = 8
_PAUSE = 0.5  # seconds before the second try; doubled before each further one
_LONGEST = 60.0
_BUSY = (429, 502, 503, 504)
Answer = TypeVar("Answer")


class Server:
    """An Elasticsearch server: its client, its address without credentials, and patience with it."""

    def __init__(self, address: str, ca_certs: Path | None = None) -> None:
        parts = urllib.parse.urlsplit(address if "//" in address else f"http://{address}")
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            parts = parts._replace(scheme="")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"--address {address!r}: expected http(s)://[USER:PASSWORD@]HOST:PORT")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self.address = f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}"
        options: dict[str, Any] = {}
        if parts.username is not None:
            options["basic_auth"] = (urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or ""))
        elif os.environ.get(API_KEY):
            options["api_key"] = os.environ[API_KEY]
        if ca_certs is not None:
            if parts.scheme != "https" or not ca_certs.is_file():
                raise InputError(
                    "--ca-certs: expected a file of certificates (PEM), for an https address", path=ca_certs
                )
            options["ca_certs"] = str(ca_certs)
        logging.getLogger("elastic_transport").setLevel(logging.ERROR)  # a line a request
        # The client asks again at once; here it is done after pauses.
        self.client = Elasticsearch(self.address, request_timeout=600, max_retries=0, **options)

    def check(self) -> None:
        """Raises :class:`InputError` where no Elasticsearch of a supported version answers."""
        number = self.ask(self.client.info, lost=False)["version"]["number"]
        if int(number.split(".")[0]) < _OLDEST:
            raise InputError(f"{self.address}: Elasticsearch {number}; expected version {_OLDEST} or later")

    def ask(self, request: Callable[[], Answer], lost: bool = True) -> Answer:
        """The answer to a request. A busy server, and where ``lost`` a lost connection, is asked again, after pauses.

        Raises :class:`InputError` for every other failure.
        """
        for attempt in range(_TRIES):
            after = ""
            try:
                return request()
            except UnsupportedProductError:
                raise InputError(
                    f"{self.address}: answers, but is no Elasticsearch; --address names another server"
                ) from None
            except ApiError as error:
                reason, again = _reason(error.status_code, error.body), error.status_code in _BUSY
                after = error.meta.headers.get("retry-after") or ""
            except TransportError as error:
                reason, again = str(error.message), lost
            if not again or attempt == _TRIES - 1:
                raise InputError(f"{self.address}: {reason}")
            pause(attempt, after)
        raise AssertionError


def _reason(status: int, body: Any) -> str:
    error = body.get("error", "") if isinstance(body, dict) else body
    words = error.get("reason", "") if isinstance(error, dict) else error
    hint = f" (USER:PASSWORD@ in --address, or {API_KEY})" if status in (401, 403) else ""
    return f"HTTP {status}: {words}{hint}"


def pause(attempt: int, after: str = "") -> None:
    """Wait before the next try: what the server asks for, or twice as long each time, some more or less."""
    seconds = float(after) if after.isdigit() else _PAUSE * 2**attempt * random.uniform(0.75, 1.25)
    time.sleep(min(seconds, _LONGEST))


class ElasticsearchIndex(Index):
    def __init__(self, server: Server, name: str, passages: int) -> None:
        self.server, self.client, self.name, self.passages = server, server.client, name, passages

    def search(self, words: list[str], top_k: int) -> list[tuple[str, float]]:
        return self.search_many([words], top_k)[0]

    def search_many(self, queries: list[list[str]], top_k: int) -> list[list[tuple[str, float]]]:
        if top_k > _WINDOW:
            raise InputError(f"--top-k {top_k}: a search of Elasticsearch gives at most {_WINDOW} passages")
        found: list[list[tuple[str, float]]] = [[] for _ in queries]
        limits = {number: min(top_k + 10, _WINDOW) for number, words in enumerate(queries) if words}
        attempt = 0
        while limits:
            searches = [line for number, size in limits.items() for line in ({}, _query(queries[number], size))]
            answer = self.server.ask(partial(self.client.msearch, index=self.name, searches=searches))
            busy = False
            for (number, size), response in zip(list(limits.items()), answer["responses"], strict=True):
                if "error" in response:
                    if response["status"] not in _BUSY or attempt == _TRIES - 1:
                        raise self._failed(response["status"], response)
                    busy = True
                    continue
                hits = [(hit["sort"][1], float(hit["sort"][0])) for hit in response["hits"]["hits"]]
                end = end_of_ties([score for _, score in hits], top_k)
                if end is None and len(hits) == size < _WINDOW:  # more may tie with the last place
                    limits[number] = min(4 * size, _WINDOW)
                else:
                    found[number] = settle(hits[:end], top_k)
                    del limits[number]
            if busy:
                pause(attempt)
                attempt += 1
        return found

    def is_whole(self, key: dict[str, Any]) -> bool | None:
        """Whether the server's index has been filled and still has every passage; None where there is none."""

        def mapping() -> dict[str, Any] | None:
            try:
                return next(iter(self.client.indices.get_mapping(index=self.name).values()))  # type: ignore[no-any-return]
            except NotFoundError:
                return None

        there = self.server.ask(mapping)
        if there is None:
            return None
        return there["mappings"].get("_meta") == {"key": key, "whole": True} and self.count() == self.passages

    def fill(self, release: Release, corpus: str, workers: int, key: dict[str, Any], k1: float, b: float) -> None:
        """Create the index and fill it; ``workers`` processes segment, as many threads send."""
        expect_ids_once(release, corpus)
        ask, indices = self.server.ask, self.client.indices
        mappings, settings = _mappings(key), _settings(k1, b)
        ask(lambda: indices.create(index=self.name, mappings=mappings, settings={"index": settings}))
        ids = chain.from_iterable(
            batch.column("_id").to_pylist() for batch in release.batches(corpus, "corpus", ["_id"])
        )
        actions = _actions(zip(ids, token_strings(release, corpus, workers, analyzer=self.analyzer), strict=True))
        for _ in in_threads(self._send, iter(lambda: list(islice(actions, _PASSAGES)), []), workers):
            pass
        ask(lambda: indices.refresh(index=self.name))
        count = self.count()
        if count != self.passages:
            raise InputError(f"{self.server.address}: {self.name} has {count} passages where {self.passages} were sent")
        ask(lambda: indices.put_settings(index=self.name, settings={"index": {"refresh_interval": None}}))
        ask(lambda: indices.put_mapping(index=self.name, meta={"key": key, "whole": True}))

    def drop(self) -> None:
        self.server.ask(lambda: self.client.indices.delete(index=self.name, ignore_unavailable=True))

    def count(self) -> int:
        return int(self.server.ask(lambda: self.client.count(index=self.name))["count"])

    def _send(self, actions: list[dict[str, Any]]) -> None:
        """Send passages; those that a busy server turns down are sent again."""

        def send() -> None:
            results = streaming_bulk(
                self.client,
                actions,
                index=self.name,
                chunk_size=_PASSAGES,
                max_chunk_bytes=_BULK,
                raise_on_error=False,
                max_retries=_TRIES - 1,
                initial_backoff=_PAUSE,
                max_backoff=_LONGEST,
                retry_on_status=_BUSY,
            )
            for good, result in results:
                # 409: there already, from a request whose answer was lost.
                if not good and result["create"]["status"] != 409:
                    raise self._failed(result["create"]["status"], result["create"])

        self.server.ask(send)

    def _failed(self, status: int, body: Any) -> InputError:
        return InputError(f"{self.server.address}: {self.name}: {_reason(status, body)}")


def _settings(k1: float, b: float) -> dict[str, Any]:
    analysis = {
        # Lucene's longest term has 32,766 bytes.
        "tokenizer": {"tokens": {"type": "whitespace", "max_token_length": 8_000}},
        "analyzer": {"tokens": {"type": "custom", "tokenizer": "tokens"}},
    }
    return {
        "number_of_shards": 1,
        "refresh_interval": "-1",
        "max_result_window": _WINDOW,
        "analysis": analysis,
        "similarity": {"tokens": {"type": "BM25", "k1": k1, "b": b}},
    }


def _mappings(key: dict[str, Any]) -> dict[str, Any]:
    text = {"type": "text", "analyzer": "tokens", "similarity": "tokens", "index_options": "freqs"}
    properties = {"id": {"type": "keyword", "index": False}, "text": text}
    meta = {"key": key, "whole": False}
    return {"dynamic": "strict", "_meta": meta, "_source": {"enabled": False}, "properties": properties}


def _query(words: list[str], size: int) -> dict[str, Any]:
    return {
        "query": {"match": {"text": {"query": " ".join(words)}}},
        "size": size,
        "sort": [{"_score": "desc"}, {"id": "asc"}],
        "track_total_hits": False,
    }


def _actions(passages: Iterator[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """What the client's bulk helper takes, of (corpus id, tokens) pairs: a passage sent twice is there once."""
    for row, (corpus_id, text) in enumerate(passages):
        yield {"_op_type": "create", "_id": str(row), "id": corpus_id, "text": text}


def open_remote(
    release: Release,
    address: str,
    workers: int,
    corpus: str = "corpus",
    k1: float = K1,
    b: float = B,
    ca_certs: Path | None = None,
    analyzer: Analyzer = WORDS,
) -> ElasticsearchIndex:
    """The server's index of a release's corpus config, built where it is missing or not whole."""
    server = Server(address, ca_certs)
    server.check()
    key = {**index_key(release, corpus, "elasticsearch 1", analyzer=analyzer), "k1": k1, "b": b}
    index = ElasticsearchIndex(server, f"dureader-retrieval-{key_of(key)}", release.rows(corpus, "corpus"))
    index.analyzer = analyzer
    whole = index.is_whole(key)
    if not whole:
        if whole is not None:
            log.warning("%s/%s is not whole; it is built again", server.address, index.name)
            index.drop()
        index.fill(release, corpus, workers, key, k1, b)
    done = "reused" if whole else "built"
    log.info("BM25 index %s: %s/%s (%d passages)", done, server.address, index.name, index.passages)
    return index
