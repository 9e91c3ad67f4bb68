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

from builders.core.file_formats import describe_encoding, utf8_fault
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
    file_name = name.rsplit("/", 1)[-1]
    for role, pattern in ROLES:
        if pattern.fullmatch(file_name):
            return role
    return None


class BadLine(Exception):
    """An error in a line. ``line`` is the line's number in its block, from 0."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message, line)
        self.message = message
        self.line = line


# Columns of the TSVs. A label is 0 or 1. Columns that are neither texts (_TEXT_COLUMNS) nor labels are not checked.
TSV = {
    "part": ("-", "empty", "passage", "0"),
    "queries": ("query", "-", "-", "0"),
    "dual": ("query", "empty", "positive", "empty", "negative", "0"),
    "cross": ("query", "empty", "passage", "label"),
    "top50": ("query", "-", "passage", "-"),
}
# Column of texts -> the word for one of its texts in errors.
_TEXT_COLUMNS = {"query": "query", "passage": "passage", "positive": "passage", "negative": "passage"}
_SHOWN_LABEL = 20  # maximum bytes of a wrong label in an error
_SHOWN_PAIR = 60  # maximum bytes of a wrong pair of the map in an error


@dataclass
class OfficialTexts:
    """Texts, with their MD5s (``digests``) and the file's ids, if any. An MD5 or id takes 16 bytes."""

    texts: pa.StringArray
    digests: bytes
    ids: bytes = b""


def texts_of(values: list[bytes], noun: str, ids: list[str] | None = None) -> OfficialTexts:
    """Return UTF-8 texts as a column with their MD5s.

    ``ids`` are the hex ids of the texts in the file, if any. ``noun`` is the word for a text in errors. Raises
    :class:`BadLine`, with the position in ``values`` as the line, for an empty text and for a text that is too long.
    """
    if b"" in values:
        raise BadLine(f"expected the text of a {noun}, found nothing", values.index(b""))
    for number, value in enumerate(values):
        fault = long_text_fault(value)
        if fault:
            raise BadLine(fault, number)
    digests = b"".join([hashlib.md5(value, usedforsecurity=False).digest() for value in values])
    return OfficialTexts(pa.array(values, pa.binary()).cast(pa.string()), digests, bytes.fromhex("".join(ids or [])))


def lines_of(data: bytes) -> list[bytes]:
    """Return the lines of a block. Only ``\\n`` ends a line."""
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def parse_tsv(data: bytes, role: str) -> tuple[dict[str, OfficialTexts], list[int]]:
    """Parse a block of a TSV into its columns of texts, by name, and its labels.

    ``role`` is a key of :data:`TSV`. The labels, 0 or 1, are empty if the TSV has no column ``label``.
    """
    names = TSV[role]
    # Only the encoding is checked here.
    try:
        str(data, "utf-8")
    except UnicodeDecodeError as error:
        message = f"not UTF-8: {error.reason}; {describe_encoding(data)}"
        raise BadLine(message, data.count(b"\n", 0, error.start)) from None
    # Lines are split as bytes, because str.splitlines() also splits at other characters.
    rows = [line.split(b"\t") for line in lines_of(data)]
    for number, row in enumerate(rows):
        if len(row) != len(names):
            expected = f"expected {len(names)} columns separated by tabs ({', '.join(names)})"
            raise BadLine(f"{expected}, found {len(row)}", number)
        if names[-1] == "label" and row[-1] not in (b"0", b"1"):
            wrong_label = row[-1][:_SHOWN_LABEL].decode(errors="replace")
            raise BadLine(f"expected the label 0 or 1 in column {len(names)}, found {wrong_label!r}", number)
    texts: dict[str, OfficialTexts] = {}
    labels: list[int] = []
    for position, name in enumerate(names):
        if name in _TEXT_COLUMNS:
            texts[name] = texts_of([row[position] for row in rows], _TEXT_COLUMNS[name])
        elif name == "label":
            labels = [int(row[position]) for row in rows]
    return texts, labels


_ID = re.compile(rb"[0-9a-f]{32}")
Id = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]


def parse_pairs(data: bytes) -> tuple[bytes, bytes]:
    """Parse a block of ``dev.retrieval.top50.res.id_map.tsv``.

    Returns the concatenated ids of the queries, and those of the passages, of 16 bytes each.
    """
    # Lines are split as bytes, because str.splitlines() also splits at other characters.
    rows = [line.split(b"\t") for line in lines_of(data)]
    for number, row in enumerate(rows):
        if len(row) != 2 or not all(map(_ID.fullmatch, row)):
            raise BadLine("expected a query's id and a passage's id (32 hex digits), separated by a tab", number)
    query_ids = b"".join([row[0] for row in rows])
    passage_ids = b"".join([row[1] for row in rows])
    return bytes.fromhex(query_ids.decode()), bytes.fromhex(passage_ids.decode())


class OfficialParagraph(msgspec.Struct, gc=False):
    """A passage in ``passage_collection.json`` or in the judgments."""

    paragraph_id: Id
    paragraph_text: Annotated[str, msgspec.Meta(min_length=1)]


