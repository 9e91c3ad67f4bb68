"""Requests to a service that answers JSON with JSON, for example a service of embeddings.

A busy service (such as 429) or a failing one (such as 502) is asked again. The waits grow from one second, or are as
long as the service's Retry-After says. All threads wait together, because the limits of a service count for all of
them.

The key is in ENDPOINT_API_KEY. OPENAI_API_KEY is only used for api.openai.com and for the host of OPENAI_BASE_URL, so
that no other service gets this key. Redirects are not followed, because another host would get the texts and the key.
"""

import datetime
import email.utils
import os
import random
import threading
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from builders.core.endpoint import answer_seconds
from builders.core.errors import InputError, Unfinished, UsageError, log
from builders.core.redaction import quote_reply, register_secret, without_credentials
from builders.core.reply_limits import ReplyLimits, http_library_of, limit_replies

_OPENAI_HOST = "api.openai.com"
_BUSY = (429, 503, 529)
_PASSING = (408, 425, *_BUSY, 500, 502, 504)
_ATTEMPTS = 8  # of a request to a busy service or an unreachable one: waits of 2 minutes in all
_ATTEMPTS_AFTER_FAULT = 4  # of a request that a service answers with 500, which a text may cause
_ATTEMPTS_AFTER_TIMEOUT = 3  # of a request with one text
_LONGEST_WAIT = 60.0  # seconds between two attempts, without Retry-After
_LONGEST_RETRY_AFTER = 600.0  # seconds; for a longer wait, the user starts the command again
# A shorter request may succeed: a text may be too long or wrong, or all texts together may be too long.
_MAY_BE_SPLIT = (400, 413, 422, 500)
_LONGEST_QUOTE = 300  # characters of a reply in an error
# Characters of a number in Retry-After; more digits are far beyond the longest wait.
_LONGEST_NUMBER = 20
_FIRST_REDIRECT = 300
_FIRST_ERROR = 400


class RequestFailed(Unfinished):
    """A request that a service refused, or that failed too often.

    ``may_be_split``: a part of the request may succeed. ``status``: the HTTP status, 0 if no answer came in time.
    """

    def __init__(self, message: str, *, path: str, may_be_split: bool, status: int) -> None:
        super().__init__(message, path=path)
        self.may_be_split = may_be_split
        self.status = status


@dataclass(frozen=True)
class ServiceReply:
    """The content of an answer, and the seconds from the last attempt's request to the end of the answer."""

    content: bytes
    seconds: float


def check_address(address: str, option: str = "--endpoint") -> None:
    """Raise :class:`UsageError`, which names ``option``, for a text that is no address of a service."""
    try:
        parts = urlsplit(address)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        parts.port  # noqa: B018 (raises ValueError for a wrong port)
    except ValueError:
        is_address = False
    if not is_address or not address.isascii() or not address.isprintable() or " " in address:
        raise UsageError(f"{option}: expected an address like http://localhost:8000/v1")


def api_key_for(address: str) -> str:
    """Return the key for the service at ``address``, or "" if the environment has none for this service.

    ENDPOINT_API_KEY is for every service, OPENAI_API_KEY only for OpenAI's and for the host of OPENAI_BASE_URL.
    Raises :class:`InputError` for a key that no header can have.
    """
    variable = "ENDPOINT_API_KEY"
    if not os.environ.get(variable, "").strip():
        variable = "OPENAI_API_KEY"
        base_url = os.environ.get("OPENAI_BASE_URL", "").strip()
        if urlsplit(address).netloc not in (_OPENAI_HOST, urlsplit(base_url).netloc):
            return ""
    api_key = os.environ.get(variable, "").strip()
    if not api_key.isascii() or not api_key.isprintable():
        raise InputError(f"{variable}: expected ASCII characters without line ends")
    return api_key


