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
# Characters of a secret; shorter values, such as "none", are placeholders and common words.
_SHORTEST_SECRET = 6
_SECRET_ENDING = r"(?:key|token|secret|password|passwd|pwd|signature|sig|credentials?|authorization)"
_SECRET_VARIABLE = re.compile(rf"(?:^|_)(?:API)?{_SECRET_ENDING}$", re.IGNORECASE)
# A shell's current folder, although PWD also abbreviates "password".
_FOLDER_VARIABLES = ("PWD", "OLDPWD")
_ADDRESS_VARIABLE = re.compile(r"(?:URL|ENDPOINT|PROXY)$", re.IGNORECASE)
_SECRET_PARAMETER = re.compile(rf"[?&;][\w.-]*{_SECRET_ENDING}=", re.IGNORECASE)

# The name and value of a header or setting, perhaps as JSON inside of JSON, where quotes have backslashes.
_NAMED_VALUE = re.compile(
    r"""((?:authorization|x-api-key|api[-_]?key|(?:access|auth|refresh|id|hf)[-_]token|password|passwd)
    \\*["']? \s* [:=] \s* \\*["']?
    (?:(?:bearer|basic|apikey|token|digest)\s+)?+)
    (?!\[redacted])[^\s"'\\,;&}<>]+""",
    re.IGNORECASE | re.VERBOSE,
)
_BEARER_HEADER = re.compile(r"((?:Bearer|ApiKey|bearer|apikey)\s+)(?=\S*[\d_.-])[^\s\"'\\,;<>)]{6,}")
_BASIC_HEADER = re.compile(r"((?:Basic|basic)\s+)([A-Za-z0-9+/]{6,}={0,2})")
# A password may have slashes. The lengths are limited, so that a hostile text takes little time.
_USER_IN_ADDRESS = re.compile(
    r"""([a-z][a-z0-9+.-]{0,20}://)(?:[^\s/?\#'"<>]{0,400}|[^\s'"<>]{0,100}?:[^\s'"<>]{0,200})@""", re.IGNORECASE
)
_PARAMETER_VALUE = re.compile(rf"""({_SECRET_PARAMETER.pattern})(?!\[redacted])[^&\s'"<>\#]+""", re.IGNORECASE)
# Keys that are recognised by their first characters: Hugging Face, OpenAI, GitHub, GitLab, Amazon, Google, Slack, JWT.
_KEY_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{10,}|api_org_\w{10,}|sk-[\w-]{10,}|gh[pousr]_\w{20,}|glpat-[\w-]{15,}|AKIA[0-9A-Z]{16}|"
    r"AIza[\w-]{30,}|xox[baprs]-[\w-]{10,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
_registered_secrets: set[str] = set()  # secrets of this process that no environment variable has


def register_secret(secret: str) -> None:
    """Let later calls hide a secret that no environment variable has, for example the password of an option.

    Of an address (``scheme://...``), only the password and the secret parameters are hidden.
    """
    if "://" in secret:
        _registered_secrets.update(_secrets_of_address(secret))
    else:
        _registered_secrets.add(secret)


def redact(text: str) -> str:
    """Return ``text`` with a mark in place of keys, tokens and passwords.

    Secrets are recognised by their values in the environment, by the names of headers and parameters, and by shapes of
    keys. Redact a text before cutting it, because half a key is not recognised.
    """
    # Known secrets first, because the patterns may match only a part of a secret.
    text = hide_known(text)
    # Then addresses, headers and settings, which name a secret, and last the texts that look like keys.
    text = _USER_IN_ADDRESS.sub(rf"\1{MARK}@", text)
    text = _PARAMETER_VALUE.sub(rf"\1{MARK}", text)
    text = _NAMED_VALUE.sub(rf"\1{MARK}", text)
    text = _BEARER_HEADER.sub(rf"\1{MARK}", text)
    text = _BASIC_HEADER.sub(_hide_basic_credentials, text)
    return _KEY_SHAPES.sub(MARK, text)


def hide_known(text: str) -> str:
    """Return ``text`` with a mark in place of this process's secrets (:func:`register_secret`, environment) only.

    Use this function for stored data, which :func:`redact` could change by mistake.
    """
    # Longer secrets come first, because a secret may contain another one.
    for secret in sorted(_list_secret_forms(), key=len, reverse=True):
        text = text.replace(secret, MARK)
    return text


def quote_reply(reply_text: str, length: int) -> str:
    """Return the start of a server's reply for an error message, on one line and without secrets."""
    one_line = " ".join(redact(reply_text).split())
    return one_line[:length]


def without_credentials(address: str) -> str:
    """Return an address without its user, password and parameters, for files and pages."""
    without_user = re.sub(r"(://)[^/?#]*@", r"\1", address)
    return without_user.partition("?")[0]


def _list_secret_forms() -> set[str]:
    """Return this process's secrets, as they are and as headers, addresses and JSON contain them."""
    secret_forms = set()
    for secret in _registered_secrets.union(_secrets_of_environment()):
        if len(secret) < _SHORTEST_SECRET:
            continue
        secret_forms.add(secret)
        # In an address.
        secret_forms.add(quote(secret))
        secret_forms.add(quote(secret, safe=""))
        # In JSON, and in JSON inside of JSON, where quotes have backslashes.
        json_form = _escape_for_json(secret)
        secret_forms.add(json_form)
        secret_forms.add(_escape_for_json(json_form))
        # In a header of basic authentication.
        secret_forms.add(base64.b64encode(secret.encode(errors="replace")).decode())
    return secret_forms


def _escape_for_json(text: str) -> str:
    return json.dumps(text)[1:-1]  # without the quotes


def _secrets_of_environment() -> Iterator[str]:
    """Yield the secrets of environment variables, and the token that `hf auth login` stored."""
    for name, value in os.environ.items():
        if _SECRET_VARIABLE.search(name) and name not in _FOLDER_VARIABLES:
            yield value.strip()
        # A variable such as HTTPS_PROXY has a password inside of an address.
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
        credentials, _, _ = parts.netloc.rpartition("@")
        user, _, password = credentials.partition(":")
        if password:
            yield unquote(password)
            yield f"{unquote(user)}:{unquote(password)}"
        for name, value in parse_qsl(parts.query):
            if _SECRET_PARAMETER.fullmatch(f"?{name}="):  # the pattern has the signs around a name
                yield value


def _hide_basic_credentials(match: re.Match[str]) -> str:
    """Return a match of ``_BASIC_HEADER`` with a mark in place of the credentials. Other words after "basic" stay."""
    try:
        credentials = base64.b64decode(match[2], validate=True)
    except binascii.Error:
        return match[0]
    if b":" not in credentials:
        return match[0]
    return match[1] + MARK
