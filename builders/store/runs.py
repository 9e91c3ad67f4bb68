"""Run files: TREC runs in and out, the official JSON of predictions in.

A TREC run has one line per hit, ``query-id Q0 corpus-id rank score tag``: ranks from 1, scores never increasing, ties
broken by corpus id; gzipped where the name ends in ``.gz``. The official predictions are one JSON object
``{query id: [passage ids, best first]}``.

Runs whose lines are plain, as this project writes them, are parsed as columns: six of them with one space between them,
and nothing to find fault with. The reader of lines takes any other file: it can name the line of an error.
"""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from builders.core.errors import InputError, log
from builders.core.files import (
    atomic_text,
    expect_id,
    first_character,
    id_of,
    integer,
    raw_lines,
    read_whole,
    rereadable,
    shown,
)
from builders.core.typed import json_of

Array = npt.NDArray[Any]
Hit = tuple[str, float]  # corpus id, score
# What str.split() takes for a blank, to the regular expressions of Arrow.
_BLANK = "[\\x09-\\x0d\\x1c-\\x20\\x{85}\\p{Z}]|^$"
_PLAIN = (1e-4, 1e10)  # numbers between these, with a fraction, Arrow prints as Python does
_AT_ONCE = 256  # queries that are written together
_BLOCK = 32 << 20  # bytes that are parsed at a time
_OTHERS = (b"\t", b"\r", b"\v", b"\f", b"\0")  # blanks that bytes.split() knows beside the space; and what no id holds
_BOM = b"\xef\xbb\xbf"
_TEXT = {name: pa.large_string() for name in ("query", "corpus", "rank")} | {"q0": pa.large_binary()}
_TYPES = pa.schema({**_TEXT, "tag": pa.large_binary(), "score": pa.float64()})
_NAMES = ["query", "q0", "corpus", "rank", "score", "tag"]


@dataclass(frozen=True)
class Columns:
    """The hits of some queries.

    Attributes:
        queries: the queries' ids, each once.
        counts: how many hits each query has.
        corpus_ids: Arrow strings: the hits of the first query, best first, then those of the second, and so on.
        scores: 64-bit floats, one a hit, in the same order.
    """

    queries: Sequence[str]
    counts: Array
    corpus_ids: pa.Array
    scores: Array

    def __len__(self) -> int:
        return len(self.scores)

    def rankings(self) -> dict[str, list[str]]:
        """Corpus ids alone, best first, by query id."""
        ids = self.corpus_ids.to_pylist()
        return {query: ids[begin:end] for query, begin, end in self._limits()}

    def hits(self) -> dict[str, list[Hit]]:
        """(corpus id, score), best first, by query id."""
        hits = list(zip(self.corpus_ids.to_pylist(), self.scores.tolist(), strict=True))
        return {query: hits[begin:end] for query, begin, end in self._limits()}

    def _limits(self) -> Iterator[tuple[str, int, int]]:
        ends = [0, *np.cumsum(self.counts).tolist()]
        return ((query, *limits) for query, limits in zip(self.queries, pairwise(ends), strict=True))

    def are_ordered(self) -> bool:
        """True if every query's hits are in a run's order: scores falling, ties by corpus id."""
        if len(self) < 2:
            return True
        same = np.diff(self.numbers()) == 0
        above, below = self.scores[:-1], self.scores[1:]
        if (same & (above < below)).any():
            return False
        tied = np.flatnonzero(same & (above == below))
        one, other = self.corpus_ids.take(pa.array(tied)), self.corpus_ids.take(pa.array(tied + 1))
        return not pc.any(pc.greater(one, other), min_count=0).as_py()

    def numbers(self) -> Array:
        """The number of each hit's query, from 0."""
        return np.repeat(np.arange(len(self.queries)), self.counts)

    def first_unfit(self) -> tuple[str, str, float] | None:
        """The first (query id, corpus id, score) that a TREC run cannot hold: blanks in an id, no finite score."""
        queries = pa.array(self.queries, pa.string())
        bad = pc.match_substring_regex(queries, _BLANK).to_numpy(zero_copy_only=False)[self.numbers()]
        bad |= pc.match_substring_regex(self.corpus_ids, _BLANK).to_numpy(zero_copy_only=False)
        bad |= ~np.isfinite(self.scores)
        if not bad.any():
            return None
        row = int(bad.argmax())
        return self.queries[self.numbers()[row]], self.corpus_ids[row].as_py(), float(self.scores[row])

    def trec(self, tag: str) -> Any:
        """The bytes of the run's lines."""
        if not len(self):
            return b""
        text = pa.large_string()
        numbers = self.numbers()
        ranks = np.arange(1, len(self) + 1) - (np.cumsum(self.counts) - self.counts)[numbers]
        lines = pc.binary_join_element_wise(
            pa.array(self.queries, text).take(pa.array(numbers)),
            pa.scalar("Q0", text),
            self.corpus_ids.cast(text),
            pc.cast(pa.array(ranks), text),
            printed(self.scores).cast(text),
            pa.scalar(f"{tag}\n", text),
            pa.scalar(" ", text),
        )
        if isinstance(lines, pa.ChunkedArray):
            lines = lines.combine_chunks()
        _, ends, data = lines.buffers()  # one line after the other
        ends = np.frombuffer(ends, np.int64)
        return memoryview(data)[ends[lines.offset] : ends[lines.offset + len(lines)]]


