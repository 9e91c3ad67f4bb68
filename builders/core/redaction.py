"""Hide keys, tokens and passwords in texts that this project prints, logs or stores.

A server may repeat the headers of a request in its answer, and libraries put addresses with passwords into messages.
The errors and the log of :mod:`.errors` therefore pass through :func:`redact`.
"""

import base64
import binascii
import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit

MARK = "[redacted]"
_SHORTEST = 6  # characters of a secret; shorter values, such as "none", are placeholders and common words
_ENDING = r"(?:key|token|secret|password|passwd|pwd|signature|sig|credentials?|authorization)"
_SECRET_VARIABLE = re.compile(rf"(?:^|_)(?:API)?{_ENDING}$", re.IGNORECASE)
_ADDRESS_VARIABLE = re.compile(r"(?:URL|ENDPOINT|PROXY)$", re.IGNORECASE)
_PARAMETER = re.compile(rf"[?&;][\w.-]*{_ENDING}=", re.IGNORECASE)

# The name and value of a header or setting, perhaps as JSON inside of JSON, where quotes have backslashes.
_NAMED = re.compile(
    r"""((?:authorization|x-api-key|api[-_]?key|(?:access|auth|refresh|id|hf)[-_]token|password|passwd)
    \\*["']? \s* [:=] \s* \\*["']?
    (?:(?:bearer|basic|apikey|token|digest)\s+)?+)
    (?!\[redacted])[^\s"'\\,;&}<>]+""",
    re.IGNORECASE | re.VERBOSE,
)
_BEARER = re.compile(r"((?:Bearer|ApiKey|bearer|apikey)\s+)(?=\S*[\d_.-])[^\s\"'\\,;<>)]{6,}")
_BASIC = re.compile(r"((?:Basic|basic)\s+)([A-Za-z0-9+/]{6,}={0,2})")
# A password may have slashes. The lengths are limited, so that a hostile text takes little time.
_USER = re.compile(
    r"""([a-z][a-z0-9+.-]{0,20}://)(?:[^\s/?\#'"<>]{0,400}|[^\s'"<>]{0,100}?:[^\s'"<>]{0,200})@""", re.IGNORECASE
)
_QUERY = re.compile(rf"""({_PARAMETER.pattern})(?!\[redacted])[^&\s'"<>\#]+""", re.IGNORECASE)
# Keys that are recognised by their first characters: Hugging Face, OpenAI, GitHub, GitLab, Amazon, Google, Slack, JWT.
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{10,}|api_org_\w{10,}|sk-[\w-]{10,}|gh[pousr]_\w{20,}|glpat-[\w-]{15,}|AKIA[0-9A-Z]{16}|"
    r"AIza[\w-]{30,}|xox[baprs]-[\w-]{10,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
_registered: set[str] = set()  # secrets of this process that no environment variable has


def register_secret(secret: str) -> None:
    """Hide a secret that does not come from an environment variable, for example the password of an option."""
    _registered.update(_secrets_of_address(secret) if "://" in secret else [secret])


def redact(text: str) -> str:
    """Return ``text`` with a mark in place of keys, tokens and passwords.

    Secrets are recognised by their values in the environment, by the names of headers and parameters, and by shapes of
    keys. Redact a text before cutting it, because half a key is not recognised.
    """
    text = hide_known(text)
    text = _USER.sub(rf"\1{MARK}@", text)
    text = _QUERY.sub(rf"\1{MARK}", text)
    text = _NAMED.sub(rf"\1{MARK}", text)
    text = _BEARER.sub(rf"\1{MARK}", text)
    text = _BASIC.sub(_hidden_basic, text)
    return _SHAPES.sub(MARK, text)


def hide_known(text: str) -> str:
    """Return ``text`` with a mark in place of this process's own secrets only.

    Use this function for stored data, which :func:`redact` could change by mistake.
    """
    # Longer secrets come first, because a secret may contain another one.
    for secret in sorted(_known_forms(), key=len, reverse=True):
        text = text.replace(secret, MARK)
    return text


def quote_reply(text: str, length: int) -> str:
    """Return the start of a server's reply for an error message, on one line and without secrets."""
    return " ".join(redact(text).split())[:length]


def without_credentials(address: str) -> str:
    """Return an address without its user, password and parameters, for files and pages."""
    bare = re.sub(r"(://)[^/?#]*@", r"\1", address)
    return bare.partition("?")[0]


def _known_forms() -> set[str]:
    """Return this process's secrets, as they are and as headers, addresses and JSON contain them."""
    forms = set()
    for secret in {*_secrets_of_environment(), *_registered}:
        if len(secret) >= _SHORTEST:
            in_json = json.dumps(secret)[1:-1]
            forms |= {secret, quote(secret), quote(secret, safe=""), in_json, json.dumps(in_json)[1:-1]}
            forms.add(base64.b64encode(secret.encode(errors="replace")).decode())
    return forms


def _secrets_of_environment() -> Iterator[str]:
    for name, value in os.environ.items():
        if _SECRET_VARIABLE.search(name):
            yield value.strip()
        if _ADDRESS_VARIABLE.search(name):
            yield from _secrets_of_address(value)
    # `hf auth login` stores the token in a file.
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None:
        with contextlib.suppress(OSError, ValueError):
            yield Path(constants.HF_TOKEN_PATH).read_text("utf-8").strip()


def _secrets_of_address(address: str) -> Iterator[str]:
    """Yield the password in an address, the user with the password (of basic authentication), and secret parameters."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(address)
        user, _, password = parts.netloc.rpartition("@")[0].partition(":")
        if password:
            yield unquote(password)
            yield f"{unquote(user)}:{unquote(password)}"
        for name, value in parse_qsl(parts.query):
            if _PARAMETER.fullmatch(f"?{name}="):
                yield value


def _hidden_basic(match: re.Match[str]) -> str:
    """Hide the credentials of basic authentication. Other words after "basic" stay."""
    try:
        credentials = base64.b64decode(match[2], validate=True)
    except binascii.Error:
        return match[0]
    return match[1] + MARK if b":" in credentials else match[0]
