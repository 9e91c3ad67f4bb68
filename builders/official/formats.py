"""The official files' formats: what each file is called, and what a line of it holds.

Two releases exist: the original one (``train.json``, ``dev.json``, ``passage_collection.json``, ``test1.json``,
``test2.json``) and the pre-processed one of the baseline (``dual.train.tsv``, ``cross.train.tsv``, ``part-00`` to
``part-03`` with ``passage2id.map.json``, ``dev.q.format``, ``q2qid.dev.json``, the dual-encoder's top 50).

Checked on real rows: ``*.q.format`` and ``cross.train.tsv`` (the samples in PaddlePaddle/RocketQA). The other layouts
follow the archive's own readme and the scripts that read it: ``dev.retrieval.top50.res.tsv`` has the columns query,
nothing, passage, nothing; ``dev.retrieval.top50.res.id_map.tsv`` names, line for line, the ids of its query and
passage. The columns that mean nothing may hold anything; all others are checked, and a line that is not as expected is
an error.

Each ``parse_...`` takes one block of whole lines as bytes and runs in worker processes. It raises :class:`BadLine`,
whose line counts from the block's first.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

# What each official file is, by its name.
ROLES = (
    ("map", re.compile(r"passage2id\.map\.json")),
    ("passages", re.compile(r"passage_collection\.json")),
    ("part", re.compile(r"part-\d\d")),
    ("train", re.compile(r"train\.json")),
    ("dev", re.compile(r"dev\.json")),
    ("test", re.compile(r"test\d?\.json")),
    ("queries", re.compile(r"(train|dev|test)\d?\.q\.format")),
    ("ids", re.compile(r"q2qid\.(train|dev|test)\d?\.json")),
    ("dual", re.compile(r"dual\.train\.(demo\.)?tsv")),
    ("cross", re.compile(r"cross\.train\.(demo\.)?tsv")),
    ("top50", re.compile(r"dev\.retrieval\.top50\.res\.tsv")),
    ("top50ids", re.compile(r"dev\.retrieval\.top50\.res\.id_map\.tsv")),
    ("document", re.compile(r"readme\.md|License\.docx")),
)


def role_of(name: str) -> str | None:
    """What an archive's member is, by its file name; None for one that is no official file."""
    base = name.rsplit("/", 1)[-1]
    return next((role for role, pattern in ROLES if pattern.fullmatch(base)), None)


class BadLine(Exception):
    """What is wrong with a line, and which line of the block it is, from 0."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message, line)
        self.message, self.line = message, line


# The columns of the TSVs. Those of _TEXTS hold texts, label holds 0 or 1; the others hold what stands here, which means
# nothing: they may hold anything.
TSV = {
    "part": ("-", "empty", "passage", "0"),
    "queries": ("query", "-", "-", "0"),
    "dual": ("query", "empty", "positive", "empty", "negative", "0"),
    "cross": ("query", "empty", "passage", "label"),
    "top50": ("query", "-", "passage", "-"),
}
_TEXTS = {"query": "query", "passage": "passage", "positive": "passage", "negative": "passage"}


def meaning_of(role: str) -> list[str]:
    """The columns of a TSV that hold texts or labels."""
    return [name for name in TSV[role] if name in _TEXTS or name == "label"]


def nothing_of(role: str, row: list[bytes]) -> list[bytes]:
    """What the columns of a row hold that mean nothing."""
    return [value for name, value in zip(TSV[role], row, strict=True) if name not in meaning_of(role)]


@dataclass
class TextColumn:
    """One column of texts: the texts and their MD5, 16 bytes each, one after the other."""

    texts: pa.StringArray
    digests: bytes


def text_column(values: list[bytes], what: str) -> TextColumn:
    """A column of texts, which are UTF-8; :class:`BadLine` for an empty one."""
    if b"" in values:
        raise BadLine(f"expected the text of a {what}, found nothing", values.index(b""))
    md5 = hashlib.md5
    return TextColumn(
        pa.array(values, pa.binary()).cast(pa.string()),
        b"".join([md5(value, usedforsecurity=False).digest() for value in values]),
    )


def _check_utf8(data: bytes) -> None:
    try:
        str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise BadLine(f"not UTF-8: {error.reason}", data.count(b"\n", 0, error.start)) from None


def lines_of(data: bytes) -> list[bytes]:
    """The lines of a block, which end at ``\\n`` alone."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


@dataclass
class TsvBlock:
    """A block of a TSV: its columns of texts by name, its labels, if it has any, and how many lines are unusual.

    ``lines``: the number of every row's line in the file, from 1, shape (rows,); of whoever knows where the block is.
    """

    columns: dict[str, TextColumn]
    labels: list[int] | None
    unusual: int
    lines: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))


def parse_tsv(data: bytes, role: str, usual: list[bytes]) -> TsvBlock:
    """A block of a TSV.

    Args:
        data: whole lines.
        role: a key of :data:`TSV`.
        usual: what the columns that mean nothing hold in the file's first line; other lines are counted as unusual.
    """
    names = TSV[role]
    _check_utf8(data)
    rows = [line.split(b"\t") for line in lines_of(data)]
    for number, row in enumerate(rows):
        if len(row) != len(names):
            expected = f"expected {len(names)} columns separated by tabs ({', '.join(names)})"
            raise BadLine(f"{expected}, found {len(row)}", number)
    columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {name: () for name in names}
    labels = [_label(value, names, number) for number, value in enumerate(columns.get("label", ()))]
    return TsvBlock(
        {name: text_column(list(columns[name]), _TEXTS[name]) for name in names if name in _TEXTS},
        labels if "label" in names else None,
        sum(nothing_of(role, row) != usual for row in rows),
    )


