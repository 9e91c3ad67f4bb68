"""Answer recall under a budget of characters, so that collections cut to other lengths can be compared.

A reader, such as a language model with a limited context, reads the passages of a list from the top until it has read N
characters. The last passage is cut there. The question counts if a passage, as far as it was read, contains an answer.
Ten passages of 64 characters cost as much to read as one of 640, so recall in the top 10 favours long passages, and
recall in N characters does not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from baselines.measure.answering_passages import unique_hits
from baselines.measure.groups import percent_with_interval
from baselines.measure.run_origin import expect_passages
from baselines.measure.significance import wilson
from builders.core.errors import InputError, log
from builders.core.progress import slices_with_progress
from builders.core.results import Table
from builders.core.tables import text_table
from builders.store.reader import Release
from builders.store.runs import Run
from builders.text.answer_spans import AT_ONCE, contain_answer
from builders.text.span_options import SpanOptions

Reading = list[str]  # the texts that a reader sees, in order


@dataclass(frozen=True)
class BudgetReadings:
    """The result of reading one run under several budgets.

    Attributes:
        found_answer: for each budget, for each question with an answer: True if the read text contains an answer.
        characters: for each budget, the number of characters that were read for each question.
    """

    found_answer: dict[int, dict[str, bool]]
    characters: dict[int, dict[str, int]]

    def as_json(self) -> dict[str, Any]:
        """Return for each budget the share of questions whose answer was read, its Wilson interval, and the length.

        Shares are fractions. The length is the mean number of characters that were read.
        """
        figures = {}
        for budget, found_by_question in self.found_answer.items():
            question_count = len(found_by_question)
            found_count = sum(found_by_question.values())
            figures[str(budget)] = {
                "answer": found_count / question_count,
                "interval": list(wilson(found_count, question_count)),
                "characters": sum(self.characters[budget].values()) / question_count,
            }
        return figures

    def columns(self, query_ids: Sequence[str]) -> dict[str, pa.Array]:
        """Return a column for each budget in the order of ``query_ids`` (null: the question has no answer)."""
        columns = {}
        for budget, found_by_question in self.found_answer.items():
            columns[f"answer_in_{budget}"] = pa.array(
                [found_by_question.get(query_id) for query_id in query_ids], pa.bool_()
            )
        return columns


def read_top(texts: Sequence[str], budget: int) -> Reading:
    """Return the beginnings of texts that a reader of ``budget`` characters sees. Only the last one may be cut.

    For example, of "aaa", "bbb", "cc" with a budget of 5, the reader sees "aaa" and "bb".
    """
    reading = []
    remaining = budget
    for text in texts:
        if remaining <= 0:
            break
        reading.append(text[:remaining])
        remaining -= len(text)
    return reading


def read_runs(
    runs: Sequence[Run],
    answers: Mapping[str, Sequence[str]],
    release: Release,
    corpus: str,
    options: SpanOptions,
    budgets: Sequence[int],
) -> list[BudgetReadings]:
    """Read each run under every budget, and return the readings of each run.

    Args:
        runs: the runs. A passage that is repeated in a list is read once.
        answers: the answers of each question by query id. Questions without an answer do not count.
        release, corpus: the release, and the config with the passages of the runs.
        options: the unit, the threshold and the segmenter of span-F1.
        budgets: numbers of characters.

    Raises:
        InputError: no question has an answer, or the corpus lacks a retrieved passage.
    """
    answers = {query_id: query_answers for query_id, query_answers in answers.items() if query_answers}
    if not answers:
        raise InputError("no query of the split has an answer (raw test rows have none)", path=release.path)
    return [_read_run(run, answers, release, corpus, options, list(dict.fromkeys(budgets))) for run in runs]


def _read_run(
    run: Run,
    answers: Mapping[str, Sequence[str]],
    release: Release,
    corpus: str,
    options: SpanOptions,
    budgets: Sequence[int],
) -> BudgetReadings:
    """Read one run under every budget, as :func:`read_runs` does. Every question in ``answers`` has an answer."""
    # A passage has at least one character, so a reader never needs more passages than characters.
    longest = max(budgets)
    rankings = {}
    for query_id in answers:
        rankings[query_id] = [passage_id for passage_id, _ in unique_hits(run, query_id)[:longest]]
    retrieved_ids = set(chain.from_iterable(rankings.values()))
    texts = release.texts(corpus, "corpus", retrieved_ids)
    expect_passages(run, sorted(retrieved_ids), texts, corpus)

    readings = BudgetReadings({budget: {} for budget in budgets}, {budget: {} for budget in budgets})
    query_ids = list(answers)
    for block in slices_with_progress(len(query_ids), AT_ONCE, unit="query", label="budgets"):
        block_ids = query_ids[block]
        # Budgets share most of their texts, so each distinct text of a question is labelled once.
        readings_by_query = {}
        for query_id in block_ids:
            ranked_texts = [texts[passage_id] for passage_id in rankings[query_id]]
            readings_by_query[query_id] = [read_top(ranked_texts, budget) for budget in budgets]
        distinct_texts = [
            list(dict.fromkeys(chain.from_iterable(readings_by_query[query_id]))) for query_id in block_ids
        ]
        labels = contain_answer(distinct_texts, [answers[query_id] for query_id in block_ids], options)
        for query_id, query_texts, query_labels in zip(block_ids, distinct_texts, labels, strict=True):
            label_of_text = dict(zip(query_texts, query_labels, strict=True))
            for budget, reading in zip(budgets, readings_by_query[query_id], strict=True):
                readings.found_answer[budget][query_id] = any(label_of_text[text] for text in reading)
                readings.characters[budget][query_id] = sum(map(len, reading))
    _warn_of_short_lists(run, readings)
    return readings


def _warn_of_short_lists(run: Run, readings: BudgetReadings) -> None:
    """Warn if some lists do not fill the largest budget, because a deeper run could then have further answers."""
    budget = max(readings.characters)
    short_count = sum(characters < budget for characters in readings.characters[budget].values())
    if short_count:
        log.warning(
            "%s: the lists of %d of %d questions have fewer than %d characters; a deeper run may have further answers",
            run.path,
            short_count,
            len(readings.characters[budget]),
            budget,
        )


def budgets_text(results: Sequence[Mapping[str, Any]]) -> str:
    """Format the answer recall of all runs under each budget as a table.

    ``results`` are those of :func:`baselines.measure.evaluation.answer_results` with budgets: for each run, ``run``
    (its name) and ``budgets`` (:meth:`BudgetReadings.as_json`).
    """
    budgets = list(results[0]["budgets"])
    rows = []
    for result in results:
        cells = []
        for figures in result["budgets"].values():
            cells.append(percent_with_interval(figures["answer"], figures["interval"]))
        rows.append([result["run"], *cells])
    header = ["run", *(f"{int(budget):,} characters" for budget in budgets)]
    title = "answer in the first N characters of a list, percent of queries with an answer, with 95 % intervals"
    return f"{title}\n{text_table(header, rows)}"


def budgets_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """Return the answer recall of all runs under each budget, with the limits of the intervals.

    ``results`` are those of :func:`budgets_text`.
    """
    columns = ["run"]
    for budget in results[0]["budgets"]:
        columns += [f"answer in {budget}", f"answer in {budget} low", f"answer in {budget} high"]
    rows = []
    for result in results:
        row = [result["run"]]
        for figures in result["budgets"].values():
            row += [figures["answer"], *figures["interval"]]
        rows.append(row)
    title = "answer in the first N characters of a list, percent of queries, with the limits of 95 % intervals"
    return Table(columns, rows, title=title, percent_columns=columns[1:])
