"""Read reading comprehension in SQuAD's format and articles, and write the release."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from builders.add.collection import Collection, SourceTexts, described, drawn_questions, merge, write_set
from builders.core.errors import InputError, log
from builders.core.file_formats import describe_encoding
from builders.core.files import BOM, numbered_lines, read_all
from builders.core.progress import progress
from builders.core.typed import json_of
from builders.sources.source_files import Source, find_files, open_bytes
from builders.store.draft import draft_release
from builders.store.judgments import joined_row
from builders.store.layout import JOINED, SPLITS, text_id
from builders.text.span_options import MIN_CHARS

_JSON = re.compile(r"\.json(\.gz)?$", re.IGNORECASE)
_ANY = re.compile(r"")
_EXPECTED = 'expected SQuAD\'s format {"data": [{"paragraphs": [{"context", "qas": [{"question"}]}]}]}'
_CMRC_KEY = b'"context_text"'
# A sentence ends after its final punctuation and closing quotation marks.
_SENTENCE = re.compile("[^。！？!?]*[。！？!?]+[”’」』）)]*|[^。！？!?]+")


class Question(msgspec.Struct, gc=False):
    """One question. Without ``answers``, the paragraph answers the question.

    ``answers`` is a list of answers, or the object of lists that ``datasets`` writes.
    """

    question: str
    is_impossible: bool = False
    answers: Any = None

    @property
    def is_unanswered(self) -> bool:
        """True if the question is marked so, or if its answers are listed and none of them has a text."""
        if self.is_impossible or self.answers is None:
            return self.is_impossible
        answers = self.answers
        if isinstance(answers, dict):
            answers = answers.get("text", [])
        if not isinstance(answers, list):
            answers = [answers]
        texts = [answer.get("text", "") if isinstance(answer, dict) else answer for answer in answers]
        return not any(str(text).strip() for text in texts if text is not None)


class Paragraph(msgspec.Struct, gc=False):
    context: str
    qas: list[Question]


class Article(msgspec.Struct, gc=False):
    paragraphs: list[Paragraph]


class File(msgspec.Struct, gc=False):
    data: list[Article]


def write_squad_release(
    out: Path,
    *,
    question_paths: Mapping[str, Sequence[Path]],
    distractor_paths: Sequence[Path],
    cut: str,
    min_chars: int,
    dev_size: int | None,
    seed: int,
) -> dict[str, Any]:
    """Write the release ``out``, and return the content of its ``stats.json``.

    Args:
        question_paths: split -> files in SQuAD's format.
        distractor_paths: text files with one article a line.
        cut: a mode of :func:`cut_article`.
        min_chars: characters of a distractor's passages.
        dev_size: number of drawn dev questions (None: all).
        seed: seed of the draw.
    """
    questions: dict[str, list[Source]] = {}
    for split, paths in question_paths.items():
        questions[split] = []
        for path in paths:
            questions[split] += find_files(path, _JSON, "no .json or .json.gz")
    distractors = [source for path in distractor_paths for source in find_files(path, _ANY, "no file")]
    collection = read_squad(questions, distractors, cut, min_chars)
    options: dict[str, Any] = {"cut": cut, "min_chars": min_chars} if distractors else {}
    if dev_size:
        dev = collection.queries.get("dev", {})  # the passages of the other questions stay
        collection.queries["dev"] = drawn_questions(dev, dev_size, seed, "--dev-size")
        options |= {"dev_size": dev_size, "seed": seed}
    sources = [*itertools.chain.from_iterable(questions.values()), *distractors]
    with draft_release(out, {"verb": "squad", "options": options, "sources": described(sources)}) as draft:
        write_set(collection, draft)
        for split, queries in collection.queries.items():
            rows = []
            for text, passage_ids in queries.items():
                rows.append(joined_row(text_id(text), text, dict.fromkeys(passage_ids, 1), collection.passages))
            draft.write(split, split, [pa.Table.from_pylist(rows, JOINED)])
    return draft.stats


def read_squad(
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
    impossible = unanswered = 0
    for split in SPLITS:
        for source in questions.get(split, ()):
            for paragraph in _paragraphs(source):
                passages.add(paragraph.context, paragraph.context, source, 1)
                for row in paragraph.qas:
                    impossible += row.is_impossible
                    unanswered += row.is_unanswered and not row.is_impossible
                    if row.is_unanswered:
                        continue
                    texts.add(row.question, row.question, source, 1)  # counts a blank question
                    if row.question.strip():
                        judged.setdefault(split, {}).setdefault(row.question, {})[paragraph.context] = None
    if not judged:
        named = ", ".join(source.shown for sources in questions.values() for source in sources)
        raise InputError("no input; expected questions with answers", path=named or "--train, --dev, --test")
    if impossible:
        log.info("skipped %d questions that are marked is_impossible", impossible)
    if unanswered:
        log.info("skipped %d questions without answers", unanswered)
    for source in distractors:
        for line, article in progress(_lines(source), unit="article", label=source.name):
            for text in cut_article(article, cut, min_chars):
                passages.add(text, text, source, line)
    collection = merge("main", texts, passages, judged)
    collection.read["impossible"] = impossible
    if unanswered:
        collection.read["unanswered"] = unanswered
    return collection


def _paragraphs(source: Source) -> Iterator[Paragraph]:
    with open_bytes(source) as stream:
        content = read_all(stream, source.shown)
    if content.removeprefix(BOM).lstrip().startswith(b"[") and _CMRC_KEY in content:
        problem = f"is CMRC 2018's own format; {_EXPECTED}, which CMRC has in its folder squad-style-data"
        raise InputError(problem, path=source.shown)
    file = json_of(content, File, source.shown, remedy=_EXPECTED)
    for article in file.data:
        yield from article.paragraphs


def _lines(source: Source) -> Iterator[tuple[int, str]]:
    """Yield (line, text) for the lines that are not blank. Only ``\\n`` ends a line.

    Raises :class:`InputError` with the line for text that is not UTF-8.
    """
    with open_bytes(source) as stream:
        for number, line in numbered_lines(stream, source.shown):
            try:
                text = line.removeprefix(BOM).decode().strip()
            except UnicodeDecodeError:
                raise InputError(describe_encoding(line), path=source.shown, line=number) from None
            if text:
                yield number, text


def cut_article(article: str, cut: str, min_chars: int = MIN_CHARS) -> list[str]:
    """Return an article's passages: the first passage (``head``), all passages, or the uncut article (``whole``)."""
    from builders.release.paragraphs import cut_passages  # a slow import, which --help avoids

    if cut == "whole":
        return [article]
    sentences = _SENTENCE.findall(article)
    unlabelled = np.zeros(len(sentences), np.bool_)
    found: list[str] = cut_passages([sentences], unlabelled, min_chars).texts.to_pylist()
    return found[:1] if cut == "head" else found
