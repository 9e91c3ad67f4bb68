"""The encoding of a text file, UTF-8 or GB18030: decided once for the whole file, refused where in doubt.

The rule, in order:

1. A byte order mark decides: UTF-8's, GB18030's. UTF-16 (its mark, or NUL bytes) is refused.
2. A file that is UTF-8 from end to end is UTF-8: text of another encoding hardly ever is, by chance.
3. A file that is GB18030 from end to end, and reads as Chinese so, is GB18030. "Reads as Chinese": three in a hundred
   of its non-ASCII characters are among the commonest (of which real text has 9 to 16 %; Big5, Shift JIS, EUC-KR or
   damaged UTF-8 taken for GB18030 has none but by chance); where there are fewer than 100 of them, nine in ten being in
   GB 2312 (everyday simplified Chinese) will do.
4. Anything else is refused; ``--encoding`` names it.
"""

from __future__ import annotations

import codecs
import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import IO

from builders.core.errors import InputError, log

CHOICES = ("auto", "utf-8", "gb18030")
_BLOCK = 1 << 20
Open = Callable[[], AbstractContextManager[IO[bytes]]]
GB_MARK = "\ufeff".encode("gb18030")
# Simplified and traditional; no punctuation: EUC encodings have it at the same places.
_COMMON = frozenset("的一是不了在有人我他上大来到时中个地为子以你会可出也這個們來時會為")
_FEW = 100


def encoding_of(open_bytes: Open, name: str, asked: str = "auto") -> str:
    """``"utf-8"`` or ``"gb18030"`` for the file that ``open_bytes`` opens; reads it once or twice, a block at a time.

    ``name``: the file in errors; ``asked``: one of :data:`CHOICES`; not ``auto``: nothing else is tried. Raises
    :class:`InputError` with the line, where the bytes are neither, not what was asked for, or in doubt.
    """
    with open_bytes() as stream:
        head = stream.read(4)
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError("is UTF-16; expected UTF-8 or GB18030: save it as one of them", path=name, line=1)
    if asked == "auto" and head.startswith(codecs.BOM_UTF8):
        asked = "utf-8"
    if asked == "auto" and head.startswith(GB_MARK):
        asked = "gb18030"
    if asked != "auto":
        if line := _bad_line(open_bytes, name, asked):
            raise InputError(f"not {asked.upper()}, as its mark or --encoding says", path=name, line=line)
        return asked
    line = _bad_line(open_bytes, name, "utf-8")
    if not line:
        return "utf-8"
    found = Counter[str]()
    if _bad_line(open_bytes, name, "gb18030", found) or not _is_chinese(found):
        raise InputError(
            "not UTF-8, and not Chinese when read as GB18030; expected one of the two (--encoding gb18030 reads it so)",
            path=name,
            line=line,
        )
    log.info("%s: read as GB18030", name)
    return "gb18030"


def _is_chinese(found: Counter[str]) -> bool:
    everyday = found["high"] < _FEW and 10 * found["gb2312"] >= 9 * found["high"]
    return everyday or 100 * found["common"] >= 3 * found["high"]


def _bad_line(open_bytes: Open, name: str, encoding: str, found: Counter[str] | None = None) -> int:
    """The first line that is not of the encoding; 0 where all are. ``found``: takes counts of non-ASCII characters."""
    decoder = codecs.getincrementaldecoder(encoding)("strict")
    line = 1
    with open_bytes() as stream:
        # An empty block is the last one: it ends the decoding.
        for block in itertools.chain(iter(lambda: stream.read(_BLOCK), b""), [b""]):
            if (at := block.find(b"\0")) >= 0:
                line += block.count(b"\n", 0, at)
                raise InputError("a NUL byte (UTF-16, or no text); expected UTF-8 or GB18030", path=name, line=line)
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                # What the decoder kept of the block before is the start of one character: no line ends in it.
                return line + error.object.count(b"\n", 0, error.start)
            if found is not None:
                ascii_characters = len(text.encode("ascii", "ignore"))
                found["high"] += len(text) - ascii_characters
                found["gb2312"] += (len(text.encode("gb2312", "ignore")) - ascii_characters) // 2
                found["common"] += sum(map(text.count, _COMMON))
            line += block.count(b"\n")
    return 0
