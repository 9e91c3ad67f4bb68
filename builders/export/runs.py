"""Runs for other tools: scores that no tool can order otherwise, in the format that it reads.

Runs may have equal scores, and every tool orders those by a rule of its own: trec_eval by descending id, ranx by place,
this project by ascending id. Exported scores fall strictly, also in the 32 bits in which trec_eval holds them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from builders.core.errors import InputError, log
from builders.core.files import first_character
from builders.core.typed import problem_of
from builders.export.output import Blocks, Output
from builders.export.sets import ReleaseSet
from builders.store.runs import Hit, Run, read_run

_DEPTH = 50  # of the official predictions
_NAMED = 3  # queries that a message names
_BLOCK = 1 << 20


def distinct(hits: list[Hit]) -> list[tuple[str, str]]:
    """(passage, score) of a query's hits, best first, a passage once: scores as they are, but strictly falling.

    A score that is not below the one before it, as 32 bits hold both, becomes the next one below. Where 32 bits do not
    reach so far, ranks take the scores' place.
    """
    first = {passage: score for passage, score in reversed(hits)}
    found: dict[str, np.float32] = {}
    above = np.float32(np.inf)
    for passage, _ in hits:
        if passage not in found:
            with np.errstate(over="ignore"):
                above = found[passage] = min(np.float32(first[passage]), np.nextafter(above, np.float32(-np.inf)))
    if not np.isfinite(above):
        found = {passage: np.float32(len(found) - place) for place, passage in enumerate(found)}
    return [(passage, np.format_float_positional(score, trim="0")) for passage, score in found.items()]


def write_runs(output: Output, paths: Sequence[Path], form: str, data: ReleaseSet) -> None:
    """Write runs, TREC's or official predictions, in the form of an export ``form``, named as their files.

    ``data`` is the set that was searched: predictions are checked against it. A TREC run whose scores fall strictly is
    copied as it is.

    Raises:
        InputError: for a file that is no run, a name that is no file's on every machine, two of one name, and
            predictions of queries or passages that the set lacks.
    """
    for path in paths:
        stem = path.name.removesuffix(".gz")
        for ending in (".json", ".trec", ".txt", ".run"):
            stem = stem.removesuffix(ending)
        folder, ending, blocks_of = FORMS[form]
        name = f"{folder}/{stem}.{ending}"
        if problem := problem_of(name):
            raise InputError(problem, path=path)
        if name in output.rows:
            raise InputError(f"a second run {stem!r}; give each a name of its own", path=path)
        run = read_run(path)
        if form == "trec" and path.suffix != ".gz" and _falls(run) and first_character(path) != "{":
            with open(path, "rb") as file:
                output.blocks(name, ((part.count(b"\n"), part) for part in iter(lambda: file.read(_BLOCK), b"")))
        else:
            output.blocks(name, blocks_of(run, stem, data))


def _falls(run: Run) -> bool:
    """True if every query's scores fall strictly, and no query has a passage twice."""
    return all(
        len({passage for passage, _ in hits}) == len(hits)
        and (np.diff(np.array([score for _, score in hits], np.float32)) < 0).all()
        for hits in run.hits.values()
    )


def _trec(run: Run, tag: str, _: ReleaseSet) -> Blocks:
    tag = "_".join(tag.split()) or "run"
    for query, hits in run.hits.items():
        ranked = enumerate(distinct(hits), 1)
        lines = [f"{query} Q0 {passage} {rank} {score} {tag}\n" for rank, (passage, score) in ranked]
        yield len(lines), "".join(lines).encode()


def _results(run: Run, _: str, data: ReleaseSet) -> Blocks:
    def scored(hits: list[Hit]) -> str:
        return "{" + ", ".join(f"{json.dumps(passage)}: {score}" for passage, score in distinct(hits)) + "}"

    return _object(run.hits, scored)


def _predictions(run: Run, _: str, data: ReleaseSet) -> Blocks:
    """The first 50 passages of each query, each once, in the order of the run's split.

    Queries that the run lacks are named: they count 0. Queries of another split are an :class:`InputError`, and so are
    passages that the corpus lacks.
    """
    lists = {query: list(dict.fromkeys(own))[:_DEPTH] for query, own in run.rankings.items() if own}
    splits = {
        split: [query for batch in data.queries(split) for query in batch["_id"].to_pylist()]
        for split in data.query_splits()
    }
    split = max(splits, key=lambda name: len(lists.keys() & splits[name]))
    place = f"{split} of {data.release.path}"
    if strangers := sorted(lists.keys() - splits[split]):
        raise InputError(f"has {_named(strangers)} that {place} lacks; expected a run of one split", path=run.path)
    data.expect_passages({each for own in lists.values() for each in own}, run.path)
    if missing := [query for query in splits[split] if query not in lists]:
        log.warning("%s lacks %s of %d of %s; they count 0", run.path, _named(missing), len(splits[split]), place)
    return _object({query: lists[query] for query in splits[split] if query in lists}, json.dumps)


def _named(queries: Sequence[str]) -> str:
    shown = ", ".join(queries[:_NAMED]) + ", ..." * (len(queries) > _NAMED)
    return f"{len(queries)} {'query' if len(queries) == 1 else 'queries'} ({shown})"


def _object(lists: Mapping[str, list[Any]], value: Callable[[list[Any]], str]) -> Iterator[tuple[int, bytes]]:
    """A JSON object, a line a query."""
    yield 0, b"{\n"
    for number, (query, own) in enumerate(lists.items()):
        yield len(own), (",\n" * (number > 0) + f"{json.dumps(query)}: {value(own)}").encode()
    yield 0, b"\n}\n"


# By the format of the export: the folder and the ending of its runs, and their content.
FORMS: dict[str, tuple[str, str, Callable[[Run, str, ReleaseSet], Blocks]]] = {
    "beir": ("runs", "json", _results),
    "trec": ("runs", "trec", _trec),
    "official": ("predictions", "json", _predictions),
}
