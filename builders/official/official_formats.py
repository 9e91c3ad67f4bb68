"""The official files: their names, and parsers of their lines.

The formats of ``*.q.format`` and ``cross.train.tsv`` were checked on real rows (samples in PaddlePaddle/RocketQA). The
other formats follow the archive's readme and the scripts that read the archive. Line n of
``dev.retrieval.top50.res.id_map.tsv`` has the ids of the texts in line n of ``dev.retrieval.top50.res.tsv``.

Each ``parse_...`` function parses one block of whole lines, and raises :class:`BadLine` for a wrong line.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from builders.core.file_formats import describe_encoding
from builders.store.layout import long_text_fault

# Role of an official file, and the pattern of the file's name.
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
)


def role_of(name: str) -> str | None:
    """Return the role of an archive's member, or None if its file name is not official."""
    return next((role for role, pattern in ROLES if pattern.fullmatch(name.rsplit("/", 1)[-1])), None)


class BadLine(Exception):
    """An error in a line. ``line`` is the line's number in its block, from 0."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message, line)
        self.message, self.line = message, line


# Columns of the TSVs. _TEXTS names the columns with texts, and a label is 0 or 1. Other columns are not checked.
TSV = {
    "part": ("-", "empty", "passage", "0"),
    "queries": ("query", "-", "-", "0"),
    "dual": ("query", "empty", "positive", "empty", "negative", "0"),
    "cross": ("query", "empty", "passage", "label"),
    "top50": ("query", "-", "passage", "-"),
}
_TEXTS = {"query": "query", "passage": "passage", "positive": "passage", "negative": "passage"}


@dataclass
class Texts:
    """Texts, with their MD5s (``digests``) and the file's ids, if any. An MD5 or id takes 16 bytes."""

    texts: pa.StringArray
    digests: bytes
    ids: bytes = b""


def texts_of(values: list[bytes], what: str, ids: list[str] | None = None) -> Texts:
    """Return UTF-8 texts as a column. ``what`` names a text in the :class:`BadLine` for an empty text.

    A text with more than ``LONGEST_TEXT`` characters is a :class:`BadLine`, too.
    """
    if b"" in values:
        raise BadLine(f"expected the text of a {what}, found nothing", values.index(b""))
    for number, value in enumerate(values):
        if fault := long_text_fault(value):
            raise BadLine(fault, number)
    digests = b"".join([hashlib.md5(value, usedforsecurity=False).digest() for value in values])
    return Texts(pa.array(values, pa.binary()).cast(pa.string()), digests, bytes.fromhex("".join(ids or [])))


def lines_of(data: bytes) -> list[bytes]:
    """Return the lines of a block. Only ``\\n`` ends a line."""
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def parse_tsv(data: bytes, role: str) -> tuple[dict[str, Texts], list[int]]:
    """Parse a block of a TSV into its columns of texts, by name, and its labels. ``role`` is a key of :data:`TSV`."""
    names = TSV[role]
    try:
        str(data, "utf-8")
    except UnicodeDecodeError as error:
        message = f"not UTF-8: {error.reason}; {describe_encoding(data)}"
        raise BadLine(message, data.count(b"\n", 0, error.start)) from None
    rows = [line.split(b"\t") for line in lines_of(data)]
    for number, row in enumerate(rows):
        if len(row) != len(names):
            expected = f"expected {len(names)} columns separated by tabs ({', '.join(names)})"
            raise BadLine(f"{expected}, found {len(row)}", number)
        if names[-1] == "label" and row[-1] not in (b"0", b"1"):
            shown = row[-1][:20].decode(errors="replace")
            raise BadLine(f"expected the label 0 or 1 in column {len(names)}, found {shown!r}", number)
    columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(names, ())
    texts = {name: texts_of(list(columns[name]), _TEXTS[name]) for name in names if name in _TEXTS}
    return texts, [int(label) for label in columns.get("label", ())]


_ID = re.compile(rb"[0-9a-f]{32}")
Id = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]


def parse_pairs(data: bytes) -> list[bytes]:
    """Parse a block of ``id_map.tsv``. Return the ids of the queries and of the passages, 16 bytes each."""
    rows = [line.split(b"\t") for line in lines_of(data)]
    for number, row in enumerate(rows):
        if len(row) != 2 or not all(map(_ID.fullmatch, row)):
            raise BadLine("expected a query's id and a passage's id (32 hex digits), separated by a tab", number)
    return [bytes.fromhex(b"".join(row[column] for row in rows).decode()) for column in (0, 1)]


