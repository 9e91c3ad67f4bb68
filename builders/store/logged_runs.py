"""The run that a log of searches contains: the first search of each question."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from builders.core.errors import InputError, log
from builders.core.read_files import expect_id
from builders.core.typed import json_lines
from builders.store.runs import Hit, Run, sort_contradictions, without_empty
from builders.store.search_log import LoggedCall, one_line

_REMEDY = "expected a log of `show --serve --log`"


def read_search_log(path: Path, question_splits: Mapping[str, Sequence[tuple[str, str]]], split: str) -> Run:
    """Return the first search of each question of a split as a run.

    Blanks at the ends of a text, and runs of blanks, make no difference. A logged message counts the other searches:
    repeated questions, questions of other splits, and texts that are no questions. Calls that are no searches, and
    searches that failed, are skipped. A question whose first search found nothing has no hits, so the run lacks it.
    Hits that are not in the order of their scores are sorted, with a warning, as :func:`.runs.read_run` does.

    Args:
        path: the log.
        question_splits: (id, text) of the questions of each split.
        split: the split of the run.

    Raises:
        InputError: names the line of the log that is wrong. Or no first search of a question found a passage.
    """
    ids_by_text: dict[str, str] = {}
    for query_id, query_text in question_splits[split]:
        ids_by_text.setdefault(one_line(query_text), query_id)
    texts_of_all_splits: set[str] = set()
    for questions in question_splits.values():
        texts_of_all_splits.update(one_line(query_text) for _, query_text in questions)
    hits_by_query: dict[str, list[Hit]] = {}
    counts = {"repeated": 0, "of other splits": 0, "that are no questions of the release": 0}
    systems = set()
    for line_number, call in json_lines(path, LoggedCall, _REMEDY):
        if call.call != "search" or call.error:
            continue
        searched_text, hits = _read_search(call, path, line_number)
        question_id = ids_by_text.get(searched_text)
        if question_id is None and searched_text in texts_of_all_splits:
            counts["of other splits"] += 1
        elif question_id is None:
            counts["that are no questions of the release"] += 1
        elif question_id in hits_by_query:
            counts["repeated"] += 1
        else:
            hits_by_query[question_id] = hits
            systems.add(call.system)
    count_texts = [f"{count} {description}" for description, count in counts.items()]
    log.info(
        "%s: the first searches of %d of %d questions of %s, by %s; other searches: %s",
        path,
        len(hits_by_query),
        len(ids_by_text),
        split,
        ", ".join(sorted(systems)) or "no system",
        ", ".join(count_texts),
    )
    found_hits = without_empty(hits_by_query)
    if hits_by_query and not found_hits:
        raise InputError(f"the first search of each question of {split} found nothing; expected hits", path=path)
    return Run(path, sort_contradictions(path, found_hits))


def _read_search(call: LoggedCall, path: Path, line_number: int) -> tuple[str, list[Hit]]:
    """Return the text, as one line, and the hits of a search. Raise :class:`InputError` for a missing or wrong field.

    ``path`` and ``line_number`` name the place in the error.
    """
    if call.query is None or call.passage_ids is None or call.scores is None:
        raise InputError(f"a search lacks query, passage_ids or scores; {_REMEDY}", path=path, line=line_number)
    if len(call.passage_ids) != len(call.scores):
        problem = f"has {len(call.passage_ids)} passage_ids and {len(call.scores)} scores; expected as many"
        raise InputError(problem, path=path, line=line_number)
    for passage_id in call.passage_ids:
        expect_id(passage_id, path, line_number)
    return one_line(call.query), list(zip(call.passage_ids, call.scores, strict=True))
