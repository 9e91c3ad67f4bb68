"""Convert questions and passages from another source to configs of a release.

The ids of a release are MD5s of the text, so equal texts become one question or passage. A question in several
splits stays in the first of test, dev, train. Judgments of a question or passage without a text are counted, reported
and skipped.
"""

import dataclasses
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from builders.core.errors import InputError, log
from builders.core.results import Report
from builders.core.sampling import draw
from builders.sources.source_files import Source
from builders.sources.source_tables import find_tables, header_of
from builders.store.draft import Draft, describe_files, draft_release
from builders.store.judgments import qrels_table
from builders.store.layout import CORPUS, QUERIES, long_text_fault, text_id
from builders.store.reader import Release, open_release
from builders.store.table3 import LengthCounter, table3_column, table3_tables, table3_text
from builders.store.written_release import WrittenRelease, open_written

# A question in several splits stays in the first of these splits. ``all`` has questions without a split.
ORDER = ("all", "test", "dev", "train")

# Split -> source's id of a question -> source's ids of its positive passages, in order.
Judgments = Mapping[str, Mapping[str, Iterable[str]]]
# Question's text -> MD5s of its positive passages, in order, each once.
Queries = dict[str, list[str]]


class SourceTexts:
    """Texts of questions or of passages, by the source's id. ``blank`` counts the skipped blank texts."""

    def __init__(self, kind: str) -> None:
        self.kind, self.blank = kind, 0
        self.by_source: dict[str, str] = {}

    def add(self, source_id: str, text: str, source: Source, line: int) -> None:
        """Add a text. Raises :class:`InputError` for an id with two texts."""
        if fault := long_text_fault(text):
            raise InputError(fault, path=source.shown, line=line)
        if not text.strip():
            self.blank += 1
        elif self.by_source.setdefault(source_id, text) != text:
            raise InputError(
                f"a second text for the {self.kind} {source_id!r}; expected one", path=source.shown, line=line
            )


@dataclass
class Collection:
    """A set to add to a release: its passages, its queries by split, and the counts of the input (``read``)."""

    name: str  # prefix of the configs and column of Table 3, for example cmedqa; main has no prefix
    passages: dict[str, str]
    queries: dict[str, Queries]
    read: dict[str, Any] = field(default_factory=dict)


_COUNTED = (
    *("questions", "judgments", "question_missing", "passage_missing", "same_text_again"),
    *("in_another_split", "without_positive"),
)
_SKIPPED = {
    "passage_missing": "judgments of passages that the sources lack",
    "question_missing": "questions without a text in the sources",
    "without_positive": "questions without a passage",
    "in_another_split": "questions that are also in an earlier split of the order test, dev, train",
}


def merge(name: str, questions: SourceTexts, passages: SourceTexts, judgments: Judgments) -> Collection:
    """Replace the source's ids by texts and their MD5s. Judgments without a text are counted and skipped."""
    ids = {source_id: text_id(text) for source_id, text in passages.by_source.items()}
    distinct = {ids[source_id]: text for source_id, text in passages.by_source.items()}
    counts = {"read": len(ids) + passages.blank, "blank": passages.blank, "same_text_again": len(ids) - len(distinct)}
    result = Collection(name, distinct, {}, {"passages": counts})
    if questions.blank:
        result.read["blank_questions"] = questions.blank
        log.warning("%s: skipped %d questions without a text", name, questions.blank)
    taken: set[str] = set()  # texts of earlier splits
    for split in sorted(judgments, key=ORDER.index):
        result.read[split] = counts = dict.fromkeys(_COUNTED, 0)
        merged = merge_equal_questions(judgments[split], questions.by_source, ids, taken, counts)
        result.queries[split] = {text: list(dict.fromkeys(found)) for text, found in merged.items() if found}
        counts["without_positive"] = len(merged) - len(result.queries[split])
        taken.update(merged)
        for key, words in _SKIPPED.items():
            if counts[key]:
                log.warning("%s %s: skipped %d %s", name, split, counts[key], words)
    if not any(result.queries.values()):
        raise InputError(f"{name}: no question has a passage; expected questions and passages of the same source")
    return result


def merge_equal_questions(
    judged: Mapping[str, Iterable[str]],
    texts: Mapping[str, str],
    ids: Mapping[str, str],
    taken: Container[str],
    counts: dict[str, int],
) -> Queries:
    """Merge questions of equal text. Return text -> MD5s of the passages of its questions.

    Texts of earlier splits (``taken``) are skipped. The function increases ``counts``.
    """
    merged: Queries = {}
    for question, answers in judged.items():
        found, text = dict.fromkeys(answers), texts.get(question)
        counts["questions"] += 1
        counts["judgments"] += len(found)
        if text is None:
            counts["question_missing"] += 1
            continue
        counts["passage_missing"] += sum(answer not in ids for answer in found)
        if text in taken:
            counts["in_another_split"] += 1
            continue
        counts["same_text_again"] += text in merged
        merged.setdefault(text, []).extend(ids[answer] for answer in found if answer in ids)
    return merged


def draw_test_questions(collection: Collection, size: int, seed: int) -> None:
    """Draw ``size`` test queries at random from split ``all``, or from test. The other queries become train.

    Section 2.4 draws 949 queries of cCOVID-News. The paper's second version trains on the other queries.
    """
    before = collection.queries.pop("all" if "all" in collection.queries else "test")
    collection.queries["test"] = drawn_questions(before, size, seed, f"{collection.name}: --test-size")
    rest = {text: positives for text, positives in before.items() if text not in collection.queries["test"]}
    if rest:
        collection.queries["train"] = collection.queries.get("train", {}) | rest


