"""Read the files of DataFountain competition 424, the source of cCOVID-News (Section 2.4)."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from builders.add.collection import Collection, SourceTexts, files_of, merge
from builders.core.errors import log
from builders.core.files import numbered_lines
from builders.core.typed import json_of
from builders.sources.source_files import Source, open_bytes
from builders.sources.source_tables import open_table

HEADERS = {
    "documents": ("docid", "text"),
    "judged": ("id", "docid", "question", "answer"),
    "unlabelled": ("id", "question"),
    "json": (),
}


class Row(msgspec.Struct, gc=False):
    """A line of JSON: a document, and optionally a question about the document."""

    docid: str
    context: str
    question: str | None = None


def read_ccovid(paths: Sequence[Path], encoding: str = "auto") -> tuple[Collection, list[Source]]:
    """Return the set, with all questions in one split, and the files that were read.

    Raises :class:`InputError` for a wrong row, and if ``paths`` names a file with another header.
    """
    questions, documents = SourceTexts("question"), SourceTexts("document")
    judged: dict[str, dict[str, None]] = {}
    used = []
    for kind, source in files_of("the competition's", HEADERS, paths):
        if kind == "unlabelled":
            log.info("%s: skipped, because its questions have no document", source.name)
            continue
        used.append(source)
        for line, docid, text, question in _rows(kind, source, encoding):
            if text is not None:
                documents.add(docid, text, source, line)
            if question is not None:
                # The file's ids name pairs of a question and a document, so the text is the id of a question.
                questions.add(question, question, source, line)
                if question.strip():
                    judged.setdefault(question, {})[docid] = None
    return merge("ccovid", questions, documents, {"all": judged}), used


def _rows(kind: str, source: Source, encoding: str) -> Iterator[tuple[int, str, str | None, str | None]]:
    """Yield (line, docid, text or None, question or None) for the rows of a file."""
    if kind == "json":
        with open_bytes(source) as stream:
            for number, line in numbered_lines(stream, source.shown):
                if line.strip():
                    row = json_of(line, Row, source.shown, number)
                    yield number, row.docid, row.context, row.question
        return
    table = open_table(source, encoding)
    if kind == "documents":
        # The text may contain unescaped tabs, so it extends to the end of the line.
        rows = table.rows(HEADERS[kind], rest_in_last=table.columns[-1] == "text")
        yield from ((line, docid, text, None) for line, (docid, text) in rows)
    else:
        yield from ((line, docid, None, question) for line, (docid, question) in table.rows(("docid", "question")))