class ApiService:
    """A service at an address.

    Args:
        address: the address of requests. A user and a password in the address are used, and never shown.
        reply_bytes: largest size of an answer.

    Attributes:
        url: the address without credentials, for messages and records.
    """

    def __init__(self, address: str, reply_bytes: int) -> None:
        import openai

        register_secret(address)
        self._address = address
        self.url = without_credentials(address)
        self._headers = {}
        api_key = api_key_for(address)
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        seconds = answer_seconds()
        client = openai.DefaultHttpxClient(timeout=seconds, follow_redirects=False)
        self._http_library = http_library_of(client)
        self._client = limit_replies(client, ReplyLimits(seconds=seconds, size=reply_bytes))
        self._pause_lock = threading.Lock()
        self._pause_end = 0.0  # until this time of time.monotonic(), no thread sends a request

    def post(self, body: dict[str, Any], *, may_be_split: bool) -> ServiceReply:
        """Send ``body`` as JSON and return the answer. Busy, failing and unreachable services are asked again.

        ``may_be_split``: the caller can send the request in parts. Such a request fails at once if no answer comes in
        time, because a shorter request is faster.

        Raises :class:`RequestFailed` for a request that is refused or answered by an error at the last attempt, and
        :class:`Unfinished` for a service that cannot be reached or asks for a long wait.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            self._wait_for_pause()
            start_time = time.monotonic()
            try:
                response = self._client.post(self._address, json=body, headers=self._headers)
            except self._http_library.InvalidURL:
                raise InputError("is no address of a service", path=self.url) from None
            except self._http_library.HTTPError as error:
                reason = quote_reply(str(error) or type(error).__name__, _LONGEST_QUOTE)
                is_late = isinstance(error, self._http_library.TimeoutException)
                if is_late and may_be_split:
                    raise RequestFailed(reason, path=self.url, may_be_split=True, status=0) from None
                last_attempt = _ATTEMPTS_AFTER_TIMEOUT if is_late else _ATTEMPTS
                # The limit may be passed already, because earlier attempts may have failed for another reason.
                if attempt >= last_attempt:
                    problem = f"cannot be reached ({reason}); run the same command again"
                    raise Unfinished(problem, path=self.url) from None
                self._pause(attempt, None, reason)
                continue
            status = response.status_code
            if status < _FIRST_REDIRECT:
                return ServiceReply(bytes(response.content), time.monotonic() - start_time)
            if status < _FIRST_ERROR:
                raise self._redirect_error(response)
            reason = f"answered {status} ({quote_reply(response.text, _LONGEST_QUOTE)})"
            last_attempt = _ATTEMPTS if status in _BUSY else _ATTEMPTS_AFTER_FAULT
            if status not in _PASSING or attempt >= last_attempt:
                raise RequestFailed(reason, path=self.url, may_be_split=status in _MAY_BE_SPLIT, status=status)
            self._pause(attempt, response.headers.get("Retry-After"), reason)
        raise AssertionError("the last attempt returns or raises")

    def _wait_for_pause(self) -> None:
        """Sleep until the pause of all threads ends. Another thread may make the pause longer meanwhile."""
        while True:
            with self._pause_lock:
                seconds = self._pause_end - time.monotonic()
            if seconds <= 0:
                return
            time.sleep(seconds)

    def _pause(self, attempt: int, retry_after: str | None, reason: str) -> None:
        """Make all threads wait, longer after each failed ``attempt`` (1 is the first), or as ``retry_after`` asks.

        ``retry_after`` is the header Retry-After. Raises :class:`Unfinished` if it asks for too long. ``reason`` is the
        failure, for messages.
        """
        # Random parts keep several commands from asking at the same moments.
        seconds = min(2.0 ** (attempt - 1), _LONGEST_WAIT) * random.uniform(0.75, 1.0)
        asked_seconds = _seconds_of(retry_after)
        if asked_seconds is not None:
            if asked_seconds > _LONGEST_RETRY_AFTER:
                problem = f"{reason}, and asks to wait {asked_seconds:,.0f} seconds; run the same command again later"
                raise Unfinished(problem, path=self.url)
            seconds = asked_seconds
        log.info("%s: %s; asking again in %.1f s", self.url, reason, seconds)
        with self._pause_lock:
            self._pause_end = max(self._pause_end, time.monotonic() + seconds)

    def _redirect_error(self, response: Any) -> InputError:
        """Return the error for a redirect, which is not followed."""
        # The parameters of the new address may contain a secret.
        new_address = quote_reply(without_credentials(response.headers.get("Location", "")), _LONGEST_QUOTE)
        problem = f"answered {response.status_code}, a redirect to {new_address or 'no address'}"
        return InputError(f"{problem}; if this service is right, name it by --endpoint", path=self.url)


def _seconds_of(retry_after: str | None) -> float | None:
    """Return the seconds that a Retry-After header asks for: a number or a date. None for no header, or a wrong one."""
    if retry_after is None:
        return None
    text = retry_after.strip()
    # Digits, with at most one point.
    is_number = text.isascii() and text.replace(".", "", 1).isdecimal()
    if is_number:
        return float(text[:_LONGEST_NUMBER])
    try:
        retry_time = email.utils.parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if retry_time.tzinfo is None:
        retry_time = retry_time.replace(tzinfo=datetime.UTC)
    return max(0.0, (retry_time - datetime.datetime.now(datetime.UTC)).total_seconds())
