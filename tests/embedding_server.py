"""A server on loopback of OpenAI's `/v1/embeddings`, and of `/v1/rerank` in the forms of Jina and TEI."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from loopback import Handler, Loopback

COUNTED_CHARACTERS = "高铁票手机水北京饺子冬天怎么"


def count_characters(text: str) -> list[float]:
    """Return the vector of a text: 1, and the counts of a few characters."""
    return [1.0, *(float(text.count(character)) for character in COUNTED_CHARACTERS)]


def score(query: str, text: str) -> float:
    """Return the score of a passage: the share of the query's characters that the passage has."""
    return len(set(query) & set(text)) / max(1, len(set(query)))


class EmbeddingServer(Loopback):
    """A server whose model answers with :func:`count_characters` and :func:`score`.

    Args:
        spoil: a function that changes the answer to a request (the body, the answer), or returns an HTTP status, or a
            status with headers, or bytes. None keeps the answer.
        is_tei: speak TEI's form of /rerank.

    Attributes:
        asked: the body, the Authorization header and the path of every request.
    """

    def __init__(self, spoil: Callable[[dict[str, Any], dict[str, Any]], Any] | None = None, *, is_tei: bool = False):
        super().__init__(_EmbeddingHandler)
        self.root = self.url
        self.url += "/v1"
        self.spoil = spoil
        self.is_tei = is_tei
        self.asked: list[tuple[dict[str, Any], str, str]] = []

    @property
    def texts(self) -> list[str]:
        """All texts of all requests, without the first two, which check the model."""
        texts = []
        for body, _, _ in self.asked:
            texts += body.get("input") or body.get("documents") or body["texts"]
        return texts[2:]

    def answer_to(self, body: dict[str, Any]) -> Any:
        """Return the answer to a request of embeddings or re-ranking, or an HTTP status for another request."""
        if "input" in body:
            return self._embed(body)
        field = "texts" if self.is_tei else "documents"
        if field not in body:
            return 422
        scores = [score(body["query"], text) for text in body[field]]
        order = sorted(range(len(scores)), key=lambda index: -scores[index])
        if self.is_tei:
            return [{"index": index, "score": scores[index]} for index in order]
        results = [{"index": index, "relevance_score": scores[index]} for index in order]
        return {"model": body["model"], "results": results, "usage": {"total_tokens": len(scores)}}

    def _embed(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the vectors of the texts of ``input``, cut to ``dimensions`` numbers, as numbers or in base64."""
        data = []
        for index, text in enumerate(body["input"]):
            vector: Any = count_characters(text)[: body.get("dimensions")]
            if body.get("encoding_format") == "base64":
                vector = base64.b64encode(np.array(vector, "<f4").tobytes()).decode()
            data.append({"object": "embedding", "index": index, "embedding": vector})
        data.reverse()  # the order of an answer means nothing
        tokens = sum(map(len, body["input"]))
        return {"object": "list", "data": data, "model": body["model"], "usage": {"total_tokens": tokens}}


class _EmbeddingHandler(Handler):
    def serve(self) -> None:
        body = json.loads(self.read())
        server: EmbeddingServer = self.server
        with server.lock:
            server.asked.append((body, self.headers.get("Authorization", ""), self.path))
        answer = server.answer_to(body)
        if server.spoil is not None and not isinstance(answer, int):
            spoilt = server.spoil(body, answer)
            answer = answer if spoilt is None else spoilt
        status = 200
        headers: dict[str, str] = {}
        if isinstance(answer, int):
            answer = (answer, {})
        if isinstance(answer, tuple):
            status, headers = answer
            # Services repeat keys in errors, and no output of the client may show them.
            secret = self.headers.get("Authorization", "")
            answer = {"error": {"message": f"no {secret}"}}
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.reply(status, content, headers)
