"""The steps of `errors`: draw, tally, holes, duplicates and stages."""

from pathlib import Path
from typing import Annotated, Literal

from baselines.measure.measure_options import RUN_HELP, OrderedTies, QrelsConfig, QrelsFile, RunPaths, ValuesFile
from builders.core.options import AtLeastOne, Help, Placeholder, Use
from builders.core.results import Report
from builders.core.verbs import TABLE_FORMATS, verb
from builders.store.release_options import AnySplit, MainSplit, QuestionConfig, ReleasePath, RunPath, Seed, SetName
from builders.text.ngram_options import NGRAM, SHARE, LowestJaccard, NgramLength

# Section 3.5 draws 100 queries, and judges the five best passages of each.
QUERIES = 100
DEPTH = 5
# The paper's first measure, MRR@10, reads ten passages.
STAGE_DEPTH = 10


@verb(formats=TABLE_FORMATS)
def draw_errors(
    run: Annotated[RunPath, Use.POSITIONAL, Help(RUN_HELP)],
    *,
    release: ReleasePath,
    split: MainSplit = "dev",
    sample: Annotated[AtLeastOne, Placeholder("N")] = QUERIES,
    top_k: Annotated[AtLeastOne, Placeholder("K")] = DEPTH,
    seed: Seed = 0,
    round: Annotated[Path, Placeholder("ROUND")] | None = None,
) -> Report:
    """Draw the errors of a run for people, as the paper does.

    A query fails if no positive passage is in its top 5. The step draws 100 failed queries. All five passages of a
    failed query are errors. People assign each error to a category of Section 3.5: entity, numeral, modifier or
    syntactic mismatch, typos, mere overlap of terms, false negative, or other.

    The step prints the number of failed queries. --round also writes the errors as a round for `annotate` (Label Studio
    or sheets, prefill, review, quality control).

    Args:
        release: release that the run searched
        sample: draw N queries
        top_k: passages per query
        seed: seed of the draw
        round: write the pairs as a round for `annotate`

    Returns:
        The numbers of failed queries and of drawn errors.

    Raises:
        InputError: the split has no judgments, the run has no query of the split, or no query failed.

    Examples:
        python -m baselines errors draw --release build/sample --split dev --round build/errors bm25.dev.run.gz
    """
    from baselines.measure.error_rounds import draw_failed_queries, draw_report, expect_new_round, write_error_round
    from builders.store.original_runs import read_release_run
    from builders.store.reader import open_release
    from builders.store.runs import expect_run_file

    if round:
        expect_new_round(round)
    opened_release = open_release(release)
    opened_run = read_release_run(run, opened_release)
    if round:
        expect_run_file(opened_run)  # the round's record has the checksum of the run's file
    errors = draw_failed_queries(opened_release, split, opened_run, sample=sample, top_k=top_k, seed=seed)
    if round:
        write_error_round(round, opened_release, split, errors, source=opened_run.path, seed=seed)
    return draw_report(errors, opened_run.path, top_k, round)


@verb(formats=TABLE_FORMATS)
def tally_errors(
    round: Annotated[Path, Use.POSITIONAL, Placeholder("ROUND"), Help("directory of a round of `errors draw`")],
    *,
    model: Annotated[str, Placeholder("NAME")] | None = None,
) -> Report:
    """Count the categories of errors in people's answers (Table 10).

    The step prints the share of each category next to Table 10. With --model NAME, the answers of this model are
    counted instead (`annotate prefill`).

    Args:
        model: count the answers of this model

    Returns:
        The figures of each category.

    Raises:
        InputError: the directory is no round of errors, or the round has no answers.

    Examples:
        python -m baselines errors tally build/errors
        python -m baselines errors tally build/errors --model Qwen3-32B
    """
    from baselines.measure.error_rounds import count_categories, tally_report

    return tally_report(count_categories(round, model))


@verb(formats=TABLE_FORMATS)
def report_holes(
    runs: RunPaths,
    *,
    release: ReleasePath | None = None,
    qrels: QrelsFile | None = None,
    split: AnySplit = "dev",
    set: SetName = "main",
    queries: QuestionConfig | None = None,
    qrels_config: QrelsConfig | None = None,
    ties: OrderedTies = "listed",
    per_query: ValuesFile | None = None,
) -> Report:
    """Measure the effect of retrieved passages that nobody judged.

    The step prints the measures of `evaluate`, and then Judged@10, bpref, the measures without unjudged passages, and
    the highest values that the measures could reach if these passages were judged. Runs and reference have the formats
    of `evaluate`.

    Args:
        release: release with the reference judgments
        split: split of the release

    Returns:
        The figures of each run. The value is a list with the JSON object of each run.

    Raises:
        InputError: a file or the release is wrong, or run and reference share no query.

    Examples:
        python -m baselines errors holes --release DIR --split dev RUN RUN
        python -m baselines errors holes --qrels qrels.trec --per-query values.parquet RUN
    """
    from baselines.measure.evaluate_tables import evaluation_report
    from baselines.measure.evaluation import measure_runs
    from baselines.measure.qrels import expect_one_reference
    from baselines.measure.reference_source import ReferenceSource
    from baselines.measure.ties import order_ties
    from builders.core.paths import check_outputs
    from builders.store.original_runs import read_release_run

    expect_one_reference(release, qrels)
    source = ReferenceSource.of_options(
        release=release, qrels=qrels, split=split, set_name=set, queries=queries, qrels_config=qrels_config
    )
    check_outputs({"--per-query": per_query}, [*runs, *source.paths()])
    opened_runs = [order_ties(read_release_run(run, source.release), ties) for run in runs]
    reference = source.read()
    source.warn_of_origins(opened_runs, reference)
    evaluation = measure_runs(opened_runs, reference, ties=ties, with_holes=True)
    if per_query:
        evaluation.write_values(per_query)
    return evaluation_report(evaluation.results, reference)


