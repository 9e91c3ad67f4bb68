"""The steps `pool` and `relabel` of `annotate`, which read the scores of re-rankers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from builders.annotate.annotate_options import Scale, WrittenFiles
from builders.core.errors import UsageError
from builders.core.options import Again, AtLeastOne, Between, Needs, Placeholder, Use
from builders.core.results import Report
from builders.core.verbs import TABLE_FORMATS, verb
from builders.store.release_options import MainSplit, ReleasePath, RunPath

# Raise this number if the same call gives another pool than before.
RESULT_VERSION = 1


@verb(formats=TABLE_FORMATS)
def pool_passages(
    action: Annotated[Literal["candidates", "select"], Use.POSITIONAL, Placeholder("action")],
    release: ReleasePath,
    *,
    split: MainSplit = "dev",
    runs: Sequence[RunPath],
    depth: Annotated[AtLeastOne, Placeholder("K")] = 50,
    pool: Annotated[Path, Placeholder("OLD")] | None = None,
    out: Annotated[Path, Placeholder("FILE")],
    scores: Annotated[Sequence[RunPath], Needs("action=select")] = (),
    scale: Annotated[Scale, Needs("action=select")] = "sigmoid",
    top: Annotated[AtLeastOne, Placeholder("N"), Needs("action=select")] = 5,
    again: Again = False,
) -> Report:
    """Pool the best passages of several runs (Section 2.3).

    `candidates` writes the union of each run's best 50 passages as a new run. The paper pools BM25 and four neural
    retrievers. `baselines rerank` then scores the candidates with each re-ranker of an ensemble. `select` averages the
    re-rankers' scores (A.1), and writes the best 5 passages of each query as a pool. People judge the pairs of the
    pool.

    A pool is a file of JSON lines. `query-id` and `corpus-id` identify the pair. `score` is the mean of the re-rankers'
    scores, and `rank` is the passage's rank by `score`. `runs` has the passage's rank in each run that found the
    passage. `judged` is the pair's score in the release's qrels, or null for an unjudged pair.

    Every re-ranker must score every candidate. `baselines rerank` writes logits, whose range differs between
    re-rankers. By default, a sigmoid therefore turns each logit into a probability. `--scale none` leaves the scores
    unchanged.

    Both actions print how many pairs only one run found, how many pairs are unjudged, and how many known positives are
    among the runs' best 1, 2, 3 ... passages. `--pool` extends an earlier pool with new runs. `candidates` then skips
    the pairs of the earlier pool. `select` ranks old and new pairs together, and writes the new pairs among the best 5.
    With the same re-rankers, the two pools together contain every pair that a single pool of all runs would contain.

    Args:
        action: write the candidates, or select the pool
        runs: TREC runs to pool
        depth: pool the K best passages of each run
        pool: earlier pool to extend
        out: run or pool (select); .gz: gzipped
        scores: a run with scores from each re-ranker (select)
        scale: conversion of each score before the mean (select)
        top: select the N best passages of each query (select)

    Returns:
        The figures of the pool: pairs of each run, known positives at each depth, and pairs at each rank.

    Raises:
        InputError: two runs have the same name, or the release or a re-ranker's run lacks a pair.

    Examples:
        python -m builders annotate pool candidates --release build/sample --split dev \\
            --out build/pool/candidates.dev.run.gz \\
            --runs build/runs/bm25.dev.run.gz build/runs/de-bm25-neg.dev.run.gz
        python -m builders annotate pool select --release build/sample --split dev --out build/pool/dev.jsonl.gz \\
            --runs build/runs/bm25.dev.run.gz build/runs/de-bm25-neg.dev.run.gz \\
            --scores build/pool/ce-one.dev.run.gz build/pool/ce-two.dev.run.gz
    """
    arguments = dict(locals())  # the parameters, before an import below adds a name

    from builders.annotate.pool import (
        find_candidates,
        mean_scores,
        pool_figures,
        pool_report,
        select_pairs,
        write_pool,
        write_pool_candidates,
    )
    from builders.core.finished_outputs import (
        VerbCall,
        file_input,
        find_finished,
        is_kept,
        option_values,
        record_finished,
    )
    from builders.core.paths import check_outputs
    from builders.store.reader import open_release
    from builders.store.runs import Run, read_run, scored_depth
    from builders.store.verb_inputs import release_input, runs_input

    if action == "select" and not scores:
        raise UsageError("select needs --scores")
    release = open_release(release)
    check_outputs({"--out": out}, [*runs, *scores, pool, release.path])

    # If the output of an earlier call with the same inputs is complete, it is returned.
    call = None
    if is_kept(out):
        input_splits = [("corpus", "corpus"), ("queries", split), ("qrels", split)]
        inputs = {
            "release": release_input(release, input_splits),
            "runs": runs_input("the runs", runs),
        }
        if scores:
            inputs["scores"] = runs_input("the re-rankers' runs", scores)
        if pool:
            inputs["pool"] = file_input(f"the earlier pool {pool}", pool)
        options = option_values(arguments, inputs, ())
        # The hashes of the inputs do not cover these: the pool has the names of the runs, and the manifest of a
        # re-ranker's run says how many passages are scored.
        options["run_names"] = [run.path.name if isinstance(run, Run) else run.name for run in runs]
        options["scored_depths"] = [scored_depth(read_run(run)) for run in scores]
        call = VerbCall(f"annotate pool {action}", RESULT_VERSION, options, inputs)
    finished = find_finished(out, call, again=again)
    if finished:
        return pool_report(finished.result)

    candidates = find_candidates(release, split=split, runs=runs, depth=depth, earlier_pool=pool)
    if action == "candidates":
        write_pool_candidates(out, candidates, split)
        figures = pool_figures(candidates)
    else:
        scored_runs = [read_run(run) for run in scores]
        means = mean_scores(candidates.new_ranks, scored_runs, scale)
        selected_pairs = list(select_pairs(candidates, means, top))
        write_pool(out, selected_pairs)
        figures = pool_figures(candidates, selected_pairs)
    record_finished(out, call, result=figures)
    return pool_report(figures)


@verb(formats=TABLE_FORMATS)
def relabel_negatives(
    action: Annotated[Literal["candidates", "move"], Use.POSITIONAL, Placeholder("action")],
    release: ReleasePath,
    *,
    negatives: Annotated[Path, Placeholder("F")] | None = None,
    out: Annotated[Path, Placeholder("OUT")],
    scores: Annotated[Sequence[RunPath], Needs("action=move")] = (),
    scale: Annotated[Scale, Needs("action=move")] = "sigmoid",
    threshold: Annotated[float, Between(), Placeholder("X"), Needs("action=move")] = 0.5,
    agree: Annotated[Literal["mean", "all"], Needs("action=move")] = "mean",
) -> Report | WrittenFiles:
    """Turn false negatives in train into positives.

    Hard negatives are unjudged passages, and some of them answer the question. In the paper, such false negatives are
    14.8 % of the analysed errors (Table 10). As in RLHN, an ensemble of models finds false negatives, which then become
    positives. The ensemble should be stronger than the model that is trained later.

    `candidates` writes the negatives of a file of `mine`, or of the release's training rows, as a run. `baselines
    rerank` scores this run with each re-ranker of an ensemble. `move` reads the scores and writes a new release. A
    negative becomes a positive (score 1 in qrels) if the mean of its scores reaches --threshold. With --agree all, each
    score must reach the threshold. The new release lists the moved pairs in relabelled.train.jsonl: query-id,
    corpus-id, score (the mean) and scores (of each re-ranker). If an older file of negatives contains moved passages,
    `train` skips these passages.

    A sigmoid turns the logits of `baselines rerank` into probabilities. `--scale none` uses scores unchanged. Queries
    of dev and test are not relabelled, because only people judge them.

    Args:
        action: write the candidates, or move false negatives to the positives
        negatives: output of `mine` (default: negatives of the training rows)
        out: run (candidates) or release (move)
        scores: a run with scores from each re-ranker (move)
        scale: conversion of each score before the mean (move)
        threshold: lowest score of a positive (move)
        agree: mean score or all scores must reach X (move)

    Returns:
        The path of the run, and the numbers of candidates and queries (candidates). For move, the numbers of moved
        pairs.

    Raises:
        InputError: the release has no negatives or lacks a passage, or a re-ranker's run lacks a pair.

    Examples:
        python -m builders annotate relabel candidates --release build/sample \\
            --negatives build/negatives/bm25.jsonl.gz --out build/relabel/candidates.run.gz
        python -m builders annotate relabel move --release build/sample --negatives build/negatives/bm25.jsonl.gz \\
            --scores build/relabel/ce-one.run.gz build/relabel/ce-two.run.gz --threshold 0.9 --out build/relabelled
    """
    from builders.annotate.relabel import MoveRule, find_negatives, move_negatives, write_negatives
    from builders.core.paths import check_outputs
    from builders.store.reader import open_release

    if action == "move" and not scores:
        raise UsageError("move needs --scores")
    release = open_release(release)
    if action == "candidates":
        check_outputs({"--out": out}, [negatives, release.path])
    hard_negatives = find_negatives(release, negatives)
    if action == "candidates":
        return write_negatives(out, hard_negatives)
    rule = MoveRule(scale=scale, threshold=threshold, agree=agree)
    return move_negatives(release, out, negatives=hard_negatives, runs=scores, rule=rule)
