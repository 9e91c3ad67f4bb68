"""Client of an endpoint with OpenAI's chat API, for example a commercial service, vLLM, Ollama or llama.cpp.

The environment variable OPENAI_BASE_URL must contain the address. Queries and passages are sent only to this address.
OPENAI_API_KEY contains the key; a local server may need no key. OpenAI's own library reads the same two variables.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import msgspec

from builders.core.errors import InputError, Unfinished
from builders.core.progress import progress
from builders.core.typed import json_of

_SECONDS, _RETRIES = 120, 5  # for one request


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    message: _Message


class _Completion(msgspec.Struct, frozen=True):
    choices: list[_Choice]


def text_in(content: bytes, where: str) -> str:
    """Return the text of a chat completion. Raises :class:`InputError` if ``content`` is not a chat completion."""
    found = json_of(content, _Completion, where)
    if not found.choices:
        raise InputError("the answer has no choices; expected a chat completion", path=where)
    return found.choices[0].message.content or ""


class Endpoint:
    """A model behind the endpoint in OPENAI_BASE_URL."""

    def __init__(self, model: str, otherwise: str = ", or --scores RUN") -> None:
        """Raises :class:`InputError` if OPENAI_BASE_URL has no address. ``otherwise`` is added to the error message."""
        from openai import OpenAI

        self.url, self.model = os.environ.get("OPENAI_BASE_URL", "").strip(), model
        if not self.url.startswith(("http://", "https://")):
            raise InputError(f"expected an address in OPENAI_BASE_URL (http://localhost:8000/v1){otherwise}")
        key = os.environ.get("OPENAI_API_KEY", "").strip() or "none"
        self._client = OpenAI(base_url=self.url, api_key=key, timeout=_SECONDS, max_retries=_RETRIES)

    def answer(self, prompt: str) -> str:
        """Return the model's answer. OpenAI's library retries if the server is busy or fails.

        Raises :class:`InputError` for a rejected request, and :class:`Unfinished` if a later request may succeed.
        """
        import openai

        try:
            answer = self._client.chat.completions.with_raw_response.create(
                model=self.model, messages=[{"role": "user", "content": prompt}], temperature=0, top_p=1
            )
        except openai.APIStatusError as error:
            text = " ".join(error.response.text.split())[:300]
            kind = Unfinished if error.status_code == 429 or error.status_code >= 500 else InputError
            raise kind(f"answered {error.status_code} ({text})", path=self.url) from None
        except openai.APIConnectionError as error:
            raise Unfinished(f"cannot be reached ({error}); run the same command again", path=self.url) from None
        return text_in(bytes(answer.http_response.content), self.url)

    def ask_all(self, prompts: Sequence[str], keep: Callable[[int, str], None], parallel: int, label: str) -> None:
        """Ask ``parallel`` prompts at a time. Call ``keep(number, answer)`` for each answer as it comes, one at a time.

        ``number`` is the prompt's place in ``prompts``. Raises the errors of :meth:`answer`.
        """
        pool = ThreadPoolExecutor(parallel)
        with progress(total=len(prompts), unit="answer", label=label) as bar:
            try:
                asked = {pool.submit(self.answer, prompt): number for number, prompt in enumerate(prompts)}
                for done in as_completed(asked):  # so that one slow answer does not delay the others
                    keep(asked[done], done.result())
                    bar.update(1)
            finally:
                pool.shutdown(cancel_futures=True)
