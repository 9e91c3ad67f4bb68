"""Read reading comprehension in SQuAD's format and articles, and write the release."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from builders.add.collection import Collection, SourceTexts, describe_sources, draw_questions, merge_texts, write_set
from builders.core.errors import InputError, log
from builders.core.file_formats import describe_encoding
from builders.core.progress import show_progress
from builders.core.read_files import BOM, numbered_lines, read_all
from builders.core.typed import json_of
from builders.sources.source_bars import total_bytes
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


class SquadQuestion(msgspec.Struct, gc=False):
    """One question. Without ``answers``, the paragraph answers the question.

    ``answers`` is a list of answers, or the object of lists that ``datasets`` writes.
    """

    question: str
    is_impossible: bool = False
    answers: Any = None

    @property
    def is_unanswered(self) -> bool:
        """True if the question is marked so, or if its answers are listed and none of them has a text."""
        if self.is_impossible:
            return True
        if self.answers is None:  # the file lists no answers
            return False
        answers = self.answers
        # `datasets` writes {"text": [...], "answer_start": [...]} instead of a list of answers.
        if isinstance(answers, dict):
            answers = answers.get("text", [])
        if not isinstance(answers, list):  # a single answer
            answers = [answers]
        return not any(map(_has_text, answers))


def _has_text(answer: Any) -> bool:
    """True if the text of an answer is not blank. An answer is a text, or an object with the key ``text``."""
    if isinstance(answer, dict):
        answer = answer.get("text", "")
    return answer is not None and bool(str(answer).strip())


class SquadParagraph(msgspec.Struct, gc=False):
    context: str
    qas: list[SquadQuestion]


class SquadArticle(msgspec.Struct, gc=False):
    paragraphs: list[SquadParagraph]


class SquadFile(msgspec.Struct, gc=False):
    data: list[SquadArticle]


def write_squad_release(
    out_path: Path,
    *,
    question_paths: Mapping[str, Sequence[Path]],
    distractor_paths: Sequence[Path],
    cut: str,
    min_chars: int,
    dev_size: int | None,
    seed: int,
) -> dict[str, Any]:
    """Write the release ``out_path``, and return the content of its ``stats.json``.

    Args:
        question_paths: split -> files in SQuAD's format.
        distractor_paths: text files with one article a line.
        cut: passages of an article to add: ``head``, ``all`` or ``whole`` (:func:`cut_article`).
        min_chars: sentences of an article are joined until a passage has so many characters.
        dev_size: number of drawn dev questions (None: all).
        seed: seed of the draw.
    """
    question_files: dict[str, list[Source]] = {}
    for split, paths in question_paths.items():
        question_files[split] = []
        for path in paths:
            question_files[split] += find_files(path, _JSON, "no .json or .json.gz")
    distractor_files: list[Source] = []
    for path in distractor_paths:
        distractor_files += find_files(path, _ANY, "no file")
    # The collection has the passages of all questions, also of questions that are not drawn below.
    collection = read_squad(question_files, distractor_files, cut, min_chars)

    options: dict[str, Any] = {}
    if distractor_files:
        options |= {"cut": cut, "min_chars": min_chars}
    if dev_size:
        dev_queries = collection.queries.get("dev", {})
        collection.queries["dev"] = draw_questions(dev_queries, dev_size, seed, "--dev-size")
        options |= {"dev_size": dev_size, "seed": seed}
    # The manifest lists the files in the order in which they were read.
    all_files: list[Source] = []
    for split_files in question_files.values():
        all_files += split_files
    all_files += distractor_files

    build = {"verb": "squad", "options": options, "sources": describe_sources(all_files)}
    with draft_release(out_path, build) as draft:
        write_set(collection, draft)
        for split, queries in collection.queries.items():
            # Joined rows have the texts of the passages, so that a training needs no other config.
            rows = []
            for text, passage_ids in queries.items():
                relevance = dict.fromkeys(passage_ids, 1)
                rows.append(joined_row(text_id(text), text, relevance, collection.passages))
            draft.write(split, split, [pa.Table.from_pylist(rows, JOINED)])
    return draft.stats


def read_squad(
    question_files: Mapping[str, Sequence[Source]],
    distractor_files: Sequence[Source] = (),
    cut_mode: str = "head",
    min_chars: int = MIN_CHARS,
) -> Collection:
    """Return the collection. Its passages are the paragraphs of train, dev and test, then the distractors.

    ``question_files`` maps splits to files in SQuAD's format. ``distractor_files`` are text files with one article a
    line. ``cut_mode`` and ``min_chars`` are those of :func:`cut_article`. Raises :class:`InputError` for a file that is
    not UTF-8 or not in SQuAD's format, and if no split has a question.
    """
    question_texts = SourceTexts("question")
    passages = SourceTexts("passage")
    # Split -> question -> its paragraphs, in order
    judged: dict[str, dict[str, dict[str, None]]] = {}
    impossible_count = 0
    unanswered_count = 0
    # In the order of the splits, which is also the order of the passages in the corpus.
    for split in SPLITS:
        for source in question_files.get(split, ()):
            paragraphs = list(_paragraphs(source))
            for paragraph in show_progress(paragraphs, total=len(paragraphs), unit="paragraph", label=source.name):
                # A text is its own id. The line of a text in JSON is unknown, so errors name line 1.
                passages.add(paragraph.context, paragraph.context, source, 1)
                for question in paragraph.qas:
                    if question.is_impossible:
                        impossible_count += 1
                        continue
                    if question.is_unanswered:
                        unanswered_count += 1
                        continue
                    text = question.question
                    question_texts.add(text, text, source, 1)  # counts a blank question
                    if text.strip():
                        judged.setdefault(split, {}).setdefault(text, {})[paragraph.context] = None
    if not judged:
        source_names: list[str] = []
        for sources in question_files.values():
            source_names += [source.shown for source in sources]
        error_path = ", ".join(source_names) or "--train, --dev, --test"
        raise InputError("no input; expected questions with answers", path=error_path)
    if impossible_count:
        log.info("skipped %d questions that are marked is_impossible", impossible_count)
    if unanswered_count:
        log.info("skipped %d questions without answers", unanswered_count)

    _add_distractors(passages, distractor_files, cut_mode, min_chars)
    collection = merge_texts("main", question_texts, passages, judged)
    collection.read["impossible"] = impossible_count
    if unanswered_count:
        collection.read["unanswered"] = unanswered_count
    return collection


def _add_distractors(
    passages: SourceTexts,
    distractor_files: Sequence[Source],
    cut_mode: str,
    min_chars: int,
) -> None:
    """Add the passages of the articles of ``distractor_files``, which are cut by :func:`cut_article`."""
    if not distractor_files:
        return
    with show_progress(total=total_bytes(distractor_files), unit="B", label="distractors") as bar:
        for source in distractor_files:
            for line_number, article, byte_count in _lines(source):
                for text in cut_article(article, cut_mode, min_chars):
                    passages.add(text, text, source, line_number)
                bar.update(byte_count)


def _paragraphs(source: Source) -> Iterator[SquadParagraph]:
    """Yield the paragraphs of a file. Raises :class:`InputError` for a file that is not in SQuAD's format."""
    with open_bytes(source) as stream:
        content = read_all(stream, source.shown)
    # CMRC 2018 publishes its data in two formats. Its own format is a list of objects.
    is_list = content.removeprefix(BOM).lstrip().startswith(b"[")
    if is_list and _CMRC_KEY in content:
        problem = f"is CMRC 2018's own format; {_EXPECTED}, which CMRC has in its folder squad-style-data"
        raise InputError(problem, path=source.shown)
    file = json_of(content, SquadFile, source.shown, remedy=_EXPECTED)
    for article in file.data:
        yield from article.paragraphs


