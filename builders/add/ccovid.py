"""Read the files of DataFountain competition 424, the source of cCOVID-News (Section 2.4)."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from builders.add.collection import Collection, SourceTexts, files_of, merge_texts
from builders.core.errors import log
from builders.core.progress import show_progress
from builders.core.read_files import numbered_lines
from builders.core.typed import json_of
from builders.sources.source_bars import read_rows_with_bar, source_bytes
from builders.sources.source_files import Source, open_bytes
from builders.sources.source_tables import open_table

# Kind of a file -> its columns. Lines of JSON have no header.
HEADERS = {
    "documents": ("docid", "text"),
    "judged": ("id", "docid", "question", "answer"),
    "unlabelled": ("id", "question"),
    "json": (),
}

# (line, id of a document, its text or None, question or None)
_SourceRow = tuple[int, str, str | None, str | None]


class NewsRow(msgspec.Struct, gc=False):
    """A line of JSON: a document, and optionally a question about the document."""

    docid: str
    context: str
    question: str | None = None


def read_ccovid(
    source_paths: Sequence[Path],
    encoding: str = "auto",
) -> tuple[Collection, list[Source]]:
    """Return the set, with all questions in the split ``all``, and the files that were read.

    ``encoding`` is a value of ``--encoding``. Raises :class:`InputError` for a wrong row, and if ``source_paths`` names
    a file with another header.
    """
    questions = SourceTexts("question")
    documents = SourceTexts("document")
    judged: dict[str, dict[str, None]] = {}  # question -> ids of its documents, in order
    used_sources = []
    for file_kind, source in files_of("the competition's", HEADERS, source_paths):
        if file_kind == "unlabelled":
            log.info("%s: skipped, because its questions have no document", source.name)
            continue
        used_sources.append(source)
        for line, document_id, text, question in _rows(file_kind, source, encoding):
            if text is not None:
                documents.add(document_id, text, source, line)
            if question is not None:
                # The file's ids name pairs of a question and a document, so a question's text serves as its id.
                questions.add(question, question, source, line)
                if question.strip():
                    judged.setdefault(question, {})[document_id] = None
    return merge_texts("ccovid", questions, documents, {"all": judged}), used_sources


def _rows(file_kind: str, source: Source, encoding: str) -> Iterator[_SourceRow]:
    """Yield the rows of a file. ``file_kind`` is ``documents``, ``judged`` or ``json``."""
    if file_kind == "json":
        yield from _json_rows(source)
        return
    table = open_table(source, encoding)
    if file_kind == "documents":
        # The text may contain unescaped tabs, so it extends to the end of the line.
        is_text_last = table.columns[-1] == "text"
        rows = read_rows_with_bar(table, HEADERS[file_kind], "document", rest_in_last=is_text_last)
        for line, (document_id, text) in rows:
            yield line, document_id, text, None
    else:
        for line, (document_id, question) in read_rows_with_bar(table, ("docid", "question"), "question"):
            yield line, document_id, None, question


def _json_rows(source: Source) -> Iterator[_SourceRow]:
    """Yield the rows of a file of JSON lines. Blank lines are skipped."""
    with (
        show_progress(total=source_bytes(source), unit="B", label=source.name) as bar,
        open_bytes(source) as stream,
    ):
        for line_number, line in numbered_lines(stream, source.shown):
            if line.strip():
                row = json_of(line, NewsRow, source.shown, line_number)
                yield line_number, row.docid, row.context, row.question
            bar.update(len(line))