def _label(value: bytes, names: tuple[str, ...], number: int) -> int:
    if value not in (b"0", b"1"):
        shown = value[:20].decode(errors="replace")
        raise BadLine(f"expected the label 0 or 1 in column {names.index('label') + 1}, found {shown!r}", number)
    return int(value)


_ID = re.compile(rb"[0-9a-f]{32}")
Id = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]


def parse_pairs(data: bytes) -> tuple[bytes, bytes]:
    """A block of ``id_map.tsv``: the queries' ids and the passages', 16 bytes each."""
    rows = [line.split(b"\t") for line in lines_of(data)]
    for number, row in enumerate(rows):
        if len(row) != 2 or not all(_ID.fullmatch(value) for value in row):
            raise BadLine("expected a query's id and a passage's id (32 hex digits), separated by a tab", number)
    return bytes.fromhex("".join([row[0].decode() for row in rows])), bytes.fromhex(
        "".join([row[1].decode() for row in rows])
    )


class Paragraph(msgspec.Struct, gc=False):
    """A passage, in ``passage_collection.json`` and in the judgments."""

    paragraph_id: Id
    paragraph_text: Annotated[str, msgspec.Meta(min_length=1)]


class Question(msgspec.Struct, gc=False):
    """A row of ``train.json``, ``dev.json`` (with judgments), ``test1.json`` (without)."""

    question_id: Id
    question: Annotated[str, msgspec.Meta(min_length=1)]
    answer_paragraphs: list[Paragraph] | None = None


@dataclass
class IdsAndTexts:
    """Ids (16 bytes each, one after the other) and texts."""

    ids: bytes
    column: TextColumn


def _rows(ids: list[str], texts: list[str], what: str) -> IdsAndTexts:
    return IdsAndTexts(bytes.fromhex("".join(ids)), text_column([text.encode() for text in texts], what))


_passage = msgspec.json.Decoder(Paragraph).decode
_question = msgspec.json.Decoder(Question).decode
_map = msgspec.json.Decoder(dict[str, Id]).decode


def _decode(decode: Any, line: bytes, number: int, what: str) -> Any:
    try:
        return decode(line)
    except msgspec.ValidationError as error:
        raise BadLine(f"not {what}: {error}", number) from None
    except msgspec.DecodeError as error:
        raise BadLine(f"expected {what} as one JSON object, found no JSON ({error})", number) from None
    except UnicodeDecodeError as error:
        raise BadLine(f"not UTF-8: {error.reason}", number) from None
    except RecursionError:
        raise BadLine(f"not {what}: nested too deep", number) from None


def parse_passages(data: bytes) -> IdsAndTexts:
    """A block of ``passage_collection.json`` as JSON lines."""
    what = "a passage {paragraph_id, paragraph_text}"
    return _passage_rows([_decode(_passage, line, number, what) for number, line in enumerate(lines_of(data))])


def _passage_rows(rows: list[Paragraph]) -> IdsAndTexts:
    return _rows([row.paragraph_id for row in rows], [row.paragraph_text for row in rows], "passage")


# The cut between two rows of {"data": [...]}. A quote inside a text is escaped, so what matches stands between rows.
ROW_CUT = re.compile(rb'(?<!\\)"\s*\}\s*,\s*(?=\{\s*"paragraph_(?:id|text)"\s*:)')
MAP_CUT = re.compile(rb",")
LINE_CUT = re.compile(rb"\n")


def parse_wrapped(data: bytes) -> IdsAndTexts:
    """A block of rows out of ``{"data": [...]}``, separated by commas."""
    rows, start = [], 0
    what = "a passage {paragraph_id, paragraph_text}"
    for end in [match.end() for match in ROW_CUT.finditer(data)] + [len(data)]:
        row = data[start:end].strip()
        row = row[:-1] if row.endswith(b",") else row
        # A row may be spread over lines: the error names the line where it begins.
        rows.append(_decode(_passage, row, data.count(b"\n", 0, start), what))
        start = end
    return _passage_rows(rows)


def parse_map(data: bytes) -> tuple[list[int], bytes]:
    """A block of the inside of ``passage2id.map.json``: line numbers and passage ids, 16 bytes each."""
    data = data.strip()
    data = data[:-1] if data.endswith(b",") else data
    pairs = _decode(_map, b"{" + data + b"}", 0, 'pairs of a line number and an id, {"0": id, "1": id}')
    if data and len(pairs) != data.count(b",") + 1:
        raise BadLine("expected every line number once, found one twice", 0)
    for number in pairs:
        if not (number.isascii() and number.isdigit()) or len(number) > 10:
            raise BadLine(f"expected a line number as the key, found {number[:20]!r}", 0)
    return [int(number) for number in pairs], bytes.fromhex("".join(pairs.values()))


@dataclass
class Questions:
    """A block of questions: their ids and texts, how many passages each one has (None: no labels), and these."""

    questions: IdsAndTexts
    counts: list[int] | None
    passages: IdsAndTexts


def parse_questions(data: bytes, labelled: bool) -> Questions:
    """A block of ``train.json``, ``dev.json`` (``labelled``), ``test1.json`` or ``test2.json``."""
    what = "a question {question_id, question, answer_paragraphs}" if labelled else "a question {question_id, question}"
    rows: list[Question] = []
    for number, line in enumerate(lines_of(data)):
        row = _decode(_question, line, number, what)
        if labelled and row.answer_paragraphs is None:
            raise BadLine("not a question of a labelled set: answer_paragraphs is missing", number)
        rows.append(row)
    passages = [passage for row in rows for passage in row.answer_paragraphs or ()]
    counts = [len(row.answer_paragraphs or ()) for row in rows]
    questions = _rows([row.question_id for row in rows], [row.question for row in rows], "question")
    return Questions(questions, counts if labelled else None, _passage_rows(passages))
