"""Write runs for other tools, with scores that every tool sorts in the same order.

Tools sort equal scores by different rules: trec_eval by descending id, ranx by position, this project by ascending id.
Exported scores therefore fall strictly, even as the 32-bit floats of trec_eval.
"""

import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from builders.core.errors import InputError, log
from builders.core.files import first_character, is_gzipped, raw_lines
from builders.core.typed import problem_of
from builders.export.output import Blocks, Output, encoded_lines
from builders.export.sets import ReleaseSet
from builders.store.layout import ANSWERS
from builders.store.runs import Hit, Run, read_run
from builders.store.stored_answers import read_answers

_DEPTH = 50  # maximum passages per query of the official predictions
_IDS = ("query_id", "answer_passages")
_NAMED = 3  # maximum queries that a message names
_LINES = 1 << 14  # lines copied at a time
# The columns of ``answers`` in a line of rag, with their empty values.
_ABOUT = {each.name: [] if pa.types.is_list(each.type) else "" for each in ANSWERS if each.name not in _IDS}


def distinct(hits: list[Hit]) -> list[tuple[str, str]]:
    """Return the (passage, score) pairs of a query, best first, with strictly falling scores and no repeated passage.

    A score that is not below its predecessor becomes the next 32-bit float below the predecessor. If a score becomes
    infinite, descending whole numbers replace all scores.
    """
    first = {passage: score for passage, score in reversed(hits)}
    scores: dict[str, np.float32] = {}
    above = np.float32(np.inf)
    for passage, _ in hits:
        if passage not in scores:
            with np.errstate(over="ignore"):
                above = scores[passage] = min(np.float32(first[passage]), np.nextafter(above, np.float32(-np.inf)))
    if not np.isfinite(above):
        scores = {passage: np.float32(len(scores) - place) for place, passage in enumerate(scores)}
    return [(passage, np.format_float_positional(score, trim="0")) for passage, score in scores.items()]


def write_runs(output: Output, runs: Sequence[Run | Path], form: str, data: ReleaseSet) -> None:
    """Write runs (TREC runs or official predictions) in the export format ``form``, under the names of their files.

    ``data`` is the searched set, whose queries and passages are compared with predictions. The lines of an
    uncompressed TREC run with strictly falling scores are copied to the format ``trec``.

    Raises:
        InputError: a file is not a run, a name is not a safe file name, two runs have the same name, or predictions
            have queries or passages that the set lacks.
    """
    for run in map(read_run, runs):
        path = run.path
        stem = re.sub(r"\.gz$", "", path.name, flags=re.IGNORECASE)
        for ending in (".json", ".trec", ".txt", ".run"):
            stem = stem.removesuffix(ending)
        folder, ending, blocks_of = FORMS[form]
        name = f"{folder}/{stem}.{ending}"
        if problem := problem_of(name):
            raise InputError(problem, path=path)
        if name in output.rows:
            raise InputError(f"another run is also named {stem!r}; rename one of the files", path=path)
        is_plain_file = not run.is_in_memory and not is_gzipped(path)
        if form == "trec" and is_plain_file and _falls(run) and first_character(path) != "{":
            output.blocks(name, _copied_lines(path))
        else:
            output.blocks(name, blocks_of(run, stem, data))


def _copied_lines(path: Path) -> Blocks:
    """Yield the lines of a TREC run, but no blank line and no byte order mark, which other tools would read as ids."""
    hits = (line + b"\n" for _, line in raw_lines(path) if line.strip())
    while block := list(itertools.islice(hits, _LINES)):
        yield len(block), b"".join(block)


def _falls(run: Run) -> bool:
    """True if the scores of every query fall strictly, and no query has a repeated passage."""
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
    """Return the first 50 distinct passages of each query.

    The queries have the order of their split, which is the split with most of the run's queries.

    Queries that the run lacks are logged. Queries of another split and unknown passages are an :class:`InputError`.
    """
    lists = {query: list(dict.fromkeys(passages))[:_DEPTH] for query, passages in run.rankings.items() if passages}
    split, queries = _split_of(run, lists, data)
    data.expect_passages({passage for passages in lists.values() for passage in passages}, run.path)
    if missing := [query for query in queries if query not in lists]:
        words = "%s lacks %s of the %d in %s of %s; a missing query counts 0"
        log.warning(words, run.path, _named(missing), len(queries), split, data.release.path)
    return _object({query: lists[query] for query in queries if query in lists}, json.dumps)


def _split_of(run: Run, lists: Collection[str], data: ReleaseSet) -> tuple[str, dict[str, str]]:
    """Return the split with most of the run's queries, and its queries (id -> text).

    Raises :class:`InputError` if the run has a query of another split.
    """
    splits = {
        split: {
            query: text
            for batch in data.queries(split)
            for query, text in zip(batch["_id"].to_pylist(), batch["text"].to_pylist(), strict=True)
        }
        for split in data.query_splits()
    }
    split = max(splits, key=lambda name: len({*lists} & splits[name].keys()))
    if unknown := sorted({*lists} - splits[split].keys()):
        place = f"{split} of {data.release.path}"
        raise InputError(f"has {_named(unknown)} that {place} lacks; expected a run of one split", path=run.path)
    return split, splits[split]


def _rag(run: Run, _: str, data: ReleaseSet) -> Blocks:
    """Yield a JSON line for each query of a run: the question, its answers and types, and the best passages' texts."""
    lists = {query: distinct(hits)[: data.top_k] for query, hits in run.hits.items() if hits}
    split, queries = _split_of(run, lists, data)
    known = read_answers(data.release, data.name, split)
    wanted = {passage for hits in lists.values() for passage, _ in hits}
    data.expect_passages(wanted, run.path)
    texts = data.release.texts(data.configs.corpus, "corpus", wanted)
    for query in (query for query in queries if query in lists):
        about = {name: known[query][name] if query in known else empty for name, empty in _ABOUT.items()}
        passages = [
            {"docid": passage, "rank": rank, "score": float(score), "text": texts[passage]}
            for rank, (passage, score) in enumerate(lists[query], 1)
        ]
        yield 1, encoded_lines([{"query_id": query, "question": queries[query], **about, "passages": passages}])


def _named(queries: Sequence[str]) -> str:
    shown = ", ".join(queries[:_NAMED]) + ", ..." * (len(queries) > _NAMED)
    return f"{len(queries)} {'query' if len(queries) == 1 else 'queries'} ({shown})"


def _object(lists: Mapping[str, list[Any]], value: Callable[[list[Any]], str]) -> Iterator[tuple[int, bytes]]:
    """Yield the blocks of a JSON object that has a line for each query."""
    yield 0, b"{\n"
    for number, (query, hits) in enumerate(lists.items()):
        yield len(hits), (",\n" * (number > 0) + f"{json.dumps(query)}: {value(hits)}").encode()
    yield 0, b"\n}\n"


# Export format -> (folder of the runs, file ending, function that writes a run).
FORMS: dict[str, tuple[str, str, Callable[[Run, str, ReleaseSet], Blocks]]] = {
    "beir": ("runs", "json", _results),
    "trec": ("runs", "trec", _trec),
    "official": ("predictions", "json", _predictions),
    "rag": ("rag", "jsonl", _rag),
}
