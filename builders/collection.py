"""An out-of-domain set (Section 2.4): what cMedQA and cCOVID-News share, from source ids to configs of a release.

Sources name questions and passages by ids of their own; a release by the MD5 of the text. So equal texts become one:
questions with all their passages, passages with all their questions. A judgment counts only where question and passage
both have a text; the others are counted, reported, and left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from builders.common.command import InputError, add_format, log, progress, whole_number
from builders.common.sampling import draw
from builders.sources.encoding import CHOICES
from builders.sources.files import Source
from builders.store.draft import Draft, describe_files, draft_release
from builders.store.ids import text_id
from builders.store.layout import CORPUS, QRELS, QUERIES
from builders.store.reader import Release, open_release
from builders.store.table3 import LengthCounter, table3_column, table3_text

# A question whose text comes in several splits stays in the first of these. ``all``: not split yet.
ORDER = ("all", "test", "dev", "train")
_BATCH = 4_096

# By split, by the source's id of the question: the source's ids of its positive passages, in order.
Judgments = Mapping[str, Mapping[str, Iterable[str]]]
# By the question's text: the MD5s of its positive passages, in order, each once.
Queries = dict[str, list[str]]


class Texts:
    """The texts of one kind (questions, or passages) by their source's id, in order of first appearance.

    Attributes:
        kind: how messages call them.
        by_source: the text of a source's id.
        blank: ids whose text is empty or white space: they have none.
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


def merge(name: str, questions: Texts, passages: Texts, judgments: Judgments) -> Collection:
    """Source ids to texts and their MD5s, judgments without a text left out and counted."""
    ids = {source_id: text_id(text) for source_id, text in passages.by_source.items()}
    result = Collection(name, passages.distinct(), {})
    result.read["passages"] = {
        "read": len(ids) + passages.blank,
        "blank": passages.blank,
        "same_text_again": len(ids) - len(result.passages),
    }
    taken: set[str] = set()
    for split in sorted(judgments, key=ORDER.index):
        counts = dict.fromkeys(
            (
                *("questions", "judgments", "question_missing", "passage_missing", "same_text_again"),
                *("in_another_split", "without_positive"),
            ),
            0,
        )
        merged: dict[str, dict[str, None]] = {}
        missing: dict[str, None] = {}
        for question, answers in judgments[split].items():
            counts["questions"] += 1
            found = list(dict.fromkeys(answers))
            counts["judgments"] += len(found)
            text = questions.by_source.get(question)
            if text is None:
                counts["question_missing"] += 1
                continue
            missing.update((answer, None) for answer in found if answer not in ids)
            counts["passage_missing"] += sum(answer not in ids for answer in found)
            if text in taken:
                counts["in_another_split"] += 1
                continue
            counts["same_text_again"] += text in merged
            merged.setdefault(text, {}).update((ids[answer], None) for answer in found if answer in ids)
        result.queries[split] = {text: list(positives) for text, positives in merged.items() if positives}
        counts["without_positive"] = len(merged) - len(result.queries[split])
        taken.update(merged)
        result.read[split] = counts
        _report(name, split, counts, missing)
    if not any(result.queries.values()):
        raise InputError(f"{name}: no question has a passage; the questions and passages of one source are needed")
    return result


def _report(name: str, split: str, counts: Mapping[str, int], missing: Iterable[str]) -> None:
    if counts["passage_missing"]:
        log.warning(
            "%s %s: %d of %d judgments name a passage that the sources do not have, and are left out (%s)",
            *(name, split, counts["passage_missing"], counts["judgments"], ", ".join(islice(missing, 3))),
        )
    for key, words in (
        ("question_missing", "have no text in the sources"),
        ("without_positive", "have no passage left"),
        ("in_another_split", "have the text of one in an earlier split of test, dev, train"),
    ):
        if counts[key]:
            log.warning("%s %s: %d questions %s, and are left out", name, split, counts[key], words)


def keep_at_random(collection: Collection, size: int, seed: int) -> None:
    """Test becomes ``size`` queries drawn at random (from ``all``, or test as it is); the remaining ones go to train.

    Raises :class:`InputError` where there are fewer.
    """
    pool = collection.queries.pop("all" if "all" in collection.queries else "test")
    if len(pool) < size:
        raise InputError(
            f"{collection.name}: {len(pool)} questions have a passage, fewer than the {size} of --test-size"
        )
    drawn = draw(map(text_id, pool), size, seed)
    rest = {text: positives for text, positives in pool.items() if text_id(text) not in drawn}
    collection.queries["test"] = {text: pool[text] for text in pool if text not in rest}
    if rest:
        collection.queries["train"] = collection.queries.get("train", {}) | rest


