"""Client of an endpoint with OpenAI's chat API, for example a commercial service, vLLM, Ollama or llama.cpp.

The environment variable OPENAI_BASE_URL must contain the address. Queries and passages are sent only to this address.
OPENAI_API_KEY contains the key; a local server may need no key. OpenAI's own library reads the same two variables.
Answers have limits of time and size (:data:`LIMITS`). OPENAI_TIMEOUT sets another time, in seconds, for example for a
model that thinks for minutes. The key never appears in errors, logs and answers.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from builders.core.errors import InputError, Unfinished
from builders.core.progress import show_progress
from builders.core.redaction import hide_known, quote_reply, without_credentials
from builders.core.reply_limits import ReplyLimits, in_daemon_threads, limit_replies
from builders.core.typed import json_of

LIMITS = ReplyLimits(seconds=120, size=16 << 20)  # of one answer
_LONGEST_SECONDS = 86_400  # a larger number is probably milliseconds
_RETRIES = 5  # of one request
_TOO_MANY_REQUESTS = 429
_FIRST_SERVER_ERROR = 500
_LONGEST_QUOTE = 300  # characters of a reply in an error


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    message: _Message


class _Completion(msgspec.Struct, frozen=True):
    choices: list[_Choice]


def text_in(reply_content: bytes, shown_address: str) -> str:
    """Return the text of a chat completion, "" for one without text. ``shown_address`` is for error messages.

    Raises :class:`InputError` for a reply that is not a chat completion.
    """
    completion = json_of(reply_content, _Completion, shown_address)
    if not completion.choices:
        raise InputError("the answer has no choices; expected a chat completion", path=shown_address)
    return completion.choices[0].message.content or ""


def answer_seconds() -> float:
    """Return the time limit of one answer: OPENAI_TIMEOUT, or that of :data:`LIMITS`.

    Raises :class:`InputError` if OPENAI_TIMEOUT is no positive number, or a day or longer.
    """
    text = os.environ.get("OPENAI_TIMEOUT", "").strip()
    if not text:
        return LIMITS.seconds
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0  # refused below, like other numbers out of range
    if not 0 < seconds < _LONGEST_SECONDS:
        raise InputError(f"OPENAI_TIMEOUT: expected seconds above 0 and below {_LONGEST_SECONDS:,}, found {text!r}")
    return seconds


class Endpoint:
    """A model behind the endpoint in OPENAI_BASE_URL."""

    def __init__(self, model: str, otherwise: str = ", or --scores RUN") -> None:
        """Set up the client; no request is sent. Raises :class:`InputError` if OPENAI_BASE_URL has no address.

        ``otherwise`` ends the error message, and names an option that needs no endpoint.
        """
        import openai

        self.model = model
        address = os.environ.get("OPENAI_BASE_URL", "").strip()
        if not address.startswith(("http://", "https://")):
            raise InputError(f"expected an address in OPENAI_BASE_URL (http://localhost:8000/v1){otherwise}")
        self.url = without_credentials(address)
        # The library requires a key.
        api_key = os.environ.get("OPENAI_API_KEY", "").strip() or "none"
        limits = replace(LIMITS, seconds=answer_seconds())
        http_client = openai.DefaultHttpxClient(base_url=address, timeout=limits.seconds)
        self._client = openai.OpenAI(
            base_url=address,
            api_key=api_key,
            timeout=limits.seconds,
            max_retries=_RETRIES,
            http_client=limit_replies(http_client, limits),
        )

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
            status = error.status_code
            reply_text = quote_reply(error.response.text, _LONGEST_QUOTE)
            # A busy or broken server may answer later. The request caused other errors.
            may_succeed_later = status == _TOO_MANY_REQUESTS or status >= _FIRST_SERVER_ERROR
            error_class = Unfinished if may_succeed_later else InputError
            raise error_class(f"answered {status} ({reply_text})", path=self.url) from None
        except openai.APIConnectionError as error:
            reason = quote_reply(str(error.__cause__ or error), _LONGEST_QUOTE)
            raise Unfinished(f"cannot be reached ({reason}); run the same command again", path=self.url) from None
        # A server may repeat the key in the answer, which callers store.
        return hide_known(text_in(bytes(answer.http_response.content), self.url))

    def ask_all(
        self, prompts: Sequence[str], keep_answer: Callable[[int, str], None], parallel: int, label: str
    ) -> None:
        """Ask ``parallel`` prompts at a time. Call ``keep_answer(number, answer)`` for each answer when it comes.

        ``number`` is the prompt's place in ``prompts``, from 0. The calls of ``keep_answer`` do not overlap. ``label``
        names the progress bar. Raises the errors of :meth:`answer`.
        """
        with show_progress(total=len(prompts), unit="answer", label=label) as bar:
            # The answers come in any order, so that one slow answer does not delay the others.
            for number, answer in in_daemon_threads(self.answer, prompts, parallel):
                keep_answer(number, answer)
                bar.update(1)