@verb(formats=TABLE_FORMATS)
def report_duplicates(
    runs: RunPaths,
    *,
    release: ReleasePath,
    split: AnySplit = "dev",
    set: SetName = "main",
    queries: QuestionConfig | None = None,
    qrels_config: QrelsConfig | None = None,
    ties: OrderedTies = "listed",
    copies: Literal["removed", "kept"] = "removed",
    ngram: NgramLength = NGRAM,
    jaccard: LowestJaccard = SHARE,
    list: Annotated[Path, Placeholder("FILE")] | None = None,
    per_query: ValuesFile | None = None,
) -> Report:
    """Measure runs with near-duplicates counted as one passage.

    Near-duplicates are texts that share --jaccard of their n-grams. The step prints the measures of `evaluate`, and
    then the share of repeated passages and the measures with near-duplicates counted as one passage. A copy of a
    positive is a positive. A later copy is removed from the list or, with --copies kept, is a miss.

    Args:
        release: release with the reference judgments
        split: split of the release
        copies: later copies are removed from the list, or kept as misses
        list: write every pair of near-duplicates, as JSON lines

    Returns:
        The figures of each run. The value is a list with the JSON object of each run.

    Raises:
        InputError: a file or the release is wrong, or run and reference share no query.

    Examples:
        python -m baselines errors duplicates --release DIR --split dev RUN
        python -m baselines errors duplicates --release DIR --split dev --copies kept --list copies.jsonl RUN
    """
    from baselines.measure.evaluate_tables import evaluation_report
    from baselines.measure.evaluation import CopyRule, measure_runs
    from baselines.measure.reference_source import ReferenceSource
    from baselines.measure.ties import order_ties
    from builders.core.paths import check_outputs
    from builders.store.layout import SETS
    from builders.store.original_runs import read_release_run
    from builders.store.reader import open_release

    opened_release = open_release(release)
    source = ReferenceSource.of_options(
        release=opened_release, qrels=None, split=split, set_name=set, queries=queries, qrels_config=qrels_config
    )
    check_outputs({"--per-query": per_query, "--list": list}, [*runs, *source.paths()])
    opened_runs = [order_ties(read_release_run(run, source.release), ties) for run in runs]
    reference = source.read()
    source.warn_of_origins(opened_runs, reference)
    copy_rule = CopyRule(copies, ngram, jaccard, release=opened_release, corpus=SETS[set].corpus)
    evaluation = measure_runs(opened_runs, reference, ties=ties, copy_rule=copy_rule)
    if per_query:
        evaluation.write_values(per_query)
    if list:
        evaluation.write_copies(list)
    return evaluation_report(evaluation.results, reference)


@verb(formats=TABLE_FORMATS)
def report_stages(
    first: Annotated[RunPath, Use.POSITIONAL, Placeholder("RUN1"), Help("run of the first stage")],
    second: Annotated[
        RunPath, Use.POSITIONAL, Placeholder("RUN2"), Help("run of the second stage, which re-ranked RUN1")
    ],
    *,
    release: ReleasePath | None = None,
    qrels: QrelsFile | None = None,
    split: AnySplit = "dev",
    set: SetName = "main",
    queries: QuestionConfig | None = None,
    qrels_config: QrelsConfig | None = None,
    ties: OrderedTies = "listed",
    top_k: Annotated[AtLeastOne, Placeholder("K")] = STAGE_DEPTH,
    list: Annotated[Path, Placeholder("FILE")] | None = None,
) -> Report:
    """Divide the failed queries of two stages by what went wrong.

    A query fails if none of RUN2's 10 best passages is positive. The first stage never found a positive, at any rank of
    RUN1, or the second stage ranked the positives of RUN1 too low, or it threw them out. The step prints the number of
    failed queries with each reason, their share of the failed queries and of all queries, and Wilson intervals of 95 %.

    If the manifests of the runs have the latency of a query, it is printed, too.

    Args:
        release: release with the reference judgments
        split: split of the release
        top_k: a query fails without a positive in the K best passages
        list: write the failed queries, their reasons and the ranks of their best positives, as JSON lines

    Returns:
        The figures of each reason.

    Raises:
        InputError: a file or the release is wrong, or a run and the reference share no query.

    Examples:
        python -m baselines errors stages --release DIR --split dev bm25.dev.run.gz ce.dev.run.gz
        python -m baselines errors stages --qrels qrels.trec --top-k 50 --list failed.jsonl RUN1 RUN2
    """
    from baselines.measure.qrels import expect_one_reference
    from baselines.measure.reference_source import ReferenceSource
    from baselines.measure.stage_errors import find_stage_errors, stage_report, write_failed
    from baselines.measure.ties import order_ties
    from builders.core.paths import check_outputs

    expect_one_reference(release, qrels)
    source = ReferenceSource.of_options(
        release=release, qrels=qrels, split=split, set_name=set, queries=queries, qrels_config=qrels_config
    )
    check_outputs({"--list": list}, [first, second, *source.paths()])
    first_run = order_ties(source.read_run(first), ties)
    second_run = order_ties(source.read_run(second), ties)
    reference = source.read()
    source.warn_of_origins([first_run, second_run], reference)
    errors = find_stage_errors(first_run, second_run, reference, top_k)
    if list is not None:
        write_failed(list, errors.failed)
    return stage_report(errors, (first_run, second_run), top_k)
