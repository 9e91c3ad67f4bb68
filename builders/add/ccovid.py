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

from builders.add.collection import Collection, SourceTexts, add_options, files_of, merge, write_release
from builders.core.errors import log
from builders.core.typed import json_of
from builders.sources.files import Source, open_bytes
from builders.sources.tables import open_table

HEADERS = {
    "documents": ("docid", "text"),
    "judged": ("id", "docid", "question", "answer"),
    "unlabelled": ("id", "question"),
    "json": (),
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
    collection, used = read(args.source, args.encoding)
    write_release(collection, args, used)


def read(paths: Sequence[Path], encoding: str = "auto") -> tuple[Collection, list[Source]]:
    """Return the set, its questions not split yet, and the files that it came from.

    A file that ``paths`` name and that is none of the competition's is an :class:`InputError`, as a wrong row is.
    """
    questions, documents = SourceTexts("question"), SourceTexts("document")
    judged: dict[str, dict[str, None]] = {}
    used = []
    for kind, source in files_of("the competition's", HEADERS, paths):
        if kind == "unlabelled":
            log.info("%s: questions without a document, not used", source.name)
            continue
        used.append(source)
        for line, docid, text, question in _rows(kind, source, encoding):
            if text is not None:
                documents.add(docid, text, source, line)
            if question is not None:
                # A question's id is no help: each stands for one pair of question and document.
                questions.add(question, question, source, line)
                if question.strip():
                    judged.setdefault(question, {})[docid] = None
    return merge("ccovid", questions, documents, {"all": judged}), used


def _rows(kind: str, source: Source, encoding: str) -> Iterator[tuple[int, str, str | None, str | None]]:
    """(line, docid, text, question) of a file, which may lack texts or questions."""
    if kind == "json":
        with open_bytes(source) as stream:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    row = json_of(line, Row, source.shown, number)
                    yield number, row.docid, row.context, row.question
        return
    table = open_table(source, encoding)
    if kind == "documents":
        # The text may hold tabs, which nothing escapes: it goes on to the end of its line.
        rows = table.rows(HEADERS[kind], rest_in_last=table.columns[-1] == "text")
        yield from ((line, docid, text, None) for line, (docid, text) in rows)
    else:
        yield from ((line, docid, None, question) for line, (docid, question) in table.rows(("docid", "question")))
