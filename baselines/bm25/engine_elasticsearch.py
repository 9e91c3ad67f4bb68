"""The ``elasticsearch`` engine: a server indexes and searches our tokens (mapping with a whitespace tokenizer).

The index is named after the corpus, the segmentation, k1 and b; its mapping's ``_meta`` says when it is whole. It has
one shard: BM25 counts words over a shard. No client library: five endpoints of the REST interface are enough.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import random
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from itertools import chain
from typing import Any

from baselines.bm25.index import K1, B, Index, index_key, token_strings
from baselines.bm25.ties import end_of_ties, settle
from builders.common.command import InputError, log
from builders.common.folders import key_of
from builders.common.jobs import in_threads
from builders.store.reader import Release

API_KEY = "ELASTICSEARCH_API_KEY"  # the variable of the environment
_OLDEST = 8  # its major version; earlier ones are no longer maintained
_BULK = 4 << 20  # bytes of a bulk request: the servers' limit is 100 MB, their advice a few
_WINDOW = 100_000  # hits that a search may ask for
_TRIES = 8
_PAUSE = 0.5  # seconds before the second try; doubled before each further one
_BUSY = (429, 502, 503, 504)


class Server:
    """An Elasticsearch server's REST interface."""

    def __init__(self, address: str) -> None:
        parts = urllib.parse.urlsplit(address if "//" in address else f"http://{address}")
        try:
            self.port = parts.port
        except ValueError:
            parts = parts._replace(scheme="")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"--address {address!r}: expected http(s)://[USER:PASSWORD@]HOST:PORT")
        self.address = urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
        self.address = self.address.rstrip("/")
        self._headers = {}
        if parts.username is not None:
            user = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        elif os.environ.get(API_KEY):
            self._headers["Authorization"] = f"ApiKey {os.environ[API_KEY]}"

    def check(self) -> None:
        """Raises :class:`InputError` where no Elasticsearch of a supported version answers."""
        about = self.call("GET", "/", patient=False)
        version = about.get("version", {}) if isinstance(about, dict) else {}
        number = str(version.get("number", ""))
        if "distribution" in version or not number.split(".")[0].isdigit():
            raise InputError(f"{self.address}: answers, but is no Elasticsearch; --address names another server")
        if int(number.split(".")[0]) < _OLDEST:
            raise InputError(f"{self.address}: Elasticsearch {number}; expected version {_OLDEST} or later")

    def call(self, method: str, path: str, body: Any = None, patient: bool = True) -> Any:
        """The answer's JSON; None for 404. ``body``: an object, or lines as bytes.

        A busy server, and where ``patient`` a lost connection, is asked again, with growing pauses. Raises
        :class:`InputError` for every other failure.
        """
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        lines = "application/x-ndjson" if isinstance(body, bytes) else "application/json"
        request = urllib.request.Request(
            self.address + path, data, {**self._headers, "Content-Type": lines}, method=method
        )
        for attempt in range(_TRIES):
            after = ""
            try:
                with urllib.request.urlopen(request, timeout=600) as answer:
                    return json.loads(answer.read())
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                reason, again = _reason(error), error.code in _BUSY
                after = error.headers.get("Retry-After") or ""
            except ValueError:
                raise InputError(f"{self.address}: answers, but not with JSON; is it Elasticsearch?") from None
            except (OSError, http.client.HTTPException) as error:
                reason, again = str(getattr(error, "reason", error) or type(error).__name__), patient
            if not again or attempt == _TRIES - 1:
                raise InputError(f"{self.address}: {method} {path}: {reason}")
            pause(attempt, after)
        raise AssertionError

    def must(self, method: str, path: str, body: Any = None) -> Any:
        """:meth:`call`, where 404 is an error too."""
        answer = self.call(method, path, body)
        if answer is None:
            raise InputError(f"{self.address}: {method} {path}: not found; was the index deleted?")
        return answer


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        content = json.loads(error.read())["error"]
        words = content["reason"] if isinstance(content, dict) else content
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        words = error.reason
    hint = f" (USER:PASSWORD@ in --address, or {API_KEY})" if error.code in (401, 403) else ""
    return f"HTTP {error.code}: {words}{hint}"


def pause(attempt: int, after: str = "") -> None:
    """Wait before the next try: what the server asks for, or twice as long each time, some more or less."""
    seconds = float(after) if after.isdigit() else _PAUSE * 2**attempt * random.uniform(0.75, 1.25)
    time.sleep(min(seconds, 60))


