"""Detect whether a whole text file is UTF-8 or GB18030. An ambiguous file is an error.

The first rule that applies decides:

1. A byte order mark of UTF-8 or GB18030 decides. UTF-16 (a mark, or NUL bytes) is an error.
2. A file that is completely valid UTF-8 is UTF-8. Text in another encoding is hardly ever valid UTF-8.
3. A file that is completely valid GB18030 and looks like Chinese is GB18030. Text looks like Chinese if at least 3 % of
   the non-ASCII characters are among the most frequent characters. In real text, the share is 9 to 16 %. In Big5, Shift
   JIS, EUC-KR or damaged UTF-8, decoded as GB18030, the share is almost 0. A file with fewer than 100 non-ASCII
   characters also looks like Chinese if 90 % of these characters are in GB 2312 (everyday simplified Chinese).
4. Any other file is an error. ``--encoding`` sets the encoding.
"""

import codecs
import itertools
from collections import Counter

from builders.core.errors import InputError, log
from builders.core.file_formats import GB_MARK, HEAD_BYTES, Open, count_characters, expect_utf8, looks_chinese

CHOICES = ("auto", "utf-8", "gb18030")
_BLOCK = 1 << 20  # bytes that are decoded at once
MARKS = {codecs.BOM_UTF8: "utf-8", GB_MARK: "gb18030"}


def encoding_of(open_bytes: Open, file_name: str, encoding: str = "auto") -> str:
    """Return the encoding of the file that ``open_bytes`` opens: ``"utf-8"`` or ``"gb18030"``.

    The file is read once or twice, in blocks. ``file_name`` is the file's name in errors. ``encoding`` is one of
    :data:`CHOICES`, and only ``auto`` detects the encoding. Raises :class:`InputError` if the file is not in the given
    ``encoding``, or if ``auto`` detects no encoding. The error names the first line with invalid bytes.
    """
    with open_bytes() as stream:
        head = stream.read(HEAD_BYTES)
    expect_utf8(head, file_name, "UTF-8 or GB18030")  # refuses UTF-16 and UTF-32

    # The encoding of --encoding, or of a byte order mark.
    if encoding == "auto":
        for mark, marked_encoding in MARKS.items():
            if head.startswith(mark):
                encoding = marked_encoding
    if encoding != "auto":
        wrong_line = _first_wrong_line(open_bytes, file_name, encoding)
        if wrong_line:
            problem = f"is not valid {encoding.upper()} (set by its mark or --encoding)"
            raise InputError(problem, path=file_name, line=wrong_line)
        return encoding

    # Otherwise the encoding of which all bytes are valid.
    wrong_line = _first_wrong_line(open_bytes, file_name, "utf-8")
    if not wrong_line:
        return "utf-8"
    character_counts = Counter[str]()
    if _first_wrong_line(open_bytes, file_name, "gb18030", character_counts) or not looks_chinese(character_counts):
        raise InputError(
            "is not UTF-8, and not Chinese if decoded as GB18030; --encoding gb18030 reads it as GB18030 anyway",
            path=file_name,
            line=wrong_line,
        )
    log.info("%s: detected GB18030", file_name)
    return "gb18030"


def _first_wrong_line(
    open_bytes: Open, file_name: str, encoding: str, character_counts: Counter[str] | None = None
) -> int:
    """Return the number (from 1) of the first line with invalid bytes; 0 if there is no such line.

    Non-ASCII characters are added to ``character_counts``. Raises :class:`InputError` for a NUL byte.
    """
    decoder = codecs.getincrementaldecoder(encoding)("strict")
    line = 1
    with open_bytes() as stream:
        blocks = iter(lambda: stream.read(_BLOCK), b"")
        # The empty block at the end makes the decoder report an incomplete character.
        for block in itertools.chain(blocks, [b""]):
            nul_position = block.find(b"\0")
            if nul_position >= 0:
                problem = "has a NUL byte (UTF-16 or binary); expected UTF-8 or GB18030"
                raise InputError(problem, path=file_name, line=line + block.count(b"\n", 0, nul_position))
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                # error.object may begin with a partial character of the previous block, which contains no line end.
                return line + error.object.count(b"\n", 0, error.start)
            if character_counts is not None:
                count_characters(text, character_counts)
            line += block.count(b"\n")
    return 0
