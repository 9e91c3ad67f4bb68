"""Formats of training data: a query, a passage that answers it, passages that do not, as texts.

A negative is dealt to the query's positives in turn, from the beginning again where they run out: with 4 for each
positive, as `baselines mine` draws them, each is learned from once (as ``baselines/train/data.py`` deals them).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from builders.core.errors import InputError, log
from builders.export.negatives import joined_with
from builders.export.output import Output
from builders.export.sets import ReleaseSet

Group = tuple[str, list[str], list[str]]  # a query, its positives, its negatives
Rows = Callable[[Group, int], list[dict[str, Any]]]  # the lines of a query, with so many negatives a positive
_LEFT_OUT = "queries_without_a_positive_or_a_negative"
_ROWS = 1_024


def flagembedding(data: ReleaseSet, output: Output) -> None:
    """FlagEmbedding: a line a query with all its passages."""
    _write(
        data,
        output,
        {"{}.jsonl": lambda group, _: [dict(zip(("query", "pos", "neg"), group, strict=True))]},
    )


def triplets(data: ReleaseSet, output: Output) -> None:
    """A line for each positive and each of the negatives that are dealt to it."""
    _write(data, output, {"{}.jsonl": _triplets})


def pylate(data: ReleaseSet, output: Output) -> None:
    """PyLate: a line a positive, with the negatives that are dealt to it."""
    _write(data, output, {"{}.jsonl": _tuples})


def sentence_transformers(data: ReleaseSet, output: Output) -> None:
    """sentence-transformers: as PyLate for its losses, and labelled pairs for those of a CrossEncoder."""
    _write(data, output, {"{}.jsonl": _tuples, "{}.pairs.jsonl": _pairs})


def _triplets(group: Group, each: int) -> list[dict[str, Any]]:
    query, _, _ = group
    return [
        {"query": query, "positive": positive, "negative": negative}
        for positive, dealt in _dealt(group, each)
        for negative in dict.fromkeys(dealt)
    ]


def _tuples(group: Group, each: int) -> list[dict[str, Any]]:
    return [
        {"query": group[0], "positive": positive, **{f"negative_{n}": text for n, text in enumerate(dealt, 1)}}
        for positive, dealt in _dealt(group, each)
    ]


def _pairs(group: Group, each: int) -> list[dict[str, Any]]:
    query, _, _ = group
    return [
        {"query": query, "passage": text, "label": label}
        for positive, dealt in _dealt(group, each)
        for text, label in ((positive, 1.0), *((negative, 0.0) for negative in dict.fromkeys(dealt)))
    ]


def _dealt(group: Group, each: int) -> Iterator[tuple[str, list[str]]]:
    """(positive, ``each`` negatives) of a query; of fewer, the same again: all rows have as many columns."""
    _, positives, negatives = group
    turn = itertools.cycle(negatives)
    return ((positive, list(itertools.islice(turn, each))) for positive in positives)


def _write(data: ReleaseSet, output: Output, files: dict[str, Rows]) -> None:
    """Write the files, named by split, of every split that has a query with positives and negatives."""
    left_out, each = output.notes.setdefault(_LEFT_OUT, {}), output.options.negatives_per_positive
    with joined_with(data, output.options.negatives) as joined:
        for split in data.qrels_splits():
            for pattern, rows_of in files.items():
                name, lacking = pattern.format(split), Counter[bool]()
                groups = _groups(joined(split), lacking)
                output.json(name, _batches(row for group in groups for row in rows_of(group, each)))
                if not output.rows[name]:
                    output.remove(name)
                elif lacking[True]:
                    left_out[name] = lacking[True]
                    words = "%s: %d queries without a positive or a negative passage are left out"
                    log.warning(words, name, lacking[True])
    if not output.rows:
        raise InputError(
            "no query has both a positive and a negative passage; --negatives F takes the hard negatives that"
            " `python -m baselines mine` makes",
            path=data.release.path,
        )


def _groups(joined: Iterable[pa.RecordBatch], lacking: Counter[bool]) -> Iterator[Group]:
    """The queries with their texts; those that have no positive or no negative are counted instead."""
    for batch in joined:
        for row in batch.to_pylist():
            positives, negatives = (_texts(row[f"{kind}_passages"]) for kind in ("positive", "negative"))
            lacks = not (positives and negatives)
            lacking[lacks] += 1
            if not lacks:
                yield row["query"], positives, negatives


def _texts(passages: Iterable[dict[str, str]]) -> list[str]:
    """A title, where there is one, opens the text."""
    return [f"{each['title']} {each['text']}" if each["title"] else each["text"] for each in passages]


def _batches(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    rows = iter(rows)
    while batch := list(itertools.islice(rows, _ROWS)):
        yield batch
