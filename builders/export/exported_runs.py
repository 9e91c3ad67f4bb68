"""Write runs for other tools, with scores that every tool sorts in the same order.

Tools sort equal scores by different rules: trec_eval by descending id, ranx by position, this project by ascending id.
Exported scores therefore fall strictly, even as the 32-bit floats of trec_eval.
"""

import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from builders.core.errors import InputError, log
from builders.core.read_files import is_gzipped, raw_lines
from builders.core.typed import problem_of
from builders.export.output import Blocks, Output, encoded_lines
from builders.export.sets import ReleaseSet
from builders.store.layout import ANSWERS
from builders.store.original_runs import translate_run
from builders.store.run_formats import detect_run_format
from builders.store.runs import Hit, Run, read_run
from builders.store.stored_answers import read_answers

_DEPTH = 50  # maximum passages per query of the official predictions
_NAMED_QUERIES = 3  # maximum queries that a message names
_LINES_PER_BLOCK = 1 << 14
# Endings of names that the name of an exported run lacks, after .gz is removed.
_RUN_ENDINGS = (".json", ".jsonl", ".trec", ".txt", ".tsv", ".parquet", ".run")


def _empty_answers() -> dict[str, Any]:
    """Return the columns of ``answers`` in a line of rag, with the values of a question without answers."""
    empty_values: dict[str, Any] = {}
    for column in ANSWERS:
        if column.name not in ("query_id", "answer_passages"):
            empty_values[column.name] = [] if pa.types.is_list(column.type) else ""
    return empty_values


_EMPTY_ANSWERS = _empty_answers()


def distinct_hits(hits: list[Hit]) -> list[tuple[str, str]]:
    """Return the (passage id, score) pairs of a query with strictly falling scores and no repeated passage.

    ``hits`` are best first. A returned score is a decimal number as text. A score that is not below its predecessor
    becomes the next 32-bit float below the predecessor. If a score becomes infinite, the descending whole numbers to 1
    replace all scores.
    """
    scores: dict[str, np.float32] = {}
    previous_score = np.float32(np.inf)
    for passage_id, score in hits:
        if passage_id in scores:  # a repeated passage keeps its first score
            continue
        # A score above the range of 32-bit floats becomes the largest float. A score below the range becomes -inf, and
        # all scores of the query are replaced below.
        with np.errstate(over="ignore"):
            highest_score = np.nextafter(previous_score, np.float32(-np.inf))
            previous_score = min(np.float32(score), highest_score)
        scores[passage_id] = previous_score
    if not np.isfinite(previous_score):
        scores = {passage_id: np.float32(len(scores) - rank) for rank, passage_id in enumerate(scores)}
    return [(passage_id, np.format_float_positional(score, trim="0")) for passage_id, score in scores.items()]


def write_runs(output: Output, runs: Sequence[Run | Path], form: str, release_set: ReleaseSet) -> None:
    """Write runs in the export format ``form``, under the names of their files.

    The runs may have any format of :mod:`builders.store.run_formats`, and original ids. ``release_set`` is
    the searched set, whose queries and passages are compared with predictions. The lines of an uncompressed TREC run
    with strictly falling scores are copied to the format ``trec``.

    Raises:
        InputError: a file is not a run, a name is not a safe file name, two runs have the same name, or predictions
            have queries or passages that the set lacks.
    """
    for run_or_path in runs:
        original_run = read_run(run_or_path)
        run = translate_run(original_run, release_set.release)
        run_form = FORMS[form]
        path = run.path
        stem = re.sub(r"\.gz$", "", path.name, flags=re.IGNORECASE)
        for ending in _RUN_ENDINGS:
            stem = stem.removesuffix(ending)
        # The name comes from the user's file, so it is checked like a name of an archive.
        name = f"{run_form.folder}/{stem}.{run_form.ending}"
        problem = problem_of(name)
        if problem:
            raise InputError(problem, path=path)
        if name in output.rows:
            raise InputError(f"another run is also named {stem!r}; rename one of the files", path=path)
        row_limit = run_form.count_rows(run)
        # A TREC run that is right already is copied, so that its scores and its tag stay the same.
        is_plain_file = run is original_run and not run.is_in_memory and not is_gzipped(path)
        if form == "trec" and is_plain_file and _has_falling_scores(run) and detect_run_format(path).is_trec:
            output.blocks(name, _copied_lines(path), row_limit)
        else:
            output.blocks(name, run_form.encode(run, stem, release_set), row_limit)


