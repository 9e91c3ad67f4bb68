"""Agreement of a model's judgments with people's judgments of the same pairs."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builders.annotate.kappa import finite_or_none, kappa_of_two
from builders.annotate.pool import open_runs
from builders.annotate.prefill import RELEVANT, grades_by, warn_of_kin
from builders.annotate.rounds import Pair, open_round, read_standings
from builders.core.errors import InputError
from builders.core.results import Report, Table
from builders.core.tables import text_table
from builders.store.runs import Run

_MRR_DEPTH = 10  # the benchmark's measure is MRR@10 (Section 3.2)


def compare_judges(round_path: Path, model_name: str, runs: Sequence[Run | Path]) -> Report:
    """Compare the judgments of ``model_name`` with people's, and rank ``runs`` by both.

    Without ``runs``, the report has no MRR@10 and no Kendall's tau. Raises :class:`InputError` if no pair was judged by
    people and by the model.
    """
    people, grades = _labels_of_both(round_path, model_name)
    if not people:
        raise InputError(f"no pair was judged by people and {model_name}; run `annotate prefill`", path=round_path)
    opened_runs, run_names = open_runs(runs)

    # Count people's labels for each grade of the model.
    grade_rows = [{"grade": grade, "irrelevant": 0, "relevant": 0} for grade in range(4)]
    for pair, label in people.items():
        label_name = "relevant" if label else "irrelevant"
        grade_rows[grades[pair]][label_name] += 1
    # Kappa compares two labels, so grades become labels.
    model_labels = {pair: int(grade >= RELEVANT) for pair, grade in grades.items()}
    figures: dict[str, Any] = {
        "pairs": len(people),
        "kappa": kappa_of_two(list(people.values()), list(model_labels.values())),
        "grades": grade_rows,
        "model": model_name,
        "same_family": warn_of_kin(model_name, run_names),
    }
    if opened_runs:
        run_rows = []
        for name, run in zip(run_names, opened_runs, strict=True):
            run_rows.append(
                {"run": name, "people": mrr_of_labels(run, people), "model": mrr_of_labels(run, model_labels)}
            )
        figures["runs"] = run_rows
        figures["tau"] = _rank_correlation(run_rows)
    return Report(figures, _text_of(figures), _tables_of(figures))


def _rank_correlation(run_rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return Kendall's tau of the two orders of the runs, or None for one run or if all values of a judge are equal."""
    from scipy.stats import kendalltau

    if len(run_rows) < 2:  # one run has no order
        return None
    by_people = [row["people"] for row in run_rows]
    by_model = [row["model"] for row in run_rows]
    return finite_or_none(kendalltau(by_people, by_model).statistic)


def _labels_of_both(round_path: Path, model_name: str) -> tuple[dict[Pair, int], dict[Pair, int]]:
    """Return (people's labels, the model's grades) of the pairs that people and the model judged, in the same order."""
    grades_by_package = grades_by(round_path, model_name)
    people: dict[Pair, int] = {}
    grades: dict[Pair, int] = {}
    for standing in read_standings(round_path, open_round(round_path, "relevance")):
        for pair in standing.pairs:
            label = standing.label(pair)
            grade = grades_by_package.get((standing.package.name, pair))
            if label is not None and grade is not None:
                people[pair] = label
                grades[pair] = grade
    return people, grades


def mrr_of_labels(run: Run, pair_labels: Mapping[Pair, int]) -> float:
    """Return the run's MRR@10 over the queries with a positive in ``pair_labels``, or 0 without such a query."""
    positives = {pair for pair, label in pair_labels.items() if label}
    query_ids = {query_id for query_id, _ in positives}
    reciprocal_ranks = []
    for query_id in query_ids:
        reciprocal_rank = 0.0
        for rank, passage_id in enumerate(run.rankings.get(query_id, [])[:_MRR_DEPTH], 1):
            if (query_id, passage_id) in positives:
                reciprocal_rank = 1 / rank
                break
        reciprocal_ranks.append(reciprocal_rank)
    # fsum is exact, so the order of the queries does not change the mean.
    return math.fsum(reciprocal_ranks) / max(1, len(reciprocal_ranks))


def _tables_of(figures: dict[str, Any]) -> list[Table]:
    """Return the figures of :func:`compare_judges` as tables. Only the figures of runs have ``runs`` and ``tau``."""
    agreement_columns = ("model", "pairs", "kappa")
    agreement_row = [figures[name] for name in agreement_columns]
    grade_rows = [(row["grade"], row["relevant"], row["irrelevant"]) for row in figures["grades"]]
    tables = [
        Table(agreement_columns, [agreement_row], "agreement"),
        Table(("grade", "relevant", "irrelevant"), grade_rows, "grades"),
    ]
    if "runs" in figures:
        run_rows = [(row["run"], row["people"], row["model"]) for row in figures["runs"]]
        tables.append(Table(("MRR@10", "people", "model"), run_rows, "runs", percent_columns=("people", "model")))
        tables.append(Table(("Kendall's tau",), [[figures["tau"]]], text_columns=0))
    return tables


def _text_of(figures: dict[str, Any]) -> str:
    """Format the figures of :func:`compare_judges` for people."""
    kappa = "-" if figures["kappa"] is None else f"{figures['kappa']:.3f}"
    lines = [f"{figures['model']} (a model) and people, {figures['pairs']:,} pairs: Cohen's kappa {kappa}"]
    for row in reversed(figures["grades"]):
        lines.append(f"grade {row['grade']}: people found {row['relevant']:,} relevant, {row['irrelevant']:,} not")
    if "runs" in figures:
        cells = [(row["run"], f"{row['people']:.4f}", f"{row['model']:.4f}") for row in figures["runs"]]
        tau = "-" if figures["tau"] is None else f"{figures['tau']:.3f}"
        lines += ["", text_table(("MRR@10", "people", "model"), cells)]
        lines.append(f"Kendall's tau of the two orders: {tau}")
    return "\n".join(lines)
