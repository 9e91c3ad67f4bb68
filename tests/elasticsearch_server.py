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
    settings: dict[str, Any]
    mappings: dict[str, Any]
    waiting: dict[str, dict[str, str]] = field(default_factory=dict)
    shown: dict[str, dict[str, str]] = field(default_factory=dict)


class Elasticsearch(Loopback):
    def __init__(self, about: Any = None, product: bool = True) -> None:
        super().__init__(_Handler)
        self.about = {"version": {"number": "9.1.0"}} if about is None else about
        self.product = product  # the official client requires this header in every response
        self.indexes: dict[str, Stored] = {}
        self.requests: list[str] = []
        self.faults: list[Fault] = []
        self.authorization: str | None = None

    def fault(self, request: str) -> int | str | None:
        for fault in self.faults:
            if fault.times and re.fullmatch(fault.pattern, request):
                fault.times -= 1
                return fault.action
        return None


def _scores(index: Stored, words: list[str]) -> dict[str, float]:
    similarity = index.settings["index"]["similarity"][index.mappings["properties"]["text"]["similarity"]]
    assert similarity["type"] == "BM25"
    corpus = {row: document["text"].split() for row, document in index.shown.items()}
    scores = lucene_scores(corpus, words, similarity["k1"], similarity["b"])
    return {row: float(np.float32(score)) for row, score in scores.items()}


class _Handler(Handler):
    def serve(self) -> None:
        self.path = self.path.partition("?")[0]
        state, request, body = self.server, f"{self.command} {self.path}", self.read()
        with state.lock:
            state.requests.append(request)
            action = state.fault(request)
            if isinstance(action, int):
                status, content = action, {"error": {"type": "fault", "reason": "asked for"}, "status": action}
            elif state.authorization and self.headers.get("Authorization") != state.authorization:
                status, content = 401, {"error": {"reason": "missing authentication credentials"}, "status": 401}
            else:
                status, content = self._answer(body, action)
            if action == "lose":
                self.close_connection = True
                return
        product = {"X-Elastic-Product": "Elasticsearch"} if state.product else {}
        self.reply(status, json.dumps(content).encode(), product)

    def _answer(self, body: bytes, action: int | str | None) -> tuple[int, Any]:
        state = self.server
        if self.path == "/":
            return 200, state.about
        _, name, *rest = self.path.split("/")
        what = (self.command, rest[0] if rest else "")
        if what == ("PUT", ""):
            state.indexes[name] = Stored(**json.loads(body))
        elif what == ("DELETE", ""):  # because of ignore_unavailable
            state.indexes.pop(name, None)
        elif (index := state.indexes.get(name)) is None:
            return 404, {"error": {"reason": f"no such index [{name}]"}, "status": 404}
        elif what == ("HEAD", ""):
            return 200, {}
        elif what == ("GET", "_mapping"):
            return 200, {name: {"mappings": index.mappings}}
        elif what == ("PUT", "_mapping"):
            index.mappings |= json.loads(body)
        elif what == ("PUT", "_settings"):
            index.settings["index"] |= json.loads(body)["index"]
        elif what == ("POST", "_refresh"):
            index.shown = dict(index.waiting)
        elif what == ("POST", "_count"):
            return 200, {"count": len(index.shown)}
        elif what == ("PUT", "_bulk"):
            return 200, self._bulk(index, body, action)
        elif what == ("POST", "_msearch"):
            return 200, self._msearch(index, body)
        else:
            return 405, {"error": f"Incorrect HTTP method for uri [{self.path}] and method [{self.command}]"}
        return 200, {"acknowledged": True}

    def _lines(self, body: bytes) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        assert "x-ndjson" in self.headers["Content-Type"]
        assert body.endswith(b"\n")
        lines = [json.loads(line) for line in body.splitlines()]
        return list(zip(lines[::2], lines[1::2], strict=True))

    def _bulk(self, index: Stored, body: bytes, action: int | str | None) -> Any:
        items: list[dict[str, Any]] = []
        for number, (head, document) in enumerate(self._lines(body)):
            row, status, error = head["index"]["_id"], 201, None
            if action == "items" and number % 2:
                status, error = 429, {"type": "es_rejected_execution_exception", "reason": "queue is full"}
            elif document.keys() - index.mappings["properties"].keys():
                status, error = 400, {"type": "strict_dynamic_mapping_exception", "reason": "unknown field"}
            else:
                index.waiting[row] = document
            items.append({"index": {"_id": row, "status": status} | ({"error": error} if error else {})})
        return {"errors": any("error" in item["index"] for item in items), "items": items}

    def _msearch(self, index: Stored, body: bytes) -> Any:
        responses: list[dict[str, Any]] = []
        for _, query in self._lines(body):
            assert query["size"] <= index.settings["index"]["max_result_window"]
            assert query["sort"] == [{"_score": "desc"}, {"id": "asc"}]
            scores = _scores(index, query["query"]["match"]["text"]["query"].split())
            found = sorted((-score, index.shown[row]["id"]) for row, score in scores.items())[: query["size"]]
            hits = [{"_score": None, "sort": [-score, corpus_id]} for score, corpus_id in found]
            responses.append({"status": 200, "hits": {"hits": hits}})
        return {"responses": responses}