def drawn_questions(queries: Queries, size: int, seed: int, option: str) -> Queries:
    """Draw ``size`` queries at random, in their original order. Raises :class:`InputError` for too few queries."""
    if len(queries) < size:
        raise InputError(f"{option} {size} is too large, because only {len(queries)} questions have a passage")
    drawn = draw(map(text_id, queries), size, seed)
    return {text: found for text, found in queries.items() if text_id(text) in drawn}


def files_of(whose: str, headers: Mapping[str, Sequence[str]], paths: Sequence[Path]) -> Iterator[tuple[str, Source]]:
    """Yield (kind, file) for the files of a set. ``headers`` maps a kind to columns. The kind ``json`` is JSON lines.

    Files with other headers are skipped. Raises :class:`InputError` if ``paths`` names a file with another header.
    """
    for source in find_tables(paths):
        header = header_of(source)
        kind = next((kind for kind, columns in headers.items() if sorted(columns) == sorted(header)), "")
        if kind or ("json" in headers and header[0].startswith("{")):
            yield kind or "json", source
        elif source.member is None and source.path in paths:
            expected = f"not one of {whose} files; expected a header such as {', '.join(next(iter(headers.values())))}"
            raise InputError(expected, path=source.shown, line=1)
        else:
            log.info("%s: skipped, because it is not one of %s files", source.name, whose)


def write_release(
    collection: Collection,
    sources: Sequence[Source],
    *,
    out: Path,
    base: Release | Path | None,
    test_size: int | None,
    seed: int,
    encoding: str,
) -> WrittenRelease:
    """Write the release ``out`` with a set, and return it with the figures of the set.

    Args:
        collection: the set.
        sources: files from which the set was read.
        out: release directory to write.
        base: release that is copied into ``out`` (None: no release).
        test_size: number of drawn test queries (None: all).
        seed: seed of the draw.
        encoding: value of ``--encoding`` for the manifest.
    """
    base_release = open_base(base, collection.name) if base is not None else None
    if test_size is not None:
        draw_test_questions(collection, test_size, seed)
    options = {"test_size": test_size, "seed": seed, "encoding": encoding}
    build = {"verb": collection.name, "options": options, "sources": described(sources)}
    with draft_release(out, build, base_release) as draft:
        columns = write_set(collection, draft)
    corpus_config = f"{collection.name}-corpus"
    lengths = {corpus_config: draft.stats["collections"][corpus_config]}
    figures = {"table3": columns, "collections": lengths}
    text = f"{table3_text(figures)}\nrelease: {out}"
    value = draft.stats[collection.name] | {"collections": lengths}
    return open_written(out, Report(value, text, table3_tables(figures)))


def described(sources: Iterable[Source]) -> list[dict[str, Any]]:
    """Describe the source files for the manifest. An archive is listed once."""
    return describe_files((source.name.split("!")[0], source.path) for source in sources)


def open_base(release: Release | Path, verb: str) -> Release:
    """Open the release to extend. The records of earlier builds by ``verb`` are removed from its manifest."""
    base = open_release(release)
    builds = [build for build in base.manifest.builds if build.verb != verb]
    return dataclasses.replace(base, manifest=msgspec.structs.replace(base.manifest, builds=builds))


def write_set(collection: Collection, draft: Draft) -> dict[str, dict[str, Any]]:
    """Write the set into ``draft``, in place of an earlier build. Return its columns of Table 3, by split."""
    name = collection.name
    prefix = "" if name == "main" else f"{name}-"
    for config in ("corpus", "queries", "qrels"):
        draft.drop(f"{prefix}{config}")
    ids, texts = [*collection.passages], [*collection.passages.values()]
    draft.write(f"{prefix}corpus", "corpus", [pa.table([ids, [""] * len(ids), texts], schema=CORPUS)])
    lengths = LengthCounter(np.fromiter(map(len, texts), np.int64))
    draft.stats["collections"][f"{prefix}corpus"] = lengths.summary()
    columns = {
        split: _write_split(collection.passages, queries, draft, prefix, split)
        for split, queries in sorted(collection.queries.items(), key=lambda item: ORDER.index(item[0]), reverse=True)
        if queries
    }
    draft.stats["table3"].pop(name, None)
    if name == "main":
        draft.stats["table3"] |= columns
    elif "test" in columns:
        draft.stats["table3"][name] = columns["test"]
    draft.stats[name] = {"read": collection.read, "table3": columns}
    return columns


def _write_split(passages: dict[str, str], queries: Queries, draft: Draft, prefix: str, split: str) -> dict[str, Any]:
    judged = {text_id(text): dict.fromkeys(found, 1) for text, found in queries.items()}
    draft.write(f"{prefix}queries", split, [pa.table([[*judged], [*queries]], schema=QUERIES)])
    draft.write(f"{prefix}qrels", split, [qrels_table(judged)])
    chars = LengthCounter(np.array([len(passages[p]) for found in judged.values() for p in found], np.int64))
    return table3_column(len(queries), sum(map(len, queries)), sum(map(len, judged.values())), chars)