def _copied_lines(path: Path) -> Blocks:
    """Yield the lines of a TREC run, but no blank line and no byte order mark, which other tools would read as ids."""
    lines = (line + b"\n" for _, line in raw_lines(path) if line.strip())
    line_blocks = iter(lambda: list(itertools.islice(lines, _LINES_PER_BLOCK)), [])
    for block in line_blocks:
        yield len(block), b"".join(block)


def _has_falling_scores(run: Run) -> bool:
    """True if the scores of every query fall strictly as 32-bit floats, and no query has a repeated passage."""
    for hits in run.hits.values():
        passage_ids = {passage_id for passage_id, _ in hits}
        scores = np.array([score for _, score in hits], np.float32)
        if len(passage_ids) < len(hits) or not (np.diff(scores) < 0).all():
            return False
    return True


def _encode_trec(run: Run, tag: str, _: ReleaseSet) -> Blocks:
    """Yield the lines of each query of a TREC run. ``tag`` is the last field of a line, which has no white space."""
    tag = "_".join(tag.split()) or "run"
    for query_id, hits in run.hits.items():
        lines: list[str] = []
        for rank, (passage_id, score) in enumerate(distinct_hits(hits), 1):
            lines.append(f"{query_id} Q0 {passage_id} {rank} {score} {tag}\n")
        yield len(lines), "".join(lines).encode()


def _encode_results(run: Run, _: str, release_set: ReleaseSet) -> Blocks:
    """Return BEIR's results: query id -> passage id -> score."""

    def encode_scores(hits: list[Hit]) -> str:
        # The scores are texts already, with the fewest digits.
        return "{" + ", ".join(f"{json.dumps(passage_id)}: {score}" for passage_id, score in distinct_hits(hits)) + "}"

    return _encode_object(run.hits, encode_scores)


def _encode_predictions(run: Run, _: str, release_set: ReleaseSet) -> Blocks:
    """Return the official predictions: a JSON object with the ids of the first 50 distinct passages by query id.

    The queries have the order of their split, which is the split with most of the run's queries.

    Queries that the run lacks are logged. Queries of another split and unknown passages are an :class:`InputError`.
    """
    # Passages that occur twice are dropped before the cut, so that 50 distinct passages remain.
    rankings = {
        query_id: list(dict.fromkeys(passage_ids))[:_DEPTH]
        for query_id, passage_ids in run.rankings.items()
        if passage_ids
    }
    split, query_texts = _find_split(run, rankings, release_set)
    predicted_ids: set[str] = set()
    for passage_ids in rankings.values():
        predicted_ids.update(passage_ids)
    release_set.expect_passages(predicted_ids, run.path)
    unanswered_ids = [query_id for query_id in query_texts if query_id not in rankings]
    if unanswered_ids:
        log.warning(
            "%s lacks %s of the %d in %s of %s; a missing query counts 0",
            run.path,
            _name_queries(unanswered_ids),
            len(query_texts),
            split,
            release_set.release.path,
        )
    ordered_rankings = {query_id: rankings[query_id] for query_id in query_texts if query_id in rankings}
    return _encode_object(ordered_rankings, json.dumps)


def _find_split(run: Run, run_queries: Collection[str], release_set: ReleaseSet) -> tuple[str, dict[str, str]]:
    """Return the split with most of the run's queries, and its queries (id -> text).

    Raises :class:`InputError` if the run has a query of another split.
    """
    # The run has no name of its split, so the split is found by the queries.
    query_ids = set(run_queries)
    texts_by_split = {split: _read_query_texts(release_set, split) for split in release_set.query_splits()}
    best_split = max(texts_by_split, key=lambda split: len(query_ids & texts_by_split[split].keys()))
    unknown_ids = sorted(query_ids - texts_by_split[best_split].keys())
    if unknown_ids:
        split_name = f"{best_split} of {release_set.release.path}"
        message = f"has {_name_queries(unknown_ids)} that {split_name} lacks; expected a run of one split"
        raise InputError(message, path=run.path)
    return best_split, texts_by_split[best_split]


