"""The verb `evaluate`: measure runs."""

from collections.abc import Sequence
from typing import Annotated

from baselines.measure.measure_options import (
    EXPECTED_TIES,
    ChosenMeasures,
    ImageFile,
    QrelsConfig,
    QrelsFile,
    QuestionProperty,
    RunPaths,
    Ties,
    ValuesFile,
)
from builders.core.errors import UsageError
from builders.core.options import AtLeastOne, Excludes, Needs, Placeholder
from builders.core.results import Report
from builders.core.verbs import TABLE_FORMATS, verb
from builders.core.words import SEGMENTERS
from builders.store.release_options import AnySplit, QuestionConfig, ReleasePath, SetName
from builders.text.span_options import THRESHOLD, Segmenter, SpanOptions, SpanThreshold, Unit


@verb(formats=TABLE_FORMATS)
def evaluate_runs(
    runs: RunPaths,
    *,
    release: ReleasePath | None = None,
    qrels: QrelsFile | None = None,
    split: AnySplit = "dev",
    set: SetName = "main",
    queries: QuestionConfig | None = None,
    qrels_config: QrelsConfig | None = None,
    measures: ChosenMeasures = (),
    ties: Ties = "listed",
    by: QuestionProperty | None = None,
    answers: Annotated[bool, Needs("release"), Excludes(EXPECTED_TIES)] = False,
    unit: Annotated[Unit, Needs("answers")] = "word",
    segmenter: Annotated[Segmenter, Needs("answers")] = SEGMENTERS[0],
    threshold: Annotated[SpanThreshold, Needs("answers")] = THRESHOLD,
    budget: Annotated[Sequence[AtLeastOne], Placeholder("N"), Needs("answers")] = (),
    per_query: ValuesFile | None = None,
    plot: ImageFile | None = None,
) -> Report:
    """Measure runs by the official measures and by usual measures.

    The first table has the official keys with 95 % intervals over queries. recall@k is a hit rate: the share of queries
    with a positive in the top k. The second table has measures of ir-measures. R@k is the share of all positives in the
    top k. Text and Markdown have percentages, JSON and CSV have fractions.

    docs/evaluate.md describes formats of runs, logs of `show --serve`, measures, ties, configs, and submissions for the
    test split. `errors holes` and `errors duplicates` measure the effect of unjudged passages and of near-duplicates.

    Args:
        release: release with the reference judgments
        split: split of the release
        by: also measure groups of queries by this property
        answers: also report passages with people's answers (docs/answers.md)
        budget: also report answers in the first N characters
        plot: write a picture of the figures, .png or .svg

    Returns:
        The figures of each run. The value is a list with the JSON object of each run.

    Raises:
        InputError: a file or the release is wrong, run and reference share no query, or an option needs a release.

    Examples:
        python -m baselines evaluate --release build/sample bm25.run.gz --measures nDCG@20 R@100
        python -m baselines evaluate --qrels qrels.trec --per-query q.parquet RUN RUN
        python -m baselines evaluate --release RELEASE --plot figure.png bm25.run.gz
    """
    from baselines.measure.evaluate_tables import answers_report, evaluation_report
    from baselines.measure.evaluation import answer_results, measure_runs, rank_answers, read_budgets
    from baselines.measure.evaluation_plot import MOST_RUNS, evaluation_figure
    from baselines.measure.measure_names import resolve_measures
    from baselines.measure.qrels import expect_one_reference
    from baselines.measure.reference_source import ReferenceSource
    from baselines.measure.ties import order_ties
    from builders.core.images import image_format_of, write_figure
    from builders.core.paths import check_outputs
    from builders.store.layout import SETS

    expect_one_reference(release, qrels)
    chosen = resolve_measures(measures, ties)
    if plot is not None:
        # Reported before the work.
        image_format_of(plot)
        if len(runs) > MOST_RUNS:
            raise UsageError(f"--plot: expected at most {MOST_RUNS} runs, found {len(runs)}")
    source = ReferenceSource.of_options(
        release=release, qrels=qrels, split=split, set_name=set, queries=queries, qrels_config=qrels_config
    )
    check_outputs({"--per-query": per_query, "--plot": plot}, [*runs, *source.paths()])
    opened_runs = [order_ties(source.read_run(run), ties) for run in runs]

    # Answers need no judgments. Without judgments, they are the whole result. ``readings`` are the answers within the
    # first characters (--budget).
    answer_ranks = []
    readings = []
    is_judged = source.release is None or (SETS[set].qrels, split) in source.release.splits()
    if answers and source.release:
        rule = SpanOptions(unit, threshold, segmenter=segmenter)
        answer_ranks = rank_answers(
            opened_runs, source.release, split=split, set_name=set, query_config=queries, rule=rule
        )
        if budget:
            readings = read_budgets(
                opened_runs,
                source.release,
                split=split,
                set_name=set,
                query_config=queries,
                rule=rule,
                budgets=budget,
            )
        # Chosen measures and pictures need judgments: reading the judgments raises the error.
        if not is_judged and not chosen and plot is None:
            return answers_report(answer_results(opened_runs, answer_ranks, readings))

    reference = source.read()
    source.warn_of_origins(opened_runs, reference)
    groups = None
    if by:
        groups = source.groups(by, list(reference.positives))
    evaluation = measure_runs(
        opened_runs, reference, groups=groups, answer_ranks=answer_ranks, readings=readings, ties=ties, chosen=chosen
    )
    if per_query:
        evaluation.write_values(per_query)
    if plot is not None:
        question_types = groups
        if question_types is None:
            question_types = source.question_types(list(reference.positives))
        run_names = [str(run.path) for run in opened_runs]
        write_figure(evaluation_figure(run_names, evaluation.tables, question_types), plot)
    return evaluation_report(evaluation.results, reference)