def _lines(source: Source) -> Iterator[tuple[int, str, int]]:
    """Yield (line, text, bytes since the previous text) for the lines that are not blank. Only ``\\n`` ends a line.

    The number of bytes moves a progress bar. Raises :class:`InputError` with the line for text that is not UTF-8.
    """
    byte_count = 0
    with open_bytes(source) as stream:
        for line_number, line in numbered_lines(stream, source.shown):
            byte_count += len(line)
            try:
                # Joined files may have a byte order mark in any line.
                text = line.removeprefix(BOM).decode().strip()
            except UnicodeDecodeError:
                raise InputError(describe_encoding(line), path=source.shown, line=line_number) from None
            if text:
                yield line_number, text, byte_count
                byte_count = 0


def cut_article(article: str, cut_mode: str, min_chars: int = MIN_CHARS) -> list[str]:
    """Return an article's passages: the first passage (``head``), all passages, or the uncut article (``whole``).

    Sentences are joined until a passage has ``min_chars`` characters.
    """
    from builders.release.paragraphs import cut_passages  # a slow import, which --help avoids

    if cut_mode == "whole":
        return [article]
    sentences = _SENTENCE.findall(article)
    is_labelled = np.zeros(len(sentences), np.bool_)  # no sentence is part of an answer
    article_passages: list[str] = cut_passages([sentences], is_labelled, min_chars).texts.to_pylist()
    return article_passages[:1] if cut_mode == "head" else article_passages
