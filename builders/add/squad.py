"""Build a release from reading comprehension in SQuAD's format.

Each question of a reading comprehension dataset becomes a query, and its paragraph becomes the positive passage. The
result is real Chinese retrieval data, small enough to train on one machine. The input is JSON, plain, .gz or .zip:
{"data": [{"paragraphs": [{"context", "qas": [{"question"}]}]}]}. SQuAD 1.1 and 2.0, CMRC 2018, DRCD and XQuAD have this
format. Paragraphs are not cut. Equal questions become one query with all their paragraphs. A query in several splits
stays in the first of test, dev, train. Questions marked is_impossible are skipped.

--passages adds distractors from text files with one article a line. Check the licences of the articles. Sentences of an
article are joined until a passage has --min-chars characters (Section 2.2.2). --cut selects the passages to add.

example:
  python -m builders squad --train cmrc/train.json.gz --dev cmrc/dev.json.gz --passages news/*.gz --out build/cmrc
"""

import argparse
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from builders.add.collection import Collection, SourceTexts, described, drawn_questions, merge, write
from builders.core.command import add_format, whole_number
from builders.core.errors import InputError, log
from builders.core.progress import progress
from builders.core.tables import print_result
from builders.core.typed import json_of
from builders.sources.source_files import Source, find_files, open_bytes
from builders.store.draft import draft_release
from builders.store.judgments import joined_row
from builders.store.layout import JOINED, SPLITS, text_id
from builders.store.table3 import table3_text
from builders.text.span_options import MIN_CHARS

CUTS = ("head", "all", "whole")
_JSON = re.compile(r"\.json(\.gz)?$", re.IGNORECASE)
_ANY = re.compile(r"")
# A sentence ends after its final punctuation and closing quotation marks.
_SENTENCE = re.compile("[^。！？!?]*[。！？!?]+[”’」』）)]*|[^。！？!?]+")


class Question(msgspec.Struct, gc=False):
    """One question. The answer is not read."""

    question: str
    is_impossible: bool = False


class Paragraph(msgspec.Struct, gc=False):
    context: str
    qas: list[Question]


class Article(msgspec.Struct, gc=False):
    paragraphs: list[Paragraph]


class File(msgspec.Struct, gc=False):
    data: list[Article]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    for split in SPLITS:
        help_text = f"questions of {split}" + "; paragraphs of all splits join the collection" * (split == "train")
        add(f"--{split}", nargs="+", type=Path, default=[], metavar="FILE", help=help_text)
    add("--passages", nargs="+", type=Path, default=[], metavar="FILE", help="distractors, one article a line")
    add("--cut", choices=CUTS, default="head", help="first passage, all passages, or uncut article (default: head)")
    add(
        "--min-chars",
        type=whole_number(1),
        default=MIN_CHARS,
        metavar="N",
        help="join sentences until a passage has N characters (default: 256)",
    )
    add("--dev-size", type=whole_number(1), metavar="N", help="draw N dev questions at random (default: all)")
    add("--seed", type=int, default=0, help="seed of the draw (default: 0)")
    add("--out", type=Path, required=True, metavar="DIR", help="release directory to write")
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    questions = {
        split: [found for path in getattr(args, split) for found in find_files(path, _JSON, "no .json or .json.gz")]
        for split in SPLITS
    }
    distractors = [found for path in args.passages for found in find_files(path, _ANY, "no file")]
    collection = read(questions, distractors, args.cut, args.min_chars)
    options: dict[str, Any] = {"cut": args.cut, "min_chars": args.min_chars} if distractors else {}
    if args.dev_size:
        dev = collection.queries.get("dev", {})  # the passages of the other questions stay
        collection.queries["dev"] = drawn_questions(dev, args.dev_size, args.seed, "--dev-size")
        options |= {"dev_size": args.dev_size, "seed": args.seed}
    sources = [*(source for split in SPLITS for source in questions[split]), *distractors]
    with draft_release(args.out, {"verb": "squad", "options": options, "sources": described(sources)}) as draft:
        write(collection, draft)
        for split, queries in collection.queries.items():
            rows = [
                joined_row(text_id(text), text, dict.fromkeys(found, 1), collection.passages)
                for text, found in queries.items()
            ]
            draft.write(split, split, [pa.Table.from_pylist(rows, JOINED)])
    print_result(draft.stats, f"{table3_text(draft.stats)}\nrelease: {args.out}", args.format)


def read(
    questions: Mapping[str, Sequence[Source]],
    distractors: Sequence[Source] = (),
    cut: str = "head",
    min_chars: int = MIN_CHARS,
) -> Collection:
    """Return the collection. Its passages are the paragraphs of train, dev and test, then the distractors.

    ``distractors`` are text files with one article a line, and ``cut`` is a mode of :func:`cut_article`. Raises
    :class:`InputError` for a file that is not UTF-8 or not in SQuAD's format, and if no split has a question.
    """
    texts, passages = SourceTexts("question"), SourceTexts("passage")
    judged: dict[str, dict[str, dict[str, None]]] = {}
    impossible = 0
    for split in SPLITS:
        for source in questions.get(split, ()):
            for paragraph in _paragraphs(source):
                passages.add(paragraph.context, paragraph.context, source, 1)
                for row in paragraph.qas:
                    impossible += row.is_impossible
                    if row.question.strip() and not row.is_impossible:
                        texts.add(row.question, row.question, source, 1)
                        judged.setdefault(split, {}).setdefault(row.question, {})[paragraph.context] = None
    if not judged:
        named = ", ".join(source.shown for sources in questions.values() for source in sources)
        raise InputError("no input; expected questions with answers", path=named or "--train, --dev, --test")
    if impossible:
        log.info("skipped %d questions that are marked is_impossible", impossible)
    for source in distractors:
        for line, article in progress(_lines(source), unit="article", label=source.name):
            for text in cut_article(article, cut, min_chars):
                passages.add(text, text, source, line)
    collection = merge("main", texts, passages, judged)
    collection.read["impossible"] = impossible
    return collection


def _paragraphs(source: Source) -> Iterator[Paragraph]:
    with open_bytes(source) as stream:
        file = json_of(stream.read(), File, source.shown)
    for article in file.data:
        yield from article.paragraphs


def _lines(source: Source) -> Iterator[tuple[int, str]]:
    """Yield (line, text) for the lines that are not blank. Only ``\\n`` ends a line."""
    with open_bytes(source) as stream, io.TextIOWrapper(stream, "utf-8-sig", newline="\n") as text:
        yield from ((number, line.strip()) for number, line in enumerate(text, 1) if line.strip())


def cut_article(article: str, cut: str, min_chars: int = MIN_CHARS) -> list[str]:
    """Return an article's passages: the first passage (``head``), all passages, or the uncut article (``whole``)."""
    from builders.release.paragraphs import cut_passages  # a slow import, which --help avoids

    if cut == "whole":
        return [article]
    sentences = _SENTENCE.findall(article)
    unlabelled = np.zeros(len(sentences), np.bool_)
    found: list[str] = cut_passages([sentences], unlabelled, min_chars).texts.to_pylist()
    return found[:1] if cut == "head" else found