class Run:
    """The passages retrieved for some queries: dictionaries, made from columns when they are first asked for."""

    def __init__(self, path: Path, hits: Mapping[str, list[Hit]] | Columns) -> None:
        self.path, self._hits = path, hits

    @functools.cached_property
    def hits(self) -> dict[str, list[Hit]]:
        """A query's hits, best first, by its id. A passage may stand there twice."""
        return self._hits.hits() if isinstance(self._hits, Columns) else dict(self._hits)

    @functools.cached_property
    def rankings(self) -> dict[str, list[str]]:
        """Corpus ids alone, best first, by query id."""
        if isinstance(self._hits, Columns):
            return self._hits.rankings()
        return {query: [hit[0] for hit in hits] for query, hits in self._hits.items()}


def printed(scores: Array) -> pa.Array:
    """Every number as Python prints it: the shortest digits that give it back."""
    text = pc.cast(pa.array(scores, pa.float64()), pa.string())
    size = np.abs(scores)
    odd = ~((size >= _PLAIN[0]) & (size < _PLAIN[1]) & (scores != np.floor(scores)))
    if odd.any():
        text = pc.replace_with_mask(text, pa.array(odd), pa.array([repr(each) for each in scores[odd].tolist()]))
    return text


def columns_of(hits: Sequence[tuple[str, Sequence[Hit]]]) -> Columns:
    """(query id, its hits, in order) as columns."""
    every = [hit for _, own in hits for hit in own]
    return Columns(
        [query for query, _ in hits],
        np.array([len(own) for _, own in hits], np.int64),
        pa.array([corpus for corpus, _ in every], pa.large_string()),
        np.array([score for _, score in every], np.float64),
    )


def write_run(path: Path, rankings: Iterable[tuple[str, Iterable[Hit]]], tag: str = "dureader_retrieval") -> int:
    """Write a TREC run of (query id, hits in any order) pairs; returns the number of lines.

    Hits are sorted here, so every run of the project is in the same order. Scores are printed with all their digits:
    two scores that differ stay different in the file. The file appears when it is whole.
    """
    rest = iter(rankings)
    some = iter(lambda: list(itertools.islice(rest, _AT_ONCE)), [])
    return write_columns(path, (columns_of([(query, _sorted(hits)) for query, hits in each]) for each in some), tag)


def _sorted(hits: Iterable[Hit]) -> list[Hit]:
    return sorted(((corpus, float(score)) for corpus, score in hits), key=lambda hit: (-hit[1], hit[0]))


def write_columns(path: Path, parts: Iterable[Columns], tag: str = "dureader_retrieval") -> int:
    """:func:`write_run` of hits that are columns, and in order already: without an object a hit."""
    lines = 0
    seen: Counter[str] = Counter()
    with atomic_text(path) as file:
        for part in parts:
            seen.update(part.queries)
            if again := [query for query in part.queries if seen[query] > 1]:
                raise ValueError(f"query {min(again)!r} comes twice")
            if unfit := part.first_unfit():
                query, corpus, score = unfit
                raise InputError(
                    f"cannot hold query {query!r}, passage {corpus!r}, score {score}: a TREC run needs ids without "
                    "blanks and finite scores",
                    path=path,
                )
            if not part.are_ordered():
                raise ValueError(f"the hits of queries {part.queries[0]!r} to {part.queries[-1]!r} are out of order")
            text = str(part.trec(tag), "utf-8")
            if path.suffix == ".gz":  # what gzip makes of them depends on the pieces that it is given
                file.writelines(text.splitlines(keepends=True))
            else:
                file.write(text)
            lines += len(part)
    return lines


def read_run(path: Path) -> Run:
    """Read a TREC run or the official JSON of predictions (told apart by the first character that is not blank).

    A TREC run is ordered by score, then by its rank column; predictions, which have no scores, get 1/rank.
    Raises :class:`InputError` naming file and line.
    """
    first = first_character(path)
    if first == "{":
        return Run(path, _read_predictions(path))
    if first in '["':
        raise InputError("expected a JSON object {query id: [passage ids]} or a TREC run", path=path)
    table = _plain_table(path)
    columns, contradicted = _ordered(_line_table(path) if table is None else table)
    if contradicted:
        log.warning("%s: the ranks of %d queries contradict the scores; ordered by score", path, contradicted)
    return Run(path, columns)


