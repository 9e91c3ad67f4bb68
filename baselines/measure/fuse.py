"""The verb `fuse`: fuse runs."""

import numbers
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from baselines.core.model_options import NewRun, TopK
from builders.core.errors import InputError, UsageError, log
from builders.core.options import Help, Needs, Parsed, Placeholder, Use
from builders.core.verbs import verb
from builders.store.release_options import ReleasePath, RunPath, SetName

if TYPE_CHECKING:
    from builders.store.runs import Run


_SMALLEST_STEP = 1e-6
# Tolerance for the number of steps, because 1 / step may differ from a whole number, for example for step 1 / 49.
_STEP_TOLERANCE = 1e-9


def _step(value: str | float) -> float:
    """Return a step of the weights. Raises ValueError unless a whole number of steps sums to 1."""
    expected = "1 / n, for example 0.1 or 0.05"
    try:
        step = float(value)
    except (ValueError, OverflowError):
        raise ValueError(expected) from None
    if not _SMALLEST_STEP <= step <= 1:
        raise ValueError(expected)
    step_count = 1 / step
    if abs(step_count - round(step_count)) >= _STEP_TOLERANCE:
        raise ValueError(expected)
    return step


@verb()
def fuse_runs(
    runs: Annotated[Sequence[RunPath], Use.POSITIONAL, Help("two or more runs of the same queries")],
    *,
    out: NewRun | None = None,
    method: Literal["rrf", "weighted"] = "rrf",
    top_k: TopK = 50,
    weights: Annotated[Path, Placeholder("FILE")] | None = None,
    tune: Annotated[str, Placeholder("SPLIT")] | None = None,
    tune_runs: Annotated[Sequence[RunPath], Needs("tune")] = (),
    tune_on_these: Annotated[bool, Needs("tune")] = False,
    step: Annotated[float, Parsed(_step, accepts=(numbers.Real,)), Placeholder("X"), Needs("tune")] = 0.05,
    release: Annotated[ReleasePath, Needs("tune")] | None = None,
    set: Annotated[SetName, Needs("tune")] = "main",
) -> "Run":
    """Fuse runs: by reciprocal rank, or by a weighted sum of scores.

    rrf adds weight / (60 + rank) over the runs. weighted adds weight times score. For weighted, the scores of each
    query in each run are first scaled: the lowest becomes 0 and the highest 1, and equal scores all become 1. A run
    adds 0 for a passage that it lacks.

    Tune the weights if one run is much better than another. With equal weights (the default of rrf), the fusion can be
    worse than the better run. For example, on 700 questions of Baidu over 2,623 passages, MRR@10 is 91.68 for
    multilingual-e5-small, 76.87 for BM25, and 86.62 for rrf of the two. --tune SPLIT tries every combination of
    weights in steps of --step. --tune-runs are runs on SPLIT, by the same systems in the same order. The best weights
    by MRR@10 are used and written to --weights, for later calls. Weights tuned on the fused queries overestimate the
    result, and need --tune-on-these.

    --tune train uses a fixed sixteenth of the training questions, or all questions if the sixteenth has fewer than 50.
    Train models with --set data.leave_out=tuning, so that models do not learn these questions. The runs' manifests
    record this setting. `fuse` warns about every run without this record, except BM25's.

    Args:
        out: run to write, gzipped if it ends in .gz. Without it, a call from Python writes nothing.
        method: fusion method
        top_k: keep K passages
        weights: file of weights to read, or with --tune to write
        tune: tune the weights on this split, for example train
        tune_runs: runs of the same systems on SPLIT
        tune_on_these: allow tuning on the queries that are fused
        step: step of the weights
        release: release with the judgments for --tune; also translates original ids of the runs

    Returns:
        The fused run: hits by query, best first.

    Raises:
        InputError: there are fewer than two runs, the runs share no query, or the weights or judgments do not fit.

    Examples:
        python -m baselines fuse --release build/sample --out build/runs/fused.dev.run \\
          build/runs/bm25.dev.run build/runs/de.dev.run --tune train --weights build/runs/weights.json \\
          --tune-runs build/runs/bm25.train.run build/runs/de.train.run
    """
    from baselines.measure.fusion import fuse_scores, scores_of
    from baselines.measure.fusion_weights import expect_other_queries, read_weights, tuned_weights, write_weights
    from baselines.measure.qrels import release_qrels
    from baselines.measure.run_origin import warn_of_origins
    from builders.core.paths import check_outputs
    from builders.store.original_runs import read_release_run
    from builders.store.reader import open_release
    from builders.store.runs import Run, write_run

    # Refuse wrong files and numbers of runs before any run is read.
    if tune and weights is None and out is not None:
        weights = out.with_name(f"{out.name}.weights.json")
    # --weights is an output of --tune, and an input otherwise.
    if tune:
        check_outputs({"--out": out, "--weights": weights}, [*runs, *tune_runs])
    else:
        check_outputs({"--out": out}, [*runs, weights])
    if len(runs) < 2:
        raise UsageError("expected two runs or more")
    id_release = None if release is None else open_release(release)
    opened_runs = [read_release_run(run, id_release) for run in runs]

    # Tune the weights, read them, or give all runs the same weight.
    tuning_record: dict[str, Any] = {}
    if tune:
        if release is None:
            raise UsageError("--tune needs judgments; expected --release DIR")
        if len(tune_runs or runs) != len(runs):
            raise UsageError(f"--tune-runs: expected {len(runs)} runs, the same systems in the same order")
        opened_release = open_release(release)
        judgments = release_qrels(opened_release, tune, set)
        systems = [read_release_run(run, opened_release) for run in tune_runs] or opened_runs
        warn_of_origins(systems, judgments, opened_release, set_name=set, split=tune)
        expect_other_queries(opened_runs, systems, judgments, split=tune, tune_on_these=tune_on_these)
        run_weights, tuning_record = tuned_weights(systems, judgments, method=method, split=tune, step=step)
    elif weights:
        run_weights = read_weights(weights, method, len(runs))
    elif method == "rrf":
        run_weights = [1.0] * len(runs)
    else:
        raise UsageError("--method weighted needs --weights FILE or --tune SPLIT")

    _expect_shared_queries(opened_runs)
    fused_hits = fuse_scores([scores_of(run, method) for run in opened_runs], run_weights, top_k)
    if out is None:
        fused_run = Run.in_memory("fused", dict(fused_hits))
    else:
        line_count = write_run(out, fused_hits, tag=f"fused-{method}")
        log.info("%s: %d lines from %d runs", out, line_count, len(runs))
        fused_run = Run(out)
    # The weights are written last, so that a command that fails leaves no weights.
    if tuning_record and weights is not None:
        write_weights(weights, tuning_record)
    return fused_run


def _expect_shared_queries(runs: Sequence["Run"]) -> None:
    """Raise :class:`InputError` if no query is in all runs. Warn about each run that lacks queries of other runs."""
    ids_by_run = [set(run.hits) for run in runs]
    if not set.intersection(*ids_by_run):
        paths = ", ".join(str(run.path) for run in runs)
        raise InputError("the runs share no query; expected runs of one split", path=paths)
    query_count = len(set.union(*ids_by_run))
    for run, query_ids in zip(runs, ids_by_run, strict=True):
        missing_count = query_count - len(query_ids)
        if missing_count:
            log.warning("%s lacks %d of %d queries", run.path, missing_count, query_count)
