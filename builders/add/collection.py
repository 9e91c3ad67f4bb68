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
from builders.core.progress import show_progress
from builders.core.results import Report
from builders.core.sampling import draw_sample
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

    def __init__(self, text_kind: str) -> None:
        """``text_kind`` is the word for a text in errors, for example ``question``."""
        self.text_kind = text_kind
        self.blank = 0
        self.by_source: dict[str, str] = {}

    def add(self, source_id: str, text: str, source: Source, line: int) -> None:
        """Add a text, or count a blank text. ``source`` and ``line`` are the place of the text, for errors.

        Raises :class:`InputError` for an id with two texts, and for a text that is too long.
        """
        fault = long_text_fault(text)
        if fault:
            raise InputError(fault, path=source.shown, line=line)
        if not text.strip():
            self.blank += 1
        elif self.by_source.setdefault(source_id, text) != text:
            raise InputError(
                f"a second text for the {self.text_kind} {source_id!r}; expected one", path=source.shown, line=line
            )


@dataclass
class Collection:
    """A set to add to a release: its passages and queries, and the counts of the input."""

    name: str  # prefix of the configs and column of Table 3, for example cmedqa; main has no prefix
    passages: dict[str, str]  # MD5 -> text
    queries: dict[str, Queries]  # by split
    # "passages" -> counts of the passages read; split -> counts of _SPLIT_COUNTS
    read: dict[str, Any] = field(default_factory=dict)


# Counts of the input for each split, in the order of ``stats.json``.
_SPLIT_COUNTS = (
    "questions",
    "judgments",
    "question_missing",
    "passage_missing",
    "same_text_again",
    "in_another_split",
    "without_positive",
)
# The counts that are reported as warnings.
_SKIPPED_WORDS = {
    "passage_missing": "judgments of passages that the sources lack",
    "question_missing": "questions without a text in the sources",
    "without_positive": "questions without a passage",
    "in_another_split": "questions that are also in an earlier split of the order test, dev, train",
}


def merge_texts(
    set_name: str,
    questions: SourceTexts,
    passages: SourceTexts,
    judgments: Judgments,
) -> Collection:
    """Convert the texts and judgments of a source to a set ``set_name``, whose ids are MD5s of the texts.

    Equal texts are merged. Judgments of a passage without a text, questions without a text or a passage, and questions
    of an earlier split (:data:`ORDER`) are counted, reported and skipped. Raises :class:`InputError` if no question has
    a passage.
    """
    # Passages: equal texts of several ids become one passage.
    passage_ids: dict[str, str] = {}
    distinct_passages: dict[str, str] = {}
    source_passages = passages.by_source.items()
    for source_id, text in show_progress(source_passages, total=len(source_passages), unit="passage", label=set_name):
        passage_id = text_id(text)
        passage_ids[source_id] = passage_id
        distinct_passages[passage_id] = text
    passage_counts = {
        "read": len(passage_ids) + passages.blank,
        "blank": passages.blank,
        "same_text_again": len(passage_ids) - len(distinct_passages),
    }
    collection = Collection(set_name, distinct_passages, {}, {"passages": passage_counts})
    if questions.blank:
        collection.read["blank_questions"] = questions.blank
        log.warning("%s: skipped %d questions without a text", set_name, questions.blank)
    # Questions: the splits are in the order in which equal questions are resolved.
    earlier_texts: set[str] = set()  # questions of the splits before
    for split in sorted(judgments, key=ORDER.index):
        split_counts = dict.fromkeys(_SPLIT_COUNTS, 0)
        collection.read[split] = split_counts
        merged = merge_equal_questions(judgments[split], questions.by_source, passage_ids, earlier_texts, split_counts)
        split_queries: Queries = {}
        for text, positive_ids in merged.items():
            if positive_ids:
                split_queries[text] = list(dict.fromkeys(positive_ids))
        collection.queries[split] = split_queries
        split_counts["without_positive"] = len(merged) - len(split_queries)
        earlier_texts.update(merged)
        for count_name, words in _SKIPPED_WORDS.items():
            if split_counts[count_name]:
                log.warning("%s %s: skipped %d %s", set_name, split, split_counts[count_name], words)
    if not any(collection.queries.values()):
        raise InputError(f"{set_name}: no question has a passage; expected questions and passages of the same source")
    return collection