class Paragraph(msgspec.Struct, gc=False):
    """A passage in ``passage_collection.json`` or in the judgments."""

    paragraph_id: Id
    paragraph_text: Annotated[str, msgspec.Meta(min_length=1)]


class Question(msgspec.Struct, gc=False):
    """A row of ``test1.json`` and ``test2.json``."""

    question_id: Id
    question: Annotated[str, msgspec.Meta(min_length=1)]
    answer_paragraphs: list[Paragraph] | None = None


class LabelledQuestion(Question, gc=False):
    """A row of ``train.json`` and ``dev.json``."""

    answer_paragraphs: list[Paragraph]


_passage = msgspec.json.Decoder(Paragraph).decode
_question = msgspec.json.Decoder(Question).decode
_labelled = msgspec.json.Decoder(LabelledQuestion).decode
_PASSAGE = "a passage {paragraph_id, paragraph_text}"


def _decode(decode: Any, line: bytes, number: int, what: str) -> Any:
    try:
        return decode(line)
    except msgspec.ValidationError as error:
        message = f"not {what}: {error}"
    except (msgspec.DecodeError, RecursionError) as error:
        message = f"expected {what} as one JSON object, found no JSON ({error})"
    except UnicodeDecodeError as error:
        message = f"not UTF-8: {error.reason}; {describe_encoding(line)}"
    raise BadLine(message, number)


def parse_passages(data: bytes) -> Texts:
    """Parse a block of ``passage_collection.json`` as JSON lines."""
    return _texts_of_passages([_decode(_passage, line, number, _PASSAGE) for number, line in enumerate(lines_of(data))])


def _texts_of_passages(rows: list[Paragraph]) -> Texts:
    return texts_of([row.paragraph_text.encode() for row in rows], "passage", [row.paragraph_id for row in rows])


# The boundary of two rows of {"data": [...]}. Quotes in a text are escaped, so the pattern matches only between rows.
ROW_CUT = re.compile(rb'(?<!\\)"\s*\}\s*,\s*(?=\{\s*"paragraph_(?:id|text)"\s*:)')
MAP_CUT = re.compile(rb",")
LINE_CUT = re.compile(rb"\n")


def parse_wrapped(data: bytes) -> Texts:
    """Parse a block of rows from ``{"data": [...]}``. Commas separate the rows."""
    rows, start = [], 0
    for end in [match.end() for match in ROW_CUT.finditer(data)] + [len(data)]:
        row = data[start:end].strip().removesuffix(b",")
        # The error names the first line of a row, because a row may have several lines.
        rows.append(_decode(_passage, row, data.count(b"\n", 0, start), _PASSAGE))
        start = end
    return _texts_of_passages(rows)


_PAIR = re.compile(rb'\s*"(\d{1,10})"\s*:\s*"([0-9a-f]{32})"\s*')


def parse_map(data: bytes) -> tuple[list[int], bytes]:
    """Parse a block of ``passage2id.map.json`` without its braces. Return line numbers, and passage ids of 16 bytes."""
    numbers, ids, line = [], [], 0
    for pair in data.rstrip().removesuffix(b",").split(b","):
        line += pair.count(b"\n")  # each pair may be on its own line
        if not (found := _PAIR.fullmatch(pair)):
            shown = pair.strip()[:60].decode(errors="replace")
            raise BadLine(f'expected pairs of a line number and an id, {{"0": id, "1": id}}, found {shown!r}', line)
        numbers.append(int(found[1]))
        ids.append(found[2])
    return numbers, bytes.fromhex(b"".join(ids).decode())


def parse_questions(data: bytes, labelled: bool) -> tuple[Texts, list[int], Texts]:
    """Parse a block of a questions file. ``labelled``: True for ``train.json`` and ``dev.json``, False for test files.

    Returns the questions, the number of passages of each question, and the passages of all questions.
    """
    decode, more = (_labelled, ", answer_paragraphs") if labelled else (_question, "")
    what = f"a question {{question_id, question{more}}}"
    rows = [_decode(decode, line, number, what) for number, line in enumerate(lines_of(data))]
    texts = texts_of([row.question.encode() for row in rows], "question", [row.question_id for row in rows])
    passages = [passage for row in rows for passage in row.answer_paragraphs or ()]
    return texts, [len(row.answer_paragraphs or ()) for row in rows], _texts_of_passages(passages)
