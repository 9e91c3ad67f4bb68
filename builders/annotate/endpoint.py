"""An endpoint that speaks OpenAI's chat API: a company's, or vLLM, Ollama, llama.cpp on one's own machine.

Address and key come from the environment, by the names that OpenAI's own library reads: OPENAI_BASE_URL, which must be
set (queries and passages are sent there, and nowhere else), and OPENAI_API_KEY, which one's own server may not need.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from builders.core.errors import InputError, Unfinished
from builders.core.typed import json_of

_SECONDS, _RETRIES = 120, 5


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    message: _Message


class _Completion(msgspec.Struct, frozen=True):
    choices: list[_Choice]


def text_in(content: bytes, where: str) -> str:
    """The text of a chat completion; :class:`InputError` where an answer is none."""
    found = json_of(content, _Completion, where)
    if not found.choices:
        raise InputError("answered with no choice; expected a chat completion", path=where)
    return found.choices[0].message.content or ""


class Endpoint:
    """The endpoint that the environment names, and the model that is asked there."""

    def __init__(self, model: str, otherwise: str = ", or --scores RUN") -> None:
        """:class:`InputError` where the environment names none.

        ``otherwise``: what else the user may give; ends the error.
        """
        from openai import OpenAI

        self.url, self.model = os.environ.get("OPENAI_BASE_URL", "").strip(), model
        if not self.url.startswith(("http://", "https://")):
            raise InputError(f"expected an address in OPENAI_BASE_URL (http://localhost:8000/v1){otherwise}")
        key = os.environ.get("OPENAI_API_KEY", "").strip() or "none"
        self._client = OpenAI(base_url=self.url, api_key=key, timeout=_SECONDS, max_retries=_RETRIES)

    def answer(self, prompt: str) -> str:
        """Return the model's answer. The library tries again where the server is busy or fails.

        Raises :class:`InputError` for a refusal, :class:`Unfinished` where the same may succeed later.
        """
        import openai

        messages: list[Any] = [{"role": "user", "content": prompt}]
        try:
            ask = self._client.chat.completions.with_raw_response.create
            found = ask(model=self.model, messages=messages, temperature=0, top_p=1)
            content = bytes(found.http_response.content)
        except openai.APIStatusError as error:
            said = " ".join(error.response.text.split())[:300]
            kind = Unfinished if error.status_code == 429 or error.status_code >= 500 else InputError
            raise kind(f"answered {error.status_code} ({said})", path=self.url) from None
        except openai.APIConnectionError as error:
            raise Unfinished(f"cannot be reached ({error}); what was judged is kept", path=self.url) from None
        return text_in(content, self.url)
