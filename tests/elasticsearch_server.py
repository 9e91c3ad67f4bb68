"""A loopback Elasticsearch with the endpoints that the engine uses, strict validation, and faults on demand."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from bm25_corpora import lucene_scores
from loopback import Handler, Loopback


@dataclass
class Fault:
    """``action``: an HTTP status, "lose" (request done, response lost), or "items" (every second item gets a 429)."""

    pattern: str  # matches "METHOD /path"
    action: int | str
    times: int = 1


@dataclass
class Stored:
    """An index with its documents by row. A refresh copies the documents from ``waiting`` to ``shown``."""

    settings: dict[str, Any]
    mappings: dict[str, Any]
    waiting: dict[str, dict[str, str]] = field(default_factory=dict)
    shown: dict[str, dict[str, str]] = field(default_factory=dict)


class Elasticsearch(Loopback):
    """A server with indexes in memory.

    Attributes:
        about: the answer to ``GET /``.
        product: True to send the header of the official product, without which the official client refuses a server.
        indexes: the indexes by name.
        requests: "METHOD /path" of every request so far.
        faults: the faults to come.
        authorization: the Authorization header that every request must have (None: any).
    """

    def __init__(self, about: Any = None, product: bool = True) -> None:
        super().__init__(_Handler)
        self.about = {"version": {"number": "9.1.0"}} if about is None else about
        self.product = product
        self.indexes: dict[str, Stored] = {}
        self.requests: list[str] = []
        self.faults: list[Fault] = []
        self.authorization: str | None = None

    def fault(self, request: str) -> int | str | None:
        """Return the action of the first fault that matches the request, and use the fault up once."""
        for fault in self.faults:
            if fault.times and re.fullmatch(fault.pattern, request):
                fault.times -= 1
                return fault.action
        return None


def _scores(index: Stored, words: list[str]) -> dict[str, float]:
    """Return the scores of the rows with a word of the query, in the precision of Lucene."""
    similarity_name = index.mappings["properties"]["text"]["similarity"]
    similarity = index.settings["index"]["similarity"][similarity_name]
    assert similarity["type"] == "BM25"
    corpus = {row: document["text"].split() for row, document in index.shown.items()}
    scores = lucene_scores(corpus, words, similarity["k1"], similarity["b"])
    return {row: float(np.float32(score)) for row, score in scores.items()}


class _Handler(Handler):
    """Answers each request from the server's indexes, or with the next fault."""

    def serve(self) -> None:
        self.path = self.path.partition("?")[0]
        server = self.server
        request = f"{self.command} {self.path}"
        body = self.read()
        # The client sends requests in parallel.
        with server.lock:
            server.requests.append(request)
            action = server.fault(request)
            if isinstance(action, int):
                status = action
                content = {"error": {"type": "fault", "reason": "asked for"}, "status": status}
            elif server.authorization and self.headers.get("Authorization") != server.authorization:
                status = 401
                content = {"error": {"reason": "missing authentication credentials"}, "status": status}
            else:
                status, content = self._answer(body, action)
            # The request was done, and the client does not learn this.
            if action == "lose":
                self.close_connection = True
                return
        headers = {"X-Elastic-Product": "Elasticsearch"} if server.product else {}
        self.reply(status, json.dumps(content).encode(), headers)

    def _answer(self, body: bytes, action: int | str | None) -> tuple[int, Any]:
        """Return status and content of the answer to this request."""
        indexes = self.server.indexes
        if self.path == "/":
            return 200, self.server.about
        path_parts = self.path.split("/")
        name = path_parts[1]
        endpoint = path_parts[2] if len(path_parts) > 2 else ""
        if (self.command, endpoint) == ("PUT", ""):
            indexes[name] = Stored(**json.loads(body))
            return 200, {"acknowledged": True}
        if (self.command, endpoint) == ("DELETE", ""):  # because of ignore_unavailable
            indexes.pop(name, None)
            return 200, {"acknowledged": True}
        if name not in indexes:
            return 404, {"error": {"reason": f"no such index [{name}]"}, "status": 404}
        return self._answer_from_index(name, endpoint, body, action)

    def _answer_from_index(self, name: str, endpoint: str, body: bytes, action: int | str | None) -> tuple[int, Any]:
        """Return status and content of the answer to a request of an index. ``endpoint``: the path after its name."""
        index = self.server.indexes[name]
        route = (self.command, endpoint)
        if route == ("HEAD", ""):
            return 200, {}
        elif route == ("GET", "_mapping"):
            return 200, {name: {"mappings": index.mappings}}
        elif route == ("PUT", "_mapping"):
            index.mappings |= json.loads(body)
        elif route == ("PUT", "_settings"):
            index.settings["index"] |= json.loads(body)["index"]
        elif route == ("POST", "_refresh"):
            # Documents can be found only after a refresh.
            index.shown = dict(index.waiting)
        elif route == ("POST", "_count"):
            return 200, {"count": len(index.shown)}
        elif route == ("PUT", "_bulk"):
            return 200, self._bulk(index, body, action)
        elif route == ("POST", "_msearch"):
            return 200, self._msearch(index, body)
        else:
            return 405, {"error": f"Incorrect HTTP method for uri [{self.path}] and method [{self.command}]"}
        return 200, {"acknowledged": True}

    def _read_pairs(self, body: bytes) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Read the pairs of lines of a bulk request: a head, and its document or query."""
        assert "x-ndjson" in self.headers["Content-Type"]
        assert body.endswith(b"\n")
        objects = [json.loads(line) for line in body.splitlines()]
        return list(zip(objects[::2], objects[1::2], strict=True))

    def _bulk(self, index: Stored, body: bytes, action: int | str | None) -> Any:
        """Store documents. They can be searched after a refresh."""
        items: list[dict[str, Any]] = []
        for number, (head, document) in enumerate(self._read_pairs(body)):
            row = head["index"]["_id"]
            item = {"_id": row, "status": 201}
            if action == "items" and number % 2:
                item["status"] = 429
                item["error"] = {"type": "es_rejected_execution_exception", "reason": "queue is full"}
            elif document.keys() - index.mappings["properties"].keys():
                item["status"] = 400
                item["error"] = {"type": "strict_dynamic_mapping_exception", "reason": "unknown field"}
            else:
                index.waiting[row] = document
            items.append({"index": item})
        return {"errors": any("error" in item["index"] for item in items), "items": items}

    def _msearch(self, index: Stored, body: bytes) -> Any:
        """Search an index for several queries."""
        responses: list[dict[str, Any]] = []
        for _, query in self._read_pairs(body):
            # Elasticsearch refuses larger windows than the index allows.
            assert query["size"] <= index.settings["index"]["max_result_window"]
            assert query["sort"] == [{"_score": "desc"}, {"id": "asc"}]
            query_words = query["query"]["match"]["text"]["query"].split()
            # Sort by falling score, and by id among equal scores.
            sort_keys = []
            for row, score in _scores(index, query_words).items():
                sort_keys.append((-score, index.shown[row]["id"]))
            sort_keys.sort()
            hits = []
            for negative_score, passage_id in sort_keys[: query["size"]]:
                hits.append({"_score": None, "sort": [-negative_score, passage_id]})
            responses.append({"status": 200, "hits": {"hits": hits}})
        return {"responses": responses}
