"""A loopback server with the part of OpenAI's chat API that `prefill` uses."""

import json
from collections.abc import Callable
from typing import Any

from loopback import Handler, Loopback

Answer = str | int  # the model's reply, or an HTTP status


class Chat(Loopback):
    """A server whose model replies to a prompt with ``answer(prompt)``.

    ``asked``: the body and the Authorization header of every request.
    """

    def __init__(self, answer: Callable[[str], Answer]) -> None:
        super().__init__(_Handler)
        self.url += "/v1"
        self.answer = answer
        self.asked: list[tuple[dict[str, Any], str]] = []

    @property
    def prompts(self) -> list[str]:
        return [sent["messages"][0]["content"] for sent, _ in self.asked]


class _Handler(Handler):
    def serve(self) -> None:
        sent = json.loads(self.read())
        self.server.asked.append((sent, self.headers.get("Authorization", "")))
        found = self.server.answer(sent["messages"][0]["content"])
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": found}}
        content = json.dumps({"choices": [choice]}).encode()
        self.reply(found if isinstance(found, int) else 200, content, {"retry-after-ms": "1"})