class ElasticsearchIndex(Index):
    def __init__(self, server: Server, name: str, passages: int) -> None:
        self.server, self.name, self.passages = server, name, passages

    def search(self, words: list[str], top_k: int) -> list[tuple[str, float]]:
        return self.search_many([words], top_k)[0]

    def search_many(self, queries: list[list[str]], top_k: int) -> list[list[tuple[str, float]]]:
        if top_k > _WINDOW:
            raise InputError(f"--top-k {top_k}: a search of Elasticsearch gives at most {_WINDOW} passages")
        found: list[list[tuple[str, float]]] = [[] for _ in queries]
        limits = {number: min(top_k + 10, _WINDOW) for number, words in enumerate(queries) if words}
        attempt = 0
        while limits:
            lines = (line for number, size in limits.items() for line in ({}, _query(queries[number], size)))
            body = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
            answer = self.server.must("POST", f"/{self.name}/_msearch", body)
            busy = False
            for (number, size), response in zip(list(limits.items()), answer["responses"], strict=True):
                if "error" in response:
                    busy = self._fail_unless_busy(response, attempt)
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

    def build(self, release: Release, corpus: str, workers: int, key: dict[str, Any], k1: float, b: float) -> None:
        """Create the index and fill it; ``workers`` processes segment, as many threads send."""
        analysis = {
            # Lucene's longest term has 32,766 bytes.
            "tokenizer": {"tokens": {"type": "whitespace", "max_token_length": 8_000}},
            "analyzer": {"tokens": {"type": "custom", "tokenizer": "tokens"}},
        }
        settings = {
            "number_of_shards": 1,
            "refresh_interval": "-1",
            "max_result_window": _WINDOW,
            "analysis": analysis,
            "similarity": {"tokens": {"type": "BM25", "k1": k1, "b": b}},
        }
        text = {"type": "text", "analyzer": "tokens", "similarity": "tokens", "index_options": "freqs"}
        properties = {"id": {"type": "keyword", "index": False}, "text": text}
        mappings = {"dynamic": "strict", "_meta": {"key": key, "whole": False}, "_source": {"enabled": False}}
        mappings["properties"] = properties
        self.server.must("PUT", f"/{self.name}", {"settings": {"index": settings}, "mappings": mappings})
        rows = chain.from_iterable(
            batch.column("_id").to_pylist() for batch in release.batches(corpus, "corpus", ["_id"])
        )
        for _ in in_threads(
            self._send, _bulks(zip(rows, token_strings(release, corpus, workers), strict=True)), workers
        ):
            pass
        self.server.must("POST", f"/{self.name}/_refresh")
        count = self.count()
        if count != self.passages:
            raise InputError(f"{self.server.address}: {self.name} has {count} passages where {self.passages} were sent")
        self.server.must("PUT", f"/{self.name}/_settings", {"index": {"refresh_interval": None}})
        self.server.must("PUT", f"/{self.name}/_mapping", {"_meta": {"key": key, "whole": True}})

    def count(self) -> int:
        return int(self.server.must("GET", f"/{self.name}/_count")["count"])

    def _send(self, lines: list[bytes]) -> None:
        """One bulk request; passages that a busy server turned down are sent again."""
        for attempt in range(_TRIES):
            answer = self.server.must("POST", f"/{self.name}/_bulk", b"".join(lines))
            left = []
            for line, item in zip(lines, answer["items"], strict=True):
                result = item["create"]
                # 409: there already, from a request whose answer was lost.
                if result["status"] >= 300 and result["status"] != 409:
                    self._fail_unless_busy(result, attempt)
                    left.append(line)
            if not left:
                return
            lines = left
            pause(attempt)

    def _fail_unless_busy(self, result: dict[str, Any], attempt: int) -> bool:
        if result["status"] not in _BUSY or attempt == _TRIES - 1:
            reason = result["error"].get("reason", "") if isinstance(result["error"], dict) else result["error"]
            raise InputError(f"{self.server.address}: {self.name}: HTTP {result['status']}: {reason}")
        return True


def _query(words: list[str], size: int) -> dict[str, Any]:
    return {
        "query": {"match": {"text": {"query": " ".join(words)}}},
        "size": size,
        "sort": [{"_score": "desc"}, {"id": "asc"}],
        "track_total_hits": False,
    }


def _bulks(passages: Iterator[tuple[str, str]]) -> Iterator[list[bytes]]:
    """The (corpus id, tokens) pairs as the lines of requests of some _BULK bytes."""
    lines, size = [], 0
    for row, (corpus_id, text) in enumerate(passages):
        document = json.dumps({"id": corpus_id, "text": text}, ensure_ascii=False)
        lines.append(f'{{"create": {{"_id": "{row}"}}}}\n{document}\n'.encode())
        size += len(lines[-1])
        if size >= _BULK:
            yield lines
            lines, size = [], 0
    if lines:
        yield lines


def open_remote(
    release: Release, address: str, workers: int, corpus: str = "corpus", k1: float = K1, b: float = B
) -> ElasticsearchIndex:
    """The server's index of a release's corpus config, built where it is missing or not whole."""
    server = Server(address)
    server.check()
    key = {**index_key(release, corpus, "elasticsearch 1"), "k1": k1, "b": b}
    index = ElasticsearchIndex(server, f"dureader-retrieval-{key_of(key)}", release.rows(corpus, "corpus"))
    there = server.call("GET", f"/{index.name}/_mapping")
    if there is not None:
        meta = next(iter(there.values()))["mappings"].get("_meta")
        if meta == {"key": key, "whole": True} and index.count() == index.passages:
            log.info("BM25 index reused: %s/%s (%d passages)", server.address, index.name, index.passages)
            return index
        log.warning("%s/%s is not whole; it is built again", server.address, index.name)
        server.call("DELETE", f"/{index.name}")
    index.build(release, corpus, workers, key, k1, b)
    log.info("BM25 index built: %s/%s (%d passages)", server.address, index.name, index.passages)
    return index