def _ordered(table: pa.Table) -> tuple[Columns, int]:
    """A run's hits in order, and the number of queries whose ranks contradict their scores.

    Queries come in the order of their first lines; hits by falling score, then by rank, then as they stand.
    """
    queries = table["query"].combine_chunks().dictionary_encode()
    numbers = queries.indices.to_numpy(zero_copy_only=False)
    ranks, scores = table["rank"].to_numpy(), table["score"].to_numpy()
    corpus = table["corpus"].combine_chunks()
    order = np.lexsort((ranks, -scores, numbers))
    if (np.diff(order) != 1).any():
        numbers, ranks, scores, corpus = numbers[order], ranks[order], scores[order], corpus.take(pa.array(order))
    falls = (np.diff(numbers) == 0) & (np.diff(ranks) < 0)
    counts = np.bincount(numbers, minlength=len(queries.dictionary))
    return Columns(queries.dictionary.to_pylist(), counts, corpus, scores), len(np.unique(numbers[:-1][falls]))


def _plain_table(path: Path) -> pa.Table | None:
    """The columns query, corpus, score and rank of a run whose lines are plain, else None."""
    tables = []
    try:
        for block in _blocks(path):
            table = _parsed(block)
            if table is None:
                return None
            tables.append(table)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return None
    return pa.concat_tables(tables) if tables else None


def _blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, gzipped where it ends in ``.gz``, cut at the ends of lines."""
    rest = b""
    found = rereadable(path)
    with gzip.open(found) if path.suffix == ".gz" else open(found, "rb") as file:
        while read := file.read(_BLOCK):
            whole, end, rest = (rest + read).rpartition(b"\n")
            if whole:
                yield whole + end
    if rest:
        yield rest


def _parsed(block: bytes) -> pa.Table | None:
    if any(each in block for each in _OTHERS) or block.startswith(_BOM):
        return None
    reading = pyarrow.csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=_NAMES)
    parsing = pyarrow.csv.ParseOptions(delimiter=" ", quote_char=False, double_quote=False)
    converting = pyarrow.csv.ConvertOptions(column_types=_TYPES, null_values=[], strings_can_be_null=False)
    try:
        table = pyarrow.csv.read_csv(pa.py_buffer(block), reading, parsing, converting)
    except pa.ArrowInvalid:
        return None
    if any(pc.min(pc.binary_length(table[name])).as_py() == 0 for name in _NAMES if name != "score"):
        return None
    # Arrow would take 0x10 for a number.
    if not (_all(pc.match_substring_regex(table["rank"], "^[0-9]{1,18}$")) and _all(pc.is_finite(table["score"]))):
        return None
    rank = table["rank"].cast(pa.int64())
    return table.select(["query", "corpus", "score"]).append_column("rank", rank)


def _all(values: pa.ChunkedArray) -> bool:
    return bool(pc.all(values).as_py())


def _line_table(path: Path) -> pa.Table:
    """The columns of :func:`_plain_table`, read line by line. Raises :class:`InputError` for the first bad line."""
    lines = list(_trec_lines(path))
    places = {rank: place for place, rank in enumerate(sorted({rank for *_, rank, _ in lines}))}  # 64 bits hold these
    return pa.table(
        {
            "query": pa.array([query for _, query, *_ in lines], pa.large_string()),
            "corpus": pa.array([corpus for _, _, corpus, *_ in lines], pa.large_string()),
            "score": pa.array([score for *_, score in lines], pa.float64()),
            "rank": pa.array([places[rank] for *_, rank, _ in lines], pa.int64()),
        }
    )


def _trec_lines(path: Path) -> Iterator[tuple[int, str, str, int, float]]:
    """(number of the line, query id, corpus id, rank, score) of every line that is not blank."""
    for number, line in raw_lines(path):
        fields = line.split()  # bytes: ASCII blanks only, an id may hold any other character
        if not fields:
            continue
        if len(fields) != 6:
            raise InputError(
                f"expected 6 columns (query-id Q0 corpus-id rank score tag), found {len(fields)}",
                path=path,
                line=number,
            )
        query, corpus = id_of(fields[0], path, number), id_of(fields[2], path, number)
        yield number, query, corpus, integer(fields[3], "rank", path, number), _finite(fields[4], path, number)


def _finite(field: bytes, path: Path, line: int) -> float:
    try:
        score = float(field)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"expected a finite number as the score, found {shown(field)}", path=path, line=line)
    return score


def _read_predictions(path: Path) -> dict[str, list[Hit]]:
    data = read_whole(path)
    content = json_of(data, dict[str, Any], path)
    for query, passages in content.items():
        if not isinstance(passages, list) or not all(isinstance(passage, str) for passage in passages):
            raise InputError(f"expected a list of passage ids (strings) for the query {query!r}", path=path)
        for each in (query, *passages):
            expect_id(each, path)
    if again := len(json.loads(data, object_pairs_hook=list)) - len(content):
        log.warning("%s: %d lists are of queries that came before; the last list counts", path, again)
    return {query: [(p, 1 / rank) for rank, p in enumerate(passages, 1)] for query, passages in content.items()}
