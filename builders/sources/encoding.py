"""Which encoding a text file has: UTF-8 or GB18030, decided once for the whole file, refused where in doubt.

The rule, in order:

1. A byte order mark decides: UTF-8's, GB18030's. UTF-16 (its mark, or NUL bytes) is refused.
2. A file that is UTF-8 from end to end is UTF-8: text of another encoding hardly ever is, by chance.
3. A file most of whose non-ASCII bytes form UTF-8 characters is UTF-8 with damage: refused, with the line. Read as
   GB18030, which gives almost any two bytes a meaning, all of it would become wrong characters without an error.
4. A file that is GB18030 from end to end, and reads as Chinese so, is GB18030. "Reads as Chinese": three in a hundred
   of its non-ASCII characters are among the commonest (of which real text has 9 to 16 %, and Big5, Shift JIS or EUC-KR
   taken for GB18030 has none but by chance); where there are fewer than 100 of them, nine in ten being in
   GB 2312 (everyday simplified Chinese) will do.
5. Anything else is refused; ``--encoding`` names it.
"""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import IO

from builders.core.errors import InputError, log

CHOICES = ("auto", "utf-8", "gb18030")
_BLOCK = 1 << 20
Open = Callable[[], AbstractContextManager[IO[bytes]]]
GB_MARK = "\ufeff".encode("gb18030")
_UTF8_CHINESE = re.compile(rb"[\xe0-\xef][\x80-\xbf]{2}")
_HIGH = bytes(range(0x80, 0x100))
# Simplified and traditional; no punctuation: EUC encodings have it at the same places.
_COMMON = frozenset("的一是不了在有人我他上大来到时中个地为子以你会可出也這個們來時會為")
_FEW = 100


def encoding_of(open_bytes: Open, name: str, asked: str = "auto") -> str:
    """``"utf-8"`` or ``"gb18030"`` for the file that ``open_bytes`` opens; reads it once or twice, a block at a time.

    Args:
        open_bytes: opens the file's bytes, from the start, each time it is called.
        name: how errors call the file.
        asked: one of :data:`CHOICES`; not ``auto``: nothing else is tried.

    Raises:
        InputError: with the line, where the bytes are neither, or not what was asked for, or in doubt.
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
        if line := _Reading(open_bytes, name, asked).bad_line:
            raise InputError(f"not {asked.upper()}, as its mark or --encoding says", path=name, line=line)
        return asked
    utf8 = _Reading(open_bytes, name, "utf-8")
    if not utf8.bad_line:
        return "utf-8"
    if 2 * utf8.chinese_bytes >= utf8.high_bytes:
        raise InputError("a byte that is not UTF-8 in a file that is otherwise", path=name, line=utf8.bad_line)
    chinese = _Reading(open_bytes, name, "gb18030")
    if chinese.bad_line:
        message = f"neither UTF-8 (line {utf8.bad_line} is not) nor GB18030 (this line is not)"
        raise InputError(message, path=name, line=chinese.bad_line)
    everyday = chinese.high < _FEW and 10 * chinese.gb2312 >= 9 * chinese.high
    if not everyday and 100 * chinese.common < 3 * chinese.high:
        raise InputError(
            "not UTF-8, and not Chinese when read as GB18030; expected one of the two (--encoding gb18030 reads it so)",
            path=name,
            line=utf8.bad_line,
        )
    log.info("%s: read as GB18030", name)
    return "gb18030"


class _Reading:
    """What comes out when a whole file is decoded strictly: ``bad_line`` (0: none) and counts for the decision."""

    def __init__(self, open_bytes: Open, name: str, encoding: str) -> None:
        with open_bytes() as stream:
            # An empty block is the last one: it ends the decoding.
            self._read(itertools.chain(iter(lambda: stream.read(_BLOCK), b""), [b""]), name, encoding)

    def _read(self, blocks: Iterable[bytes], name: str, encoding: str) -> None:
        self.bad_line = self.high_bytes = self.chinese_bytes = self.high = self.gb2312 = self.common = 0
        decoder = codecs.getincrementaldecoder(encoding)("strict")
        line, replaced = 1, 0
        for block in blocks:
            if (at := block.find(b"\0")) >= 0:
                line += block.count(b"\n", 0, at)
                raise InputError("a NUL byte (UTF-16, or no text); expected UTF-8 or GB18030", path=name, line=line)
            if encoding == "utf-8":  # over the whole file, also after the first bad byte
                self.high_bytes += len(block) - len(block.translate(None, _HIGH))
                self.chinese_bytes += 3 * len(_UTF8_CHINESE.findall(block))
                replaced += block.count(b"\xef\xbf\xbd")
            if not self.bad_line:
                try:
                    text = decoder.decode(block, final=not block)
                except UnicodeDecodeError as error:
                    # What the decoder kept of the block before is the start of one character: no line ends in it.
                    self.bad_line = line + error.object.count(b"\n", 0, error.start)
                else:
                    if encoding == "gb18030":
                        self._count_characters(text)
            line += block.count(b"\n")
        if replaced and not self.bad_line:
            log.warning("%s: holds %d replacement characters (U+FFFD): it was damaged before", name, replaced)

    def _count_characters(self, text: str) -> None:
        ascii_characters = len(text.encode("ascii", "ignore"))
        self.high += len(text) - ascii_characters
        self.gb2312 += (len(text.encode("gb2312", "ignore")) - ascii_characters) // 2
        self.common += sum(map(text.count, _COMMON))