class RankedQuestion(msgspec.Struct, gc=False):
    """A row of ``test1.json`` and ``test2.json``."""

    question_id: Id
    question: Annotated[str, msgspec.Meta(min_length=1)]
    answer_paragraphs: list[OfficialParagraph] | None = None


class LabelledQuestion(RankedQuestion, gc=False):
    """A row of ``train.json`` and ``dev.json``."""

    answer_paragraphs: list[OfficialParagraph]


_decode_passage = msgspec.json.Decoder(OfficialParagraph).decode
_decode_question = msgspec.json.Decoder(RankedQuestion).decode
_decode_labelled = msgspec.json.Decoder(LabelledQuestion).decode
_PASSAGE_ROW = "a passage {paragraph_id, paragraph_text}"


def _decode_row(decode: Any, row: bytes, line_number: int, expected: str) -> Any:
    """Decode a row of JSON with ``decode``, a decoder's method.

    Raises :class:`BadLine`, whose message says that the row ``expected`` was not found. ``line_number`` is the number
    of the row's line in its block, from 0.
    """
    try:
        return decode(row)
    except msgspec.ValidationError as error:
        message = f"not {expected}: {error}"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = utf8_fault(row) or f"expected {expected} as one JSON object, found no JSON ({error})"
    raise BadLine(message, line_number)


def parse_passages(data: bytes) -> OfficialTexts:
    """Parse a block of ``passage_collection.json`` as JSON lines."""
    lines = enumerate(lines_of(data))
    return _texts_of_passages([_decode_row(_decode_passage, line, number, _PASSAGE_ROW) for number, line in lines])


def _texts_of_passages(rows: list[OfficialParagraph]) -> OfficialTexts:
    return texts_of([row.paragraph_text.encode() for row in rows], "passage", [row.paragraph_id for row in rows])


# The boundary of two rows of {"data": [...]}. Quotes in a text are escaped, so the pattern matches only between rows.
ROW_CUT = re.compile(rb'(?<!\\)"\s*\}\s*,\s*(?=\{\s*"paragraph_(?:id|text)"\s*:)')
MAP_CUT = re.compile(rb",")
LINE_CUT = re.compile(rb"\n")


def parse_wrapped(data: bytes) -> OfficialTexts:
    """Parse a block of ``passage_collection.json`` in the form ``{"data": [...]}``, without the outer brackets.

    Commas separate the rows. A row may have several lines.
    """
    row_ends = [match.end() for match in ROW_CUT.finditer(data)]
    row_ends.append(len(data))
    rows: list[OfficialParagraph] = []
    start = 0
    for end in row_ends:
        row = data[start:end].strip().removesuffix(b",")
        # The error names the first line of a row.
        first_line = data.count(b"\n", 0, start)
        rows.append(_decode_row(_decode_passage, row, first_line, _PASSAGE_ROW))
        start = end
    return _texts_of_passages(rows)


_PAIR = re.compile(rb'\s*"(\d{1,10})"\s*:\s*"([0-9a-f]{32})"\s*')


def parse_map(data: bytes) -> tuple[list[int], bytes]:
    """Parse a block of ``passage2id.map.json`` without its braces.

    Returns the line numbers, and the concatenated passage ids of 16 bytes each.
    """
    line_numbers: list[int] = []
    passage_ids: list[bytes] = []
    map_line = 0  # line of the block, for errors
    for pair in data.rstrip().removesuffix(b",").split(b","):
        map_line += pair.count(b"\n")  # each pair may be on its own line
        match = _PAIR.fullmatch(pair)
        if match is None:
            wrong_pair = pair.strip()[:_SHOWN_PAIR].decode(errors="replace")
            message = f'expected pairs of a line number and an id, {{"0": id, "1": id}}, found {wrong_pair!r}'
            raise BadLine(message, map_line)
        line_numbers.append(int(match[1]))
        passage_ids.append(match[2])
    return line_numbers, bytes.fromhex(b"".join(passage_ids).decode())


def parse_questions(data: bytes, labelled: bool) -> tuple[OfficialTexts, list[int], OfficialTexts]:
    """Parse a block of a questions file. ``labelled``: True for ``train.json`` and ``dev.json``, False for test files.

    Returns the questions, the number of passages of each question, and the passages of all questions.
    """
    if labelled:
        decode: Any = _decode_labelled
        expected = "a question {question_id, question, answer_paragraphs}"
    else:
        decode = _decode_question
        expected = "a question {question_id, question}"
    rows = [_decode_row(decode, line, number, expected) for number, line in enumerate(lines_of(data))]
    questions = texts_of([row.question.encode() for row in rows], "question", [row.question_id for row in rows])
    passage_counts: list[int] = []
    passages: list[OfficialParagraph] = []
    for row in rows:
        row_passages = row.answer_paragraphs or []
        passage_counts.append(len(row_passages))
        passages += row_passages
    return questions, passage_counts, _texts_of_passages(passages)