def _read_query_texts(release_set: ReleaseSet, split: str) -> dict[str, str]:
    """Return query id -> text for a split."""
    query_texts: dict[str, str] = {}
    for batch in release_set.queries(split):
        query_texts |= zip(batch["_id"].to_pylist(), batch["text"].to_pylist(), strict=True)
    return query_texts


def _encode_rag(run: Run, _: str, release_set: ReleaseSet) -> Blocks:
    """Yield a JSON line for each query of a run: the question, its answers and types, and the best passages' texts.

    Queries of the split that the run lacks have no line. Raises :class:`InputError` if the set or the split has no
    answers, for queries of another split and for unknown passages.
    """
    best_hits = {query_id: distinct_hits(hits)[: release_set.top_k] for query_id, hits in run.hits.items() if hits}
    split, query_texts = _find_split(run, best_hits, release_set)
    answers = read_answers(release_set.release, release_set.name, split)
    # Read the texts of all passages at once, because each read goes through the corpus.
    passage_ids: set[str] = set()
    for hits in best_hits.values():
        passage_ids.update(passage_id for passage_id, _ in hits)
    release_set.expect_passages(passage_ids, run.path)
    passage_texts = release_set.release.texts(release_set.configs.corpus, "corpus", passage_ids)
    for query_id, query_text in query_texts.items():
        if query_id not in best_hits:
            continue
        row: dict[str, Any] = {"query_id": query_id, "question": query_text}
        query_answers = answers.get(query_id, _EMPTY_ANSWERS)
        for column in _EMPTY_ANSWERS:
            row[column] = query_answers[column]
        row["passages"] = [
            {"docid": passage_id, "rank": rank, "score": float(score), "text": passage_texts[passage_id]}
            for rank, (passage_id, score) in enumerate(best_hits[query_id], 1)
        ]
        yield 1, encoded_lines([row])


def _name_queries(query_ids: Sequence[str]) -> str:
    """Return the number of queries and the first ids, for a message."""
    names = ", ".join(query_ids[:_NAMED_QUERIES])
    if len(query_ids) > _NAMED_QUERIES:
        names += ", ..."
    noun = "query" if len(query_ids) == 1 else "queries"
    return f"{len(query_ids)} {noun} ({names})"


def _encode_object(
    hits_by_query: Mapping[str, list[Any]], encode_hits: Callable[[list[Any]], str]
) -> Iterator[tuple[int, bytes]]:
    """Yield the blocks of a JSON object that has a line for each query. A row of a block is a hit, not a line."""
    yield 0, b"{\n"
    separator = ""
    for query_id, hits in hits_by_query.items():
        yield len(hits), f"{separator}{json.dumps(query_id)}: {encode_hits(hits)}".encode()
        separator = ",\n"
    yield 0, b"\n}\n"


def _count_hits(run: Run) -> int:
    return sum(len(hits) for hits in run.hits.values())


def _count_predictions(run: Run) -> int:
    return sum(min(len(passage_ids), _DEPTH) for passage_ids in run.rankings.values())


def _count_queries(run: Run) -> int:
    return len(run.hits)


class RunForm(NamedTuple):
    """The files that a format has for runs.

    Attributes:
        folder: folder of the runs.
        ending: ending of the files.
        encode: function of (run, name, set) that returns the blocks of a file. The name is that of the run's file
            without its endings.
        count_rows: function of a run that returns the largest number of rows of the file. A row is a retrieved passage,
            or in the format rag a query.
    """

    folder: str
    ending: str
    encode: Callable[[Run, str, ReleaseSet], Blocks]
    count_rows: Callable[[Run], int]


# Export format -> the form of its runs.
FORMS = {
    "beir": RunForm("runs", "json", _encode_results, _count_hits),
    "trec": RunForm("runs", "trec", _encode_trec, _count_hits),
    "official": RunForm("predictions", "json", _encode_predictions, _count_predictions),
    "rag": RunForm("rag", "jsonl", _encode_rag, _count_queries),
}
