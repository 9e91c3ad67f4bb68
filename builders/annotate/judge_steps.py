"""The steps `prefill` and `compare` of `annotate`: a model judges the pairs of a round."""

from collections.abc import Sequence
from typing import Annotated

from builders.annotate.annotate_options import Parallel, RoundPath, Scale, WrittenFiles
from builders.core.options import Excludes, Needs, Placeholder
from builders.core.results import Report
from builders.core.verbs import TABLE_FORMATS, verb
from builders.store.release_options import RunPath


@verb(resumes=True)
def prefill_round(
    round: RoundPath,
    *,
    model: Annotated[str, Placeholder("NAME")],
    scores: RunPath | None = None,
    scale: Annotated[Scale, Needs("scores")] = "sigmoid",
    rerankers: Sequence[Annotated[str, Placeholder("NAME")]] = (),
    parallel: Annotated[Parallel, Excludes("scores")] = 4,
    show: bool = False,
) -> WrittenFiles:
    """Let a model judge the pairs of a round before people do.

    The model gives every pair a grade, as UMBRELA does. Grade 3 is an exact answer, grade 2 an unclear or hidden
    answer, grade 1 a passage about the subject without an answer, and grade 0 another subject. Grades 2 and 3 count as
    relevant. In a round of `baselines errors draw`, the model selects one of eight error categories instead.

    --model names a model at the endpoint in OPENAI_BASE_URL. Any server with OpenAI's chat API works. Queries and
    passages are sent to this endpoint. OPENAI_API_KEY has the key, if the server needs a key. Instead of an endpoint,
    --scores reads a model's scores from a run that `baselines rerank` wrote. --scores works only for rounds about
    relevance.

    A model's judgments have the kind `model`. `review`, `check` and `merge` ignore judgments of this kind. `compare`
    measures the model's agreement with people. Judgments are saved in groups of 20, so that a restart after a kill
    repeats at most 20 answered questions. With --show, Label Studio shows the model's labels as predictions. Annotators
    correct predictions faster than they judge, but their judgments then depend on the model. --rerankers names the
    models that ranked the pairs. A warning appears if a re-ranker is of the family of --model.

    Args:
        model: name of the model at the endpoint
        scores: the model's scores, instead of an endpoint
        scale: conversion of scores
        rerankers: models that ranked the pool
        show: also show the judgments as predictions in Label Studio

    Returns:
        The path of the round, and the number of new judgments.

    Raises:
        InputError: the directory is no round, the endpoint fails, or the run lacks a pair.

    Examples:
        python -m builders annotate prefill --round build/round --model Qwen3-32B --rerankers bge-reranker-v2-m3
        python -m builders annotate prefill --round build/round --model ce --scores build/pool/ce.dev.run.gz --show
    """
    from builders.annotate.prefill import judge_by_model

    new_count = judge_by_model(
        round, model, scores=scores, scale=scale, rerankers=rerankers, parallel=parallel, show=show
    )
    text = f"{new_count:,} pairs judged by {model} (a model): {round}"
    return WrittenFiles((round,), text, {"new": new_count})


@verb(formats=TABLE_FORMATS)
def compare_with_people(
    round: RoundPath,
    *,
    model: Annotated[str, Placeholder("NAME")],
    runs: Sequence[RunPath] = (),
) -> Report:
    """Compare a model's judgments (`annotate prefill`) with people's.

    Only pairs that both people and the model judged are compared. The people's label is the adjudicator's label or,
    without an adjudicator, the label of most annotators. For each grade, the command counts the pairs that people found
    relevant. It also prints Cohen's kappa, where grades 2 and 3 count as relevant. With --runs, it prints MRR@10 of
    each run by people's judgments and by the model's judgments. Kendall's tau compares the two orders of the runs; 1
    means equal orders. A warning appears if a run is named after the model or the model's family.

    Args:
        model: model of `annotate prefill`
        runs: runs to rank by both judges

    Returns:
        The agreement, the pairs of each grade, and MRR@10 of each run.

    Raises:
        InputError: the directory is no round about relevance, or no pair was judged by people and the model.

    Examples:
        python -m builders annotate compare --round build/round --model Qwen3-32B --runs build/runs/*.dev.run.gz
    """
    from builders.annotate.compare_judges import compare_judges

    return compare_judges(round, model, runs)
