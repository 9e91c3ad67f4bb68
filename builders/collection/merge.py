"""A set of questions and passages of somebody else's, from the source's ids to texts.

Sources name questions and passages by ids of their own; a release by the MD5 of the text. So equal texts become one:
questions with all their passages, passages with all their questions. A question whose text comes in several splits
stays in the first of test, dev, train. A judgment counts only where question and passage both have a text; the others
are counted, reported, and left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from builders.common.command import InputError, log
from builders.common.sampling import draw
from builders.sources.files import Source
from builders.store.layout import text_id

# A question whose text comes in several splits stays in the first of these. ``all``: not split yet.
ORDER = ("all", "test", "dev", "train")

# By split, by the source's id of the question: the source's ids of its positive passages, in order.
Judgments = Mapping[str, Mapping[str, Iterable[str]]]
# By the question's text: the MD5s of its positive passages, in order, each once.
Queries = dict[str, list[str]]


class SourceTexts:
    """The texts of one kind (questions, or passages) by their source's id, in order of first appearance.

    Attributes:
        kind: how messages call them.
        by_source: the text of a source's id.
        blank: how many ids have an empty text or white space alone: they are left out.
    """

    def __init__(self, kind: str) -> None:
        self.kind, self.blank = kind, 0
        self.by_source: dict[str, str] = {}

    def add(self, source_id: str, text: str, source: Source, line: int) -> None:
        """Raises :class:`InputError` for an id with two texts."""
        if not text.strip():
            self.blank += 1
        elif self.by_source.setdefault(source_id, text) != text:
            raise InputError(f"a second text for the {self.kind} {source_id!r}", path=source.shown, line=line)

    def distinct(self) -> dict[str, str]:
        """Text by its MD5, in order."""
        return {text_id(text): text for text in self.by_source.values()}


@dataclass
class Collection:
    """A set on its way into a release: its passages, its queries by split, and what was counted on the way."""

    name: str  # cmedqa: the configs' first word, and the column of Table 3; main: the configs without such a word
    passages: dict[str, str]
    queries: dict[str, Queries]
    read: dict[str, Any] = field(default_factory=dict)


_COUNTED = (
    *("questions", "judgments", "question_missing", "passage_missing", "same_text_again"),
    *("in_another_split", "without_positive"),
)


def merge(name: str, questions: SourceTexts, passages: SourceTexts, judgments: Judgments) -> Collection:
    """Source ids to texts and their MD5s, judgments without a text left out and counted."""
    ids = {source_id: text_id(text) for source_id, text in passages.by_source.items()}
    result = Collection(name, passages.distinct(), {})
    result.read["passages"] = {
        "read": len(ids) + passages.blank,
        "blank": passages.blank,
        "same_text_again": len(ids) - len(result.passages),
    }
    taken: set[str] = set()  # by an earlier split
    for split in sorted(judgments, key=ORDER.index):
        counts = dict.fromkeys(_COUNTED, 0)
        unknown: dict[str, None] = {}
        merged = merge_equal_questions(judgments[split], questions.by_source, ids, taken, counts, unknown)
        result.queries[split] = {text: list(positives) for text, positives in merged.items() if positives}
        counts["without_positive"] = len(merged) - len(result.queries[split])
        taken.update(merged)
        result.read[split] = counts
        _report(name, split, counts, unknown)
    if not any(result.queries.values()):
        raise InputError(f"{name}: no question has a passage; the questions and passages of one source are needed")
    return result


def merge_equal_questions(
    judged: Mapping[str, Iterable[str]],
    texts: Mapping[str, str],
    ids: Mapping[str, str],
    taken: set[str],
    counts: dict[str, int],
    unknown: dict[str, None],
) -> dict[str, dict[str, None]]:
    """Questions of one text are one, with the passages of all: by text the MD5s of its passages.

    A text of an earlier split, which is in ``taken``, is left out; ``unknown`` gets the passages without a text.
    """
    merged: dict[str, dict[str, None]] = {}
    for question, answers in judged.items():
        found = dict.fromkeys(answers)
        counts["questions"] += 1
        counts["judgments"] += len(found)
        text = texts.get(question)
        if text is None:
            counts["question_missing"] += 1
            continue
        missing = [answer for answer in found if answer not in ids]
        counts["passage_missing"] += len(missing)
        unknown.update(dict.fromkeys(missing))
        if text in taken:
            counts["in_another_split"] += 1
            continue
        counts["same_text_again"] += text in merged
        merged.setdefault(text, {}).update((ids[answer], None) for answer in found if answer in ids)
    return merged


def _report(name: str, split: str, counts: Mapping[str, int], unknown: Iterable[str]) -> None:
    if counts["passage_missing"]:
        log.warning(
            "%s %s: %d of %d judgments name a passage that the sources do not have, and are left out (%s)",
            *(name, split, counts["passage_missing"], counts["judgments"], ", ".join(islice(unknown, 3))),
        )
    for key, words in (
        ("question_missing", "have no text in the sources"),
        ("without_positive", "have no passage left"),
        ("in_another_split", "have the text of one in an earlier split of test, dev, train"),
    ):
        if counts[key]:
            log.warning("%s %s: %d questions %s, and are left out", name, split, counts[key], words)


def draw_test_questions(collection: Collection, size: int, seed: int) -> None:
    """Test becomes ``size`` queries drawn at random (from ``all``, or test as it is), the rest is for training.

    Section 2.4 draws 949 of cCOVID-News; that the rest is for training says the paper's second version.

    Raises :class:`InputError` where there are fewer.
    """
    before = collection.queries.pop("all" if "all" in collection.queries else "test")
    if len(before) < size:
        raise InputError(
            f"{collection.name}: {len(before)} questions have a passage, fewer than the {size} of --test-size"
        )
    drawn = draw(map(text_id, before), size, seed)
    rest = {text: positives for text, positives in before.items() if text_id(text) not in drawn}
    collection.queries["test"] = {text: before[text] for text in before if text not in rest}
    if rest:
        collection.queries["train"] = collection.queries.get("train", {}) | rest