def write(collection: Collection, draft: Draft) -> dict[str, dict[str, Any]]:
    """Put the set into ``draft``, in the place of an earlier one; returns its rows of Table 3, by split."""
    name = collection.name
    prefix = "" if name == "main" else f"{name}-"
    for config in ("corpus", "queries", "qrels"):
        draft.drop(f"{prefix}{config}")
    lengths = LengthCounter()
    corpus = draft.writer(f"{prefix}corpus", "corpus")
    for part in _parts(progress(collection.passages.items(), unit="passage", label=name)):
        ids, texts = zip(*part, strict=True)
        lengths.add(np.fromiter(map(len, texts), np.int64))
        corpus.write(pa.table([pa.array(ids), pa.array([""] * len(ids)), pa.array(texts)], schema=CORPUS))
    rows: dict[str, dict[str, Any]] = {}
    for split in sorted(collection.queries, key=ORDER.index, reverse=True):
        queries = collection.queries[split]
        if not queries:
            continue
        query_ids = [text_id(text) for text in queries]
        pairs = [(each, docid) for each, found in zip(query_ids, queries.values(), strict=True) for docid in found]
        draft.write(
            f"{prefix}queries", split, [pa.table([pa.array(query_ids), pa.array(list(queries))], schema=QUERIES)]
        )
        columns = [pa.array([q for q, _ in pairs]), pa.array([d for _, d in pairs]), pa.array([1] * len(pairs))]
        draft.write(f"{prefix}qrels", split, [pa.table(columns, schema=QRELS)])
        chars = LengthCounter()
        chars.add(np.array([len(collection.passages[docid]) for _, docid in pairs], np.int64))
        rows[split] = table3_column(len(queries), sum(map(len, queries)), len(pairs), chars)
    draft.stats["table3"].pop(name, None)
    if name == "main":
        draft.stats["table3"] |= {split: rows[split] for split in reversed(ORDER) if split in rows}
    elif "test" in rows:
        draft.stats["table3"][name] = rows["test"]
    draft.stats["collections"][f"{prefix}corpus"] = lengths.summary()
    draft.stats[name] = {"read": collection.read, "table3": rows}
    return rows


def _parts(items: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    iterator = iter(items)
    while part := list(islice(iterator, _BATCH)):
        yield part


def add_arguments(parser: argparse.ArgumentParser, test_size: int | None) -> None:
    """The options that both sets have."""
    parser.add_argument(
        "--source", nargs="+", type=Path, required=True, metavar="PATH", help="folders, files, .gz and .zip as they are"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the release directory to write")
    parser.add_argument("--release", type=Path, metavar="DIR", help="a release that --out holds as well")
    parser.add_argument(
        "--test-size",
        type=whole_number(1),
        default=test_size,
        metavar="N",
        help=f"test queries, drawn at random; the others go to train (default: {test_size or 'all'})",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random choice (default: 0)")
    parser.add_argument("--encoding", choices=CHOICES, default="auto", help="default: told by the bytes")
    add_format(parser)


def open_base(path: Path, verb: str) -> Release:
    """The release to extend, as if ``verb`` had not been run on it: its build is replaced, not listed twice."""
    base = open_release(path)
    builds = [build for build in base.manifest.builds if build.verb != verb]
    return dataclasses.replace(base, manifest=msgspec.structs.replace(base.manifest, builds=builds))


def build(
    collection: Collection, args: argparse.Namespace, sources: Sequence[Source], options: dict[str, Any]
) -> dict[str, Any]:
    """Write the release ``args.out`` and print the set's figures; returns its part of ``stats.json``.

    ``options`` are the set's own; the shared ones (test size, seed, encoding) join them in the manifest.
    """
    base = open_base(args.release, collection.name) if args.release else None
    if args.test_size is not None:
        keep_at_random(collection, args.test_size, args.seed)
    description = {
        "verb": collection.name,
        "options": options | {"test_size": args.test_size, "seed": args.seed, "encoding": args.encoding},
        "sources": describe_files((source.name.split("!")[0], source.path) for source in sources),
    }
    with draft_release(args.out, description, base) as draft:
        rows = write(collection, draft)
    result: dict[str, Any] = draft.stats[collection.name]
    corpus = {f"{collection.name}-corpus": draft.stats["collections"][f"{collection.name}-corpus"]}
    if args.format == "json":
        print(json.dumps(result | {"collections": corpus}, ensure_ascii=False, indent=1))
    else:
        print(table3_text({"table3": rows, "collections": corpus}))
        print(f"release: {args.out}")
    return result