def merge_equal_questions(
    judged: Mapping[str, Iterable[str]],
    question_texts: Mapping[str, str],
    passage_ids: Mapping[str, str],
    earlier_texts: Container[str],
    split_counts: dict[str, int],
) -> dict[str, list[str]]:
    """Merge questions of equal text. Return text -> MD5s of the positive passages of its questions.

    An MD5 may be repeated, and a list may be empty.

    Args:
        judged: source's id of a question -> source's ids of its positive passages.
        question_texts: source's id of a question -> text.
        passage_ids: source's id of a passage -> MD5 of its text.
        earlier_texts: questions of earlier splits, which are skipped.
        split_counts: counts of :data:`_SPLIT_COUNTS`, which the function increases.
    """
    merged: dict[str, list[str]] = {}
    for question_id, positives in judged.items():
        source_ids = dict.fromkeys(positives)
        # A source may judge questions that its files of texts lack.
        text = question_texts.get(question_id)
        split_counts["questions"] += 1
        split_counts["judgments"] += len(source_ids)
        if text is None:
            split_counts["question_missing"] += 1
            continue
        present_ids = [passage_ids[source_id] for source_id in source_ids if source_id in passage_ids]
        split_counts["passage_missing"] += len(source_ids) - len(present_ids)
        if text in earlier_texts:
            split_counts["in_another_split"] += 1
            continue
        if text in merged:
            split_counts["same_text_again"] += 1
        merged.setdefault(text, []).extend(present_ids)
    return merged


def draw_test_questions(collection: Collection, test_size: int, seed: int) -> None:
    """Draw ``test_size`` test queries at random from split ``all``, or from test if no split is called ``all``.

    ``collection`` is changed. The other queries of the split are added to train. Split ``all`` is removed.

    Section 2.4 draws 949 queries of cCOVID-News. The paper's second version trains on the other queries.
    """
    source_split = "all" if "all" in collection.queries else "test"
    all_queries = collection.queries.pop(source_split)
    test_queries = draw_questions(all_queries, test_size, seed, f"{collection.name}: --test-size")
    collection.queries["test"] = test_queries
    train_queries = {text: positives for text, positives in all_queries.items() if text not in test_queries}
    if train_queries:
        collection.queries["train"] = collection.queries.get("train", {}) | train_queries


def draw_questions(queries: Queries, query_count: int, seed: int, option_name: str) -> Queries:
    """Draw ``query_count`` queries at random, and return them in their original order.

    Raises :class:`InputError` for too few queries. ``option_name`` is the option of ``query_count`` in the error.
    """
    if len(queries) < query_count:
        raise InputError(
            f"{option_name} {query_count} is too large, because only {len(queries)} questions have a passage"
        )
    drawn_ids = draw_sample(map(text_id, queries), query_count, seed)
    return {text: positives for text, positives in queries.items() if text_id(text) in drawn_ids}


def files_of(
    owner_words: str, headers_by_kind: Mapping[str, Sequence[str]], source_paths: Sequence[Path]
) -> Iterator[tuple[str, Source]]:
    """Yield (kind, file) for the files of a set, which are found in the files, folders and archives ``source_paths``.

    ``headers_by_kind`` maps a kind to its columns. If it has the kind ``json``, files of JSON lines are of this kind.
    Files with other headers are skipped, but are an :class:`InputError` if ``source_paths`` names them. ``owner_words``
    names the set in messages, for example ``cMedQA's``.
    """
    for source in find_tables(source_paths):
        file_kind = _kind_of_header(header_of(source), headers_by_kind)
        if file_kind:
            yield file_kind, source
            continue
        # Only a file that the user named must be of the set. Folders and archives may have other files.
        is_named_by_user = source.member is None and source.path in source_paths
        if is_named_by_user:
            example = ", ".join(next(iter(headers_by_kind.values())))
            raise InputError(
                f"not one of {owner_words} files; expected a header such as {example}", path=source.shown, line=1
            )
        log.info("%s: skipped, because it is not one of %s files", source.name, owner_words)


