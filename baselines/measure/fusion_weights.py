"""The weights of runs for fusion: tuned on judgments, or read from a file.

Tuning questions are a fixed sixteenth of the training questions (:func:`builders.store.layout.is_for_tuning`). A model
that is trained with ``data.leave_out=tuning`` skips them, and the manifests of its runs record this under ``left_out``.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from baselines.core.run_manifest import manifest_path
from baselines.measure.fusion import scores_of, tune_weights
from baselines.measure.qrels import Qrels
from builders.core.errors import InputError, log
from builders.core.read_files import read_whole
from builders.core.typed import convert_to, json_of, name_within, read_json
from builders.core.write_files import write_text
from builders.store.layout import is_for_tuning
from builders.store.runs import Run

FEWEST = 50  # least number of tuning questions
# Most re-rankings of a run. The limit ends a loop of manifests that name each other.
_MOST_STAGES = 9


class _FirstStage(msgspec.Struct):
    """The re-ranked run: the name of its file, or None for a run in memory."""

    file: str | None

    def __post_init__(self) -> None:
        if self.file is not None:
            name_within(self.file)


class _Record(msgspec.Struct):
    """The fields read from a run's manifest. ``reranked``: the run that was re-ranked."""

    kind: str = ""
    model: dict[str, Any] = {}
    reranked: _FirstStage | None = None


class _Weights(msgspec.Struct):
    """The fields read from a file of weights. :func:`tuned_weights` writes such files."""

    weights: list[float]
    method: str | None = None


def expect_other_queries(
    runs: Sequence[Run], tune_runs: Sequence[Run], qrels: Qrels, *, split: str, tune_on_these: bool
) -> None:
    """Raise :class:`InputError` if the tuning runs have none of the judged queries, or if the fused runs have some.

    Weights tuned on the fused queries overestimate the result. ``tune_on_these`` allows them.
    """
    if not _count_judged_queries(tune_runs, qrels):
        paths = ", ".join(str(run.path) for run in tune_runs)
        raise InputError(f"no matching query: none of the {len(qrels.positives)} queries of {qrels.name}", path=paths)
    shared_count = _count_judged_queries(runs, qrels)
    if shared_count and not tune_on_these:
        raise InputError(
            f"--tune {split}: {shared_count} queries of this split are in the runs to fuse; expected --tune-runs of "
            "another split, or --tune-on-these"
        )


def _count_judged_queries(runs: Sequence[Run], qrels: Qrels) -> int:
    """Count the queries of the reference that at least one run has."""
    return sum(any(query_id in run.hits for run in runs) for query_id in qrels.positives)


def tuned_weights(
    tune_runs: Sequence[Run], qrels: Qrels, *, method: str, split: str, step: float
) -> tuple[list[float], dict[str, Any]]:
    """Find the weights with the best MRR@10.

    Args:
        tune_runs: a run of each system.
        qrels: the judgments of the runs' queries.
        method: rrf or weighted.
        split: the split of the judgments. Of the split train, only the tuning questions are used.
        step: the weights are multiples of this step.

    Returns:
        The weights, and the content of their file (:func:`write_weights`).
    """
    if split == "train":
        qrels = _tuning_questions(qrels, tune_runs)
    systems = [scores_of(run, method) for run in tune_runs]
    weights, value = tune_weights(systems, qrels, step)
    names = [run.path.name for run in tune_runs]
    single_values = []
    single_texts = []
    for name, system in zip(names, systems, strict=True):
        # A single run has only one mixture, the weight 1, so this is the run's own MRR@10.
        _, single_value = tune_weights([system], qrels, step=1)
        single_values.append(single_value)
        single_texts.append(f"{name} {single_value:.4f}")
    singles = ", ".join(single_texts)
    log.info("tuned on %s: weights %s, MRR@10 %.4f (single runs: %s)", split, weights, value, singles)
    content = {
        "weights": weights,
        "method": method,
        "tuned_on": split,
        "questions": len(qrels.positives),
        "runs": names,
        "MRR@10": value,
        "alone": single_values,
    }
    return weights, content


def write_weights(path: Path, content: dict[str, Any]) -> None:
    """Write the file of tuned weights."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def _tuning_questions(qrels: Qrels, runs: Sequence[Run]) -> Qrels:
    """Return the judgments of the tuning questions, or of all training questions if fewer than FEWEST are for tuning.

    Warns about runs of models that may have been trained on the returned questions.
    """
    positives = {query_id: grades for query_id, grades in qrels.positives.items() if is_for_tuning(query_id)}
    uses_all = len(positives) < FEWEST
    if uses_all:
        log.warning(
            "only %d of %d training questions are for tuning; all are used", len(positives), len(qrels.positives)
        )
    hint = "" if uses_all else " (train with data.leave_out=tuning)"
    for run in runs:
        if not _is_apart(run, uses_all):
            log.warning(
                "%s: the model may have been trained on the tuning questions, so the weights may favour this run%s",
                run.path,
                hint,
            )
    if uses_all:
        return qrels
    return replace(qrels, positives=positives)


def _is_apart(run: Run, uses_all: bool) -> bool:
    """True if the manifests show that no model of the run was trained on the tuning questions.

    ``uses_all``: tuning uses all training questions, so that only runs of BM25 qualify.
    """
    run_path = run.path
    # A re-ranked run names the run before it, and so on back to the first stage.
    for stage in range(_MOST_STAGES):
        if stage == 0 and run.is_in_memory:
            record = convert_to(run.manifest or {}, _Record, run.path, field="manifest")
        else:
            record = _read_record(run_path)
        if record.kind != "bm25" and (uses_all or record.model.get("left_out") != "tuning"):
            return False
        if not record.reranked:
            return True
        # The first stage was a run in memory, whose model is unknown.
        if record.reranked.file is None:
            return False
        run_path = run_path.with_name(record.reranked.file)
    return False


def _read_record(run_path: Path) -> _Record:
    """Read the manifest beside a run. Without a manifest, the record is empty."""
    record_path = manifest_path(run_path)
    if not record_path.is_file():
        return _Record()
    return read_json(record_path, _Record)


def read_weights(path: Path, method: str, run_count: int) -> list[float]:
    """Read the weights of ``run_count`` runs. Raises :class:`InputError` for another number or another method."""
    record = json_of(read_whole(path), _Weights, path, remedy='expected {"weights": [one per run]}')
    if record.method not in (None, method):
        raise InputError(f"expected weights of --method {method}, found {record.method}", path=path)
    if len(record.weights) != run_count:
        raise InputError(f"expected {run_count} weights, one per run, found {len(record.weights)}", path=path)
    return record.weights
