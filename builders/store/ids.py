"""The identifiers of the official release: MD5 of texts."""

from __future__ import annotations

import hashlib


def text_id(text: str) -> str:
    """The identifier of a passage or a query: lower-case hex MD5 of its UTF-8 text."""
    return id_of_utf8(text.encode())


def id_of_utf8(utf8: bytes | memoryview) -> str:
    """As :func:`text_id`, of a text that is UTF-8 already."""
    return hashlib.md5(utf8, usedforsecurity=False).hexdigest()
