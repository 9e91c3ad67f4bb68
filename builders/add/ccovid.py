"""Add cCOVID-News, the news out-of-domain set (Section 2.4).

Table 3 has its figures. It is made from the files of DataFountain competition 424, alone or beside a copy of a release.
Read are NCPPolicies_context_*.csv (docid, text: the policy documents, whole documents are the passages) and
NCPPolicies_train_*.csv (id, docid, question, answer), tab-separated, UTF-8 or GB18030, plain, .gz or .zip; and JSON
lines with docid and context (and question), which bring documents, too. Files are known by their header. The
competition's own test questions have no document and are not used.

949 questions are drawn at random for test, as the paper does; the remaining ones (its 4,949 distinct questions leave
4,000) are train, for fine-tuning. The paper's draw is not known: the manifest has the seed of this one.

example:
  python -m builders add ccovid --source NCPPolicies --out build/ccovid
  python -m builders add ccovid --source NCPPolicies --release build/sample --out build/with-ccovid --seed 7
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from builders.add.collection import (
    Collection,
    SourceTexts,
    add_options,
    check_found,
    files_of,
    kind_by,
    merge,
    write_release,
)
from builders.core.errors import InputError, log
from builders.sources.encoding import encoding_of
from builders.sources.files import Source, open_bytes
from builders.sources.lines import content, lines, read_blocks
from builders.sources.tables import find_tables, open_table

HEADERS = {
    "documents": ("docid", "text"),
    "judged": ("id", "docid", "question", "answer"),
    "unlabelled": ("id", "question"),
}
TEST_SIZE = 949  # Section 2.4


class Row(msgspec.Struct, gc=False):
    """A document with, perhaps, one of its questions: a line of JSON."""

    docid: str
    context: str
    question: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, test_size=TEST_SIZE)


def run(args: argparse.Namespace) -> None:
    collection, used = read(find_tables(args.source), args.source, args.encoding)
    write_release(collection, args, used, {})


def read(
    files: Sequence[Source], given: Sequence[Path] = (), encoding: str = "auto"
) -> tuple[Collection, list[Source]]:
    """The set, its questions not split yet, and the files that it came from.

    Args:
        files: where to look.
        given: paths that the user named: one of these that is no file of the competition is an error.
        encoding: of every file, see :mod:`builders.sources.encoding`.

    Raises:
        InputError: for a file that is none of the competition's, a wrong row, or where a needed file is missing.
    """
    questions, documents = SourceTexts("question"), SourceTexts("document")
    judged: dict[str, dict[str, None]] = {}

    def judge(question: str, docid: str, source: Source, line: int) -> None:
        # A question's id is no help: each stands for one pair of question and document. The text is what it is.
        questions.add(question, question, source, line)
        if question.strip():
            judged.setdefault(question, {})[docid] = None

    used = []
    for kind, source in files_of("the competition's", files, given, _kind_of, "id, docid, question, answer"):
        if kind == "unlabelled":
            log.info("%s: questions without a document, not used", source.name)
            continue
        if kind == "documents":
            # The text may hold tabs, which nothing escapes: it goes on to the end of its line.
            table = open_table(source, encoding)
            for line, (docid, text) in table.rows(HEADERS["documents"], rest_in_last=table.columns[-1] == "text"):
                documents.add(docid, text, source, line)
        elif kind == "judged":
            for line, (docid, question) in open_table(source, encoding).rows(("docid", "question")):
                judge(question, docid, source, line)
        else:
            for line, row in json_rows(source, encoding):
                documents.add(row.docid, row.context, source, line)
                if row.question is not None:
                    judge(row.question, row.docid, source, line)
        used.append(source)
    check_found(documents.by_source, "documents", "NCPPolicies_context_*.csv")
    check_found(judged, "questions with a document", "NCPPolicies_train_*.csv")
    return merge("ccovid", questions, documents, {"all": judged}), used


def _kind_of(header: list[str]) -> str | None:
    return "json" if header[0].startswith("{") else kind_by(HEADERS, header)


_decode = msgspec.json.Decoder(Row).decode


def json_rows(source: Source, encoding: str) -> Iterator[tuple[int, Row]]:
    """(line, row) of JSON lines, which are UTF-8; :class:`InputError` with the line for anything else."""
    if encoding_of(lambda: open_bytes(source), source.shown, encoding) != "utf-8":
        raise InputError("expected JSON lines in UTF-8", path=source.shown)
    number = 0
    for block in read_blocks([source]):
        for _, line in lines(*content(block)):
            number += 1
            try:
                yield number, _decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                if bytes(line).strip():
                    expected = f"not a JSON line with docid and context as text ({error})"
                    raise InputError(expected, path=source.shown, line=number) from None
