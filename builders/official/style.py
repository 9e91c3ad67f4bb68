"""How an official JSON file is written (escapes, separators, order of keys, wrapping), found out and written again.

JSON leaves open what a byte-equal copy needs. A style is a small dict that goes into a release's ``layout.json``.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from builders.official.formats import ROW_CUT

# Python's own separators, and the compact ones.
_SEPARATORS = ((", ", ": "), (",", ":"))
Style = dict[str, Any]
# The keys of the official JSON files, at any depth, as they stand in the original release.
KEYS = ("question_id", "question", "answer_paragraphs", "paragraph_id", "paragraph_text")


class _Rows(msgspec.Struct):
    """What Python's JSON writer is told, and in which order a row has its keys."""

    ascii: bool
    item: str
    key: str
    indent: Literal[1, 2, 3, 4, "\t"] | None
    prefix: str
    order: list[str] = []


class _Wrapped(_Rows, kw_only=True):
    head: str
    gap: str
    tail: str


class _Ids(_Rows, kw_only=True):
    tail: str


class _Map(msgspec.Struct):
    head: str
    item: str
    key: str
    tail: str


DEFAULT: Style = {"ascii": False, "item": ", ", "key": ": ", "indent": None, "prefix": "", "order": KEYS}


def check_style(role: str, style: Style | None) -> None:
    """ValueError, naming the key, where a file of this role cannot be written in a style."""
    if style is not None or role == "map":  # the others have a style where nothing is known
        kind = {"map": _Map, "ids": _Ids}.get(role) or (_Wrapped if "head" in (style or {}) else _Rows)
        try:
            msgspec.convert(style, kind)
        except msgspec.ValidationError as error:
            raise ValueError(f"style: {error}".replace(" - at `$.", " at `")) from None


def encoder(style: Style) -> Callable[[Any], str]:
    """What writes values as JSON in this style."""
    separators = (style["item"] if style["indent"] is None else style["item"].rstrip(), style["key"])
    encode = json.JSONEncoder(ensure_ascii=style["ascii"], separators=separators, indent=style["indent"]).encode
    if not style["prefix"]:
        return encode
    return lambda value: encode(value).replace("\n", "\n" + style["prefix"])


def sniff(rows: list[str], prefix: str = "") -> Style | None:
    """The style in which all of these JSON texts are written; None where it is none that Python's writer knows."""
    try:
        values = [json.loads(row) for row in rows]
    except (ValueError, RecursionError):
        return None
    for indent, (item, key), ascii_only in itertools.product((None, 1, 2, 3, 4, "\t"), _SEPARATORS, (False, True)):
        style = {"ascii": ascii_only, "item": item, "key": key, "indent": indent, "prefix": prefix}
        encode = encoder(style)
        if all(encode(value) == row for value, row in zip(values, rows, strict=True)):
            return style
    return None


def key_order(row: str) -> list[str]:
    """In which order a row has those of :data:`KEYS` that it has."""
    offsets = {name: row.find(f'"{name}"') for name in KEYS}
    return sorted((name for name in KEYS if offsets[name] >= 0), key=offsets.__getitem__)


def in_order(style: Style, keys: Sequence[str]) -> list[str]:
    """The keys in the order of the style, those that it does not know last."""
    known = [key for key in dict.fromkeys(style.get("order", KEYS)) if key in keys]
    return [*known, *(key for key in keys if key not in known)]


def sniff_lines(head: bytes, whole: bool) -> Style | None:
    """The style of JSON lines, from the file's beginning (``whole``: all of it is given)."""
    lines = head.decode(errors="replace").split("\n")
    rows = [line for line in (lines if whole else lines[:-1]) if line]
    style = sniff(rows)
    if style is not None and rows:
        style["order"] = key_order(max(rows, key=len))
    return style


_WRAP = re.compile(rb'\s*\{\s*"data"\s*:\s*\[\s*')
_WRAP_END = re.compile(rb"\s*\]\s*\}\s*\Z")


def is_wrapped(head: bytes) -> re.Match[bytes] | None:
    """The opening of ``{"data": [...]}``, where the file begins with it."""
    return _WRAP.match(head)


def wrapped_end(tail: bytes) -> int | None:
    """How many of the file's last bytes close ``{"data": [...]}``; None where nothing does."""
    match = _WRAP_END.search(tail)
    return len(match[0]) if match else None


def sniff_wrapped(head: bytes, tail: bytes, start: int, end: int) -> Style | None:
    """The style of ``{"data": [...]}``: ``head`` and ``tail`` its first and last bytes, ``start`` and ``end`` the
    lengths of what opens and closes it."""
    cuts = [match.end() for match in ROW_CUT.finditer(head)][:50]
    text = [head[low:high].decode(errors="replace") for low, high in itertools.pairwise([start, *cuts])]
    if not text:  # one row alone
        text = [head[start : len(head) - end].decode(errors="replace") + ","]
    rows = [row[: row.rstrip().rindex(",")].rstrip() for row in text if "," in row]
    gap = text[0][len(rows[0]) :] if rows else ","
    # Rows of a pretty-printed file are indented as a whole.
    opening = head[:start].decode(errors="replace")
    style = sniff(
        rows, opening.rsplit("\n", 1)[-1] if "\n" in opening and not opening.rsplit("\n", 1)[-1].strip() else ""
    )
    if style is not None and rows:
        style |= {"head": opening, "gap": gap, "tail": tail[len(tail) - end :].decode(errors="replace")}
        style["order"] = key_order(rows[0])
    return style


_MAP = re.compile(rb'(\s*\{\s*)"\d+"(\s*:\s*)"\w*"(?:(\s*,\s*)")?')
_MAP_END = re.compile(rb"\s*\}\s*\Z")


def sniff_map(head: bytes, tail: bytes) -> Style | None:
    """The style of ``passage2id.map.json`` from its first and last bytes; None where it is no such object."""
    start, end = _MAP.match(head), _MAP_END.search(tail)
    if start is None or end is None:
        return None
    return {
        "head": start[1].decode(),
        "key": start[2].decode(),
        "item": (start[3] or b", ").decode(),
        "tail": end[0].decode(),
    }
