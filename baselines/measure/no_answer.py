"""Questions without an answer: does a run's score tell when nothing in the collection answers the question?

Every question of the judgments has two lists. In the first list, the run's own, the collection has an answer. In the
second list, the passages that answer the question are removed (:mod:`.answering_passages`). Two numbers of a list can
tell the two apart: the score of its best passage, and the gap between the scores of its first and second passage. For
each number, the step computes the AUROC, and a threshold (:mod:`.confidence`).

The removal is exact if the score of a passage does not depend on the other passages, as in BM25 with fixed statistics,
in dual-encoders and in cross-encoders. The scores of a fusion depend on them. For a fusion, the answering passages must
be removed before fusing, so the second lists may come from another run.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from baselines.measure.answering_passages import (
    REASONS,
    Answering,
    AnsweringRule,
    find_answering,
    remove_answering,
    unique_hits,
)
from baselines.measure.confidence import (
    NAUC_FUNCTIONS,
    auroc,
    auroc_interval,
    nauc,
    nauc_confidences,
    nauc_interval,
    try_threshold,
)
from baselines.measure.groups import percent_with_interval
from baselines.measure.measures import LIST_DEPTH, Values, per_query, reciprocal_ranks_by_query
from baselines.measure.qrels import Qrels
from baselines.measure.significance import wilson
from builders.core.errors import InputError, log
from builders.core.results import Report, Table
from builders.core.tables import text_table
from builders.core.write_files import atomic_text
from builders.store.runs import Hit, Run, write_run

# The gap needs the first two passages of a list.
_LIST_LENGTH = 2
_LEAST_QUESTIONS = 2  # one for each half
CONFIDENCES = {"best": "best score", "gap": "gap to the second"}
# The measures whose nAUC is computed, under mteb's names.
_NAUC_MEASURES = ("mrr_at_10", "ndcg_at_10")


@dataclass(frozen=True)
class ListPair:
    """The two best scores of a question's list, with and without the passages that answer the question.

    Attributes:
        query_id: the question.
        removed: the reason of each removed passage, by passage id, in the order of the list. Only as much of the list
            was examined as :func:`pair_lists` needs, at least 50 ranks.
        scores: the two best scores of the run's list.
        scores_without: the two best scores without the answering passages.
    """

    query_id: str
    removed: Mapping[str, str]
    scores: tuple[float, float]
    scores_without: tuple[float, float]

    def as_json(self) -> dict[str, Any]:
        """Return the confidences of both lists, and the removed passages."""
        return {
            "query_id": self.query_id,
            "best": self.scores[0],
            "gap": self.scores[0] - self.scores[1],
            "best_without": self.scores_without[0],
            "gap_without": self.scores_without[0] - self.scores_without[1],
            "removed": dict(self.removed),
        }


def pair_lists(run: Run, qrels: Qrels, rule: AnsweringRule, pruned: Run | None = None) -> tuple[list[ListPair], int]:
    """Return (a pair of lists for each question, number of skipped questions).

    A pair has the two best scores of the list with and without its answering passages. A question is skipped if one of
    the lists has fewer than two passages, and a deeper search cannot lengthen this list.

    Args:
        run: the run.
        qrels: the judgments of the questions.
        rule: the rule for answering passages.
        pruned: a run of the same system without the answering passages (default: they are removed from ``run``).

    Raises:
        InputError: the lists are too short, ``pruned`` has an answering passage or lacks a list, the run has ranks
            instead of scores, or fewer than two questions have lists.
    """
    # Only two scores are read, so each list is examined, in blocks of 50 ranks, until two passages remain that do not
    # answer the question.
    answering = find_answering(run, qrels, rule, needed=_LIST_LENGTH)
    if pruned is not None:
        _expect_pruned(pruned, qrels, rule)
    passage_count = rule.release.rows(rule.corpus, "corpus")
    short_lists = _ShortLists()
    pairs = []
    for query_id, positives in qrels.positives.items():
        reasons = answering[query_id]
        hits = unique_hits(run, query_id)
        hits_without = [hit for hit in hits if hit[0] not in reasons]
        if pruned is not None:
            hits_without = _pruned_hits(pruned, query_id, run, remaining_count=len(hits_without))
        if min(len(hits), len(hits_without)) < _LIST_LENGTH:
            # A deeper list may also have the positives that this list lacks, and two passages must remain after all.
            short_lists.add(len(hits), len(reasons.keys() | positives.keys()) + _LIST_LENGTH)
            continue
        pair = ListPair(query_id, reasons, _two_best_scores(hits), _two_best_scores(hits_without))
        pairs.append(pair)
    short_lists.expect_uncut(run, passage_count, len(qrels.positives))
    if len(pairs) < _LEAST_QUESTIONS:
        problem = (
            f"has lists of two passages for {len(pairs)} of {len(qrels.positives)} questions; expected two or more"
        )
        raise InputError(problem, path=run.path)
    _expect_scores(run, pairs)
    return pairs, short_lists.count


class _ShortLists:
    """The lists of a run that have fewer than two passages without the answering passages."""

    def __init__(self) -> None:
        self._lengths_and_depths: list[tuple[int, int]] = []

    @property
    def count(self) -> int:
        return len(self._lengths_and_depths)

    def add(self, length: int, needed_depth: int) -> None:
        """Add a list of ``length`` passages. A search of ``needed_depth`` passages would make it long enough."""
        self._lengths_and_depths.append((length, needed_depth))

    def expect_uncut(self, run: Run, passage_count: int, question_count: int) -> None:
        """Raise :class:`InputError` if a deeper search can lengthen a list. Otherwise, warn of the skipped questions.

        A list that is as long as the longest list of the run was cut there. A shorter list, or a list of the whole
        collection, was not cut, because the engine has no further passage.
        """
        run_depth = max((len(hits) for hits in run.rankings.values()), default=0)
        needed_depths = []
        for length, needed_depth in self._lengths_and_depths:
            if run_depth <= length < passage_count:
                needed_depths.append(needed_depth)
        if needed_depths:
            raise InputError(
                f"is too short for {len(needed_depths)} of {question_count} questions: fewer than two passages remain "
                f"without those that answer the question; search with --top-k {max(needed_depths)} or more",
                path=run.path,
            )
        if self.count:
            log.warning(
                "%s: %d of %d questions are skipped, because the engine has fewer than two further passages for them",
                run.path,
                self.count,
                question_count,
            )


def _two_best_scores(hits: Sequence[Hit]) -> tuple[float, float]:
    return float(hits[0][1]), float(hits[1][1])


def _expect_pruned(pruned: Run, qrels: Qrels, rule: AnsweringRule) -> None:
    """Raise :class:`InputError` for the first answering passage of a run that should have none."""
    for query_id, reasons in find_answering(pruned, qrels, rule, needed=_LIST_LENGTH).items():
        for passage_id, reason in reasons.items():
            raise InputError(
                f"has the passage {passage_id!r} for the question {query_id!r}, which it answers ({reason}); expected "
                "a fusion of runs of --write-pruned",
                path=pruned.path,
            )


def _pruned_hits(pruned: Run, query_id: str, run: Run, *, remaining_count: int) -> list[Hit]:
    """Return the list of a question in ``pruned``, the run without answering passages.

    ``remaining_count`` passages of the question remain in ``run``. Raises :class:`InputError` if ``pruned`` has fewer
    than these, unless it has two.
    """
    pruned_hits = unique_hits(pruned, query_id)
    if len(pruned_hits) < min(remaining_count, _LIST_LENGTH):
        raise InputError(
            f"has {len(pruned_hits)} passages for the question {query_id!r}, where {remaining_count} of {run.path} "
            "remain; expected a fusion of runs of --write-pruned",
            path=pruned.path,
        )
    return pruned_hits


def _expect_scores(run: Run, pairs: Sequence[ListPair]) -> None:
    """Raise :class:`InputError` if the best score is the same for all questions, as in a file of ranks."""
    best_scores = {pair.scores[0] for pair in pairs}
    if len(best_scores) == 1:
        problem = (
            f"has the best score {min(best_scores):g} for every question; expected a run with a retriever's scores"
        )
        raise InputError(problem, path=run.path)


def write_pruned_run(path: Path, run: Run, qrels: Qrels, rule: AnsweringRule) -> None:
    """Write the lists of the questions without their answering passages as a run."""
    answering = find_answering(run, qrels, rule, needed=None)
    line_count = write_run(path, remove_answering(run, answering).items(), tag="pruned")
    log.info("%s: %d lines", path, line_count)


def write_pairs(path: Path, pairs_by_run: Sequence[tuple[Run, Sequence[ListPair]]]) -> None:
    """Write the confidences and the removed passages of every question as JSON lines."""
    with atomic_text(path) as file:
        for run, pairs in pairs_by_run:
            for pair in pairs:
                line = {"run": str(run.path)} | pair.as_json()
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


def measure_no_answer(
    run: Run, qrels: Qrels, pairs: Sequence[ListPair], skipped: int, *, false_answers: float, seed: int
) -> dict[str, Any]:
    """Return the figures of one run. ``pairs`` and ``skipped`` are those of :func:`pair_lists`.

    ``removed`` and ``unchanged`` count only the first 50 ranks: the removed passages by reason, and the questions
    without a removed passage. ``best`` and ``gap`` have the AUROC and the threshold of each confidence. The threshold
    allows the share ``false_answers`` of false answers.
    """
    top_answering: Answering = {}
    for pair in pairs:
        top_ids = [passage_id for passage_id, _ in unique_hits(run, pair.query_id)[:LIST_DEPTH]]
        top_answering[pair.query_id] = {
            passage_id: pair.removed[passage_id] for passage_id in top_ids if passage_id in pair.removed
        }
    figures: dict[str, Any] = {
        "run": str(run.path),
        "questions": len(pairs),
        "skipped": skipped,
        "removed": _count_reasons(top_answering),
        "unchanged": sum(not reasons for reasons in top_answering.values()),
    }
    scores = np.array([pair.scores for pair in pairs])
    scores_without = np.array([pair.scores_without for pair in pairs])
    answerable = {"best": scores[:, 0], "gap": scores[:, 0] - scores[:, 1]}
    unanswerable = {"best": scores_without[:, 0], "gap": scores_without[:, 0] - scores_without[:, 1]}
    for name in CONFIDENCES:
        values = answerable[name]
        values_without = unanswerable[name]
        figures[name] = {
            "auroc": auroc(values, values_without),
            "interval": list(auroc_interval(values, values_without, seed)),
            "threshold": _try_threshold(values, values_without, false_answers, seed),
        }
    figures["nAUC"] = _measure_nauc(run, qrels, seed)
    return figures


def _count_reasons(answering: Answering) -> dict[str, int]:
    """Return the number of answering passages with each reason."""
    counts = dict.fromkeys(REASONS, 0)
    for reasons in answering.values():
        for reason in reasons.values():
            counts[reason] += 1
    return counts


def _try_threshold(answerable: Values, unanswerable: Values, false_answers: float, seed: int) -> dict[str, Any]:
    """Return the threshold for a share of false answers, and its errors with Wilson intervals.

    The groups are the confidences of the lists with and without answering passages, in the order of the questions.
    """
    trial = try_threshold(answerable, unanswerable, false_answers, seed)
    return {
        "wished": false_answers,
        "threshold": trial.threshold,
        "chosen_on": trial.chosen_on,
        "questions": trial.questions,
        "false_answers": trial.false_answers / trial.questions,
        "coverage": trial.answered / trial.questions,
        "intervals": {
            "false_answers": list(wilson(trial.false_answers, trial.questions)),
            "coverage": list(wilson(trial.answered, trial.questions)),
        },
    }


def _measure_nauc(run: Run, qrels: Qrels, seed: int) -> dict[str, Any]:
    """Return nAUC with its interval for each measure and confidence, under mteb's names: ``nauc_mrr_at_10_max``.

    nAUC reads the whole lists of the run, and nothing is removed. All questions of the judgments count.
    """
    confidences = np.array([_nauc_confidences_of(run, query_id) for query_id in qrels.positives])
    values_by_measure = {
        "mrr_at_10": np.array(reciprocal_ranks_by_query(run.rankings, qrels)),
        "ndcg_at_10": np.array(per_query(run.rankings, qrels, ["nDCG@10"])["nDCG@10"]),
    }
    figures = {}
    for measure_name in _NAUC_MEASURES:
        for column, function_name in enumerate(NAUC_FUNCTIONS):
            values = values_by_measure[measure_name]
            interval = nauc_interval(confidences[:, column], values, seed)
            figures[f"nauc_{measure_name}_{function_name}"] = {
                "value": nauc(confidences[:, column], values),
                "interval": None if interval is None else list(interval),
            }
    return figures


def _nauc_confidences_of(run: Run, query_id: str) -> tuple[float, float, float]:
    scores = np.array([score for _, score in unique_hits(run, query_id)], np.float64)
    return nauc_confidences(scores)


def no_answer_report(results: Sequence[Mapping[str, Any]], qrels: Qrels, *, has_answers: bool) -> Report:
    """Return the figures of all runs as a verb's result. ``results`` has those of :func:`measure_no_answer` per run.

    ``has_answers`` is True if the release has answers to the questions.
    """
    return Report(
        results, text=lambda: _no_answer_text(results, qrels, has_answers), tables=lambda: _no_answer_tables(results)
    )


def _no_answer_text(results: Sequence[Mapping[str, Any]], qrels: Qrels, has_answers: bool) -> str:
    """Format the tables of all runs: counts, AUROC, thresholds and nAUC. The parameters are those of the report."""
    removed = "positives, their near-duplicates and passages with an answer"
    if not has_answers:
        removed = "positives and their near-duplicates (the release has no answers to these questions)"
    count_rows = []
    auroc_rows = []
    threshold_rows = []
    nauc_rows = []
    for result in results:
        count_rows.append([result["run"]] + [f"{count:,}" for count in _counts_of(result)])
        auroc_cells = [_with_interval(result[name]["auroc"], result[name]["interval"]) for name in CONFIDENCES]
        auroc_rows.append([result["run"], *auroc_cells])
        for name, title in CONFIDENCES.items():
            trial = result[name]["threshold"]
            cells = [result["run"], title, f"{trial['threshold']:.5g}"]
            for share in ("false_answers", "coverage"):
                cells.append(percent_with_interval(trial[share], trial["intervals"][share]))
            threshold_rows.append(cells)
        for measure_name in _NAUC_MEASURES:
            cells = [result["run"], f"nauc_{measure_name}"]
            for function_name in NAUC_FUNCTIONS:
                figures = result["nAUC"][f"nauc_{measure_name}_{function_name}"]
                cells.append(_with_interval(figures["value"], figures["interval"]))
            nauc_rows.append(cells)
    trial = results[0]["best"]["threshold"]
    return "\n".join(
        [
            f"no answer: {qrels.name}; from each list, {removed} are removed",
            f"number of questions, of skipped questions, of removed passages in the first {LIST_DEPTH} ranks by reason,"
            " and of questions with nothing to remove there",
            text_table(["run", "questions", "skipped", *REASONS, "unchanged"], count_rows),
            "",
            "AUROC of the lists with and without an answer, with 95 % intervals (0.5: the number does not tell)",
            text_table(["run", *CONFIDENCES.values()], auroc_rows),
            "",
            f"threshold for at most {100 * trial['wished']:g} % false answers, chosen on {trial['chosen_on']:,} "
            f"questions; percent of {trial['questions']:,} other questions, with 95 % intervals",
            text_table(["run", "confidence", "threshold", "false answers", "coverage"], threshold_rows),
            "",
            "nAUC of mteb, with 95 % intervals (0: declining at random, 1: declining the worst lists first)",
            text_table(["run", "measure", *NAUC_FUNCTIONS], nauc_rows),
        ]
    )


def _counts_of(result: Mapping[str, Any]) -> list[int]:
    """Return the counts of a result in the order of the columns: questions, skipped, each reason, unchanged."""
    removed_counts = [result["removed"][reason] for reason in REASONS]
    return [result["questions"], result["skipped"], *removed_counts, result["unchanged"]]


def _with_interval(value: float | None, interval: Sequence[float] | None) -> str:
    """Format a figure with its interval, "-" if one of them is None."""
    if value is None or interval is None:
        return "-"
    low, high = interval
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def _no_answer_tables(results: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return a table with a row for each run and confidence, and a table of nAUC. Shares are fractions."""
    share_columns = []
    for share in ("false answers", "coverage"):
        share_columns += [share, f"{share} low", f"{share} high"]
    columns = ["run", "confidence", "questions", "skipped", *REASONS, "unchanged"]
    columns += ["AUROC", "AUROC low", "AUROC high", "threshold", *share_columns]
    rows = []
    nauc_rows = []
    for result in results:
        counts = _counts_of(result)
        for name, title in CONFIDENCES.items():
            trial = result[name]["threshold"]
            row = [result["run"], title, *counts, result[name]["auroc"], *result[name]["interval"], trial["threshold"]]
            for share in ("false_answers", "coverage"):
                row += [trial[share], *trial["intervals"][share]]
            rows.append(row)
        for name, figures in result["nAUC"].items():
            nauc_rows.append([result["run"], name, figures["value"], *(figures["interval"] or (None, None))])
    trial = results[0]["best"]["threshold"]
    title = (
        f"lists with and without an answer; threshold for at most {100 * trial['wished']:g} % false answers, chosen on "
        f"{trial['chosen_on']} questions and tried on {trial['questions']}; limits of 95 % intervals"
    )
    return [
        Table(columns, rows, title=title, percent_columns=share_columns, text_columns=2),
        Table(
            ["run", "name", "nAUC", "nAUC low", "nAUC high"],
            nauc_rows,
            title="nAUC of mteb, with the limits of 95 % intervals",
            text_columns=2,
        ),
    ]