def _kind_of_header(header: Sequence[str], headers_by_kind: Mapping[str, Sequence[str]]) -> str:
    """Return the kind whose columns are those of ``header``, in any order, or "" for no kind."""
    for file_kind, columns in headers_by_kind.items():
        if sorted(columns) == sorted(header):
            return file_kind
    is_json = header[0].startswith("{")  # the first line of JSON lines is split like a header
    return "json" if "json" in headers_by_kind and is_json else ""


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
    """Write the release ``out`` with a set, and return it. The release's report has the figures of the set.

    Args:
        collection: the set.
        sources: files from which the set was read.
        out: release directory to write.
        base: release that is copied into ``out`` (None: no release).
        test_size: number of test queries that are drawn (None: all test queries are kept).
        seed: seed of the draw.
        encoding: value of ``--encoding`` for the manifest.
    """
    # The records of an earlier build of the set are replaced.
    base_release = None
    if base is not None:
        base_release = open_base(base, collection.name)
    if test_size is not None:
        draw_test_questions(collection, test_size, seed)
    options = {"test_size": test_size, "seed": seed, "encoding": encoding}
    build = {"verb": collection.name, "options": options, "sources": describe_sources(sources)}
    with draft_release(out, build, base_release) as draft:
        table3_columns = write_set(collection, draft)
    # The report has the figures of this set only, not those of the copied release.
    corpus_config = f"{collection.name}-corpus"
    lengths = {corpus_config: draft.stats["collections"][corpus_config]}
    figures = {"table3": table3_columns, "collections": lengths}
    text = f"{table3_text(figures)}\nrelease: {out}"
    report_value = draft.stats[collection.name] | {"collections": lengths}
    return open_written(out, Report(report_value, text, table3_tables(figures)))


def describe_sources(sources: Iterable[Source]) -> list[dict[str, Any]]:
    """Describe the source files for the manifest: name, bytes, SHA-256. An archive is listed once, not by member."""
    # The name of a member is ARCHIVE!MEMBER.
    return describe_files((source.name.split("!")[0], source.path) for source in sources)


def open_base(base_release: Release | Path, builder_verb: str) -> Release:
    """Open the release to extend, without the records of earlier builds by ``builder_verb``.

    The new build replaces what they made. The manifest on the disk is not changed.
    """
    base = open_release(base_release)
    other_builds = [build for build in base.manifest.builds if build.verb != builder_verb]
    return dataclasses.replace(base, manifest=msgspec.structs.replace(base.manifest, builds=other_builds))


def write_set(collection: Collection, draft: Draft) -> dict[str, dict[str, Any]]:
    """Write the set into ``draft``, in place of an earlier build. Return the figures of Table 3 for each split."""
    name = collection.name
    config_prefix = "" if name == "main" else f"{name}-"
    # The copied release may have the set in another build.
    for config in ("corpus", "queries", "qrels"):
        draft.drop(f"{config_prefix}{config}")

    # The corpus, without titles.
    passage_ids = list(collection.passages)
    passage_texts = list(collection.passages.values())
    titles = [""] * len(passage_ids)  # the benchmark has no titles
    corpus_table = pa.table([passage_ids, titles, passage_texts], schema=CORPUS)
    draft.write(f"{config_prefix}corpus", "corpus", [corpus_table])
    lengths = LengthCounter(np.fromiter(map(len, passage_texts), np.int64))
    draft.stats["collections"][f"{config_prefix}corpus"] = lengths.summary()

    # The order is train, dev, test: the opposite of the order in which equal questions are resolved.
    columns: dict[str, dict[str, Any]] = {}
    for split in sorted(collection.queries, key=ORDER.index, reverse=True):
        queries = collection.queries[split]
        if queries:
            columns[split] = _write_split(collection.passages, queries, draft, config_prefix, split)
    # Table 3 has one column for each split of the main set, and the test split's column of each other set.
    draft.stats["table3"].pop(name, None)
    if name == "main":
        draft.stats["table3"] |= columns
    elif "test" in columns:
        draft.stats["table3"][name] = columns["test"]
    draft.stats[name] = {"read": collection.read, "table3": columns}
    return columns


def _write_split(
    passage_texts: dict[str, str], queries: Queries, draft: Draft, config_prefix: str, split: str
) -> dict[str, Any]:
    """Write the queries and judgments of a split. Return the split's figures of Table 3.

    ``passage_texts`` maps MD5s to texts. ``config_prefix`` is ``cmedqa-``, for example, or empty for the main set.
    """
    judged: dict[str, dict[str, int]] = {}
    positive_lengths = []
    for text, positive_ids in queries.items():
        relevance = dict.fromkeys(positive_ids, 1)
        judged[text_id(text)] = relevance
        positive_lengths += [len(passage_texts[passage_id]) for passage_id in relevance]
    # The id of a query is the MD5 of its text, as in the main set.
    queries_table = pa.table([list(judged), list(queries)], schema=QUERIES)
    draft.write(f"{config_prefix}queries", split, [queries_table])
    draft.write(f"{config_prefix}qrels", split, [qrels_table(judged)])
    length_counter = LengthCounter(np.array(positive_lengths, np.int64))
    query_chars = sum(map(len, queries))
    return table3_column(len(queries), query_chars, len(positive_lengths), length_counter)
