"""The verb `evaluate`: measure runs."""

from pathlib import Path
from typing import Annotated, Literal

from baselines.measure.measure_options import EXPECTED_TIES, QrelsConfig, QrelsFile, QuestionProperty, RunPaths, Ties
from builders.core.options import Excludes, Needs, Shown
from builders.core.results import Report
from builders.core.verbs import TABLE_FORMATS, verb
from builders.core.words import SEGMENTERS
from builders.store.release_options import AnySplit, QuestionConfig, ReleasePath, SetName
from builders.text.ngram_options import NGRAM, SHARE, LowestJaccard, NgramLength
from builders.text.span_options import THRESHOLD, Options, Segmenter, SpanThreshold, Unit


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
    ties: Ties = "listed",
    holes: Annotated[bool, Excludes(EXPECTED_TIES)] = False,
    duplicates: Annotated[Literal["removed", "kept"], Needs("release"), Excludes(EXPECTED_TIES)] | None = None,
    ngram: Annotated[NgramLength, Needs("duplicates")] = NGRAM,
    jaccard: Annotated[LowestJaccard, Needs("duplicates")] = SHARE,
    list: Annotated[Path, Shown("FILE"), Needs("duplicates")] | None = None,
    by: QuestionProperty | None = None,
    answers: Annotated[bool, Needs("release"), Excludes(EXPECTED_TIES)] = False,
    unit: Annotated[Unit, Needs("answers")] = "word",
    segmenter: Annotated[Segmenter, Needs("answers")] = SEGMENTERS[0],
    threshold: Annotated[SpanThreshold, Needs("answers")] = THRESHOLD,
    per_query: Annotated[Path, Shown("FILE.parquet")] | None = None,
) -> Report:
    """Measure runs by the official measures and by usual measures.

    A run is a TREC run (gzipped or not) or the official JSON of predictions. The reference is a split of a release, or
    a file: TREC qrels, BEIR's TSV, or an official dev.json. The first table has the four keys of the official script
    with 95 % intervals over queries. recall@k is a hit rate: the share of queries with a positive in the top k. The
    second table has the usual measures under ir-measures' names. R@k is the share of all positives in the top k.
    Figures are percent in text and Markdown, and fractions in JSON and CSV.

    --queries measures only the questions that are similar to a removed training question, or only the other questions
    (Section 2.3, Table 6). --qrels-config qrels-before uses the judgments before people corrected them (Figure 2). For
    a config of `add resttest` (resttest-bucketN), --split interpolation or extrapolation selects the test questions.
    The labels of --split test are unpublished for the sets main and crosslingual. `export --format official` writes a
    submission.

    A run does not order passages with equal scores, so the verb reports the queries with ties around a positive
    passage. --ties expected measures the mean over all orders of ties, which --holes, --duplicates and --answers do not
    support.

    --holes reports the effect of passages that nobody judged: Judged@10, bpref, the measures without these passages,
    and the highest values that the measures could reach if these passages were judged. --duplicates counts
    near-duplicates (texts that share --jaccard of their n-grams) as one passage. A copy of a positive is a positive. A
    later copy is removed or is a miss.

    --by measures groups of queries: by the type of the question, by fact or opinion, by the service where the question
    was asked, or by length. --answers reports how often a passage of the top k contains an answer of people, whether or
    not the passage was judged. A passage contains an answer if a span reaches --threshold of span-F1, or if the text
    contains an entity of the answer. For several runs, Kendall's tau compares the order of the runs by answers with
    their order by judgments. --answers needs the config answers, but no judgments.

    Args:
        release: release with the reference judgments
        split: split of the release
        holes: also report the effect of unjudged passages
        duplicates: also count near-duplicates as one passage: later copies are removed from the list, or kept as
            misses
        list: write every pair of --duplicates, as JSON lines
        by: also measure the queries of each group, by this property of queries (default: no groups)
        answers: also report the passages that contain people's answers
        per_query: write the values of every query

    Returns:
        The figures of each run. The value is a list with the JSON object of each run.

    Raises:
        InputError: a file or the release is wrong, run and reference share no query, or an option needs a release.

    Examples:
        python -m baselines evaluate --release build/sample --split dev build/runs/bm25.dev.run.gz --per-query q.parquet
        python -m baselines evaluate --release DIR --split dev --queries duplicated RUN
        python -m baselines evaluate --release DIR --split dev --qrels-config qrels-before RUN
        python -m baselines evaluate --release DIR --split dev --holes RUN RUN
        python -m baselines evaluate --release DIR --split dev --duplicates removed RUN
        python -m baselines evaluate --release DIR --split dev --by question_type --answers RUN RUN
    """
    from baselines.measure.answer_recall import answers_table, answers_text
    from baselines.measure.evaluate_tables import evaluation_tables, evaluation_text
    from baselines.measure.evaluation import CopyRule, answer_results, measure_runs, rank_answers
    from baselines.measure.groups import groups_of
    from baselines.measure.qrels import expect_one_reference, read_reference
    from baselines.measure.run_origin import warn_of_origins
    from baselines.measure.ties import order_ties
    from builders.core.files import check_file
    from builders.store.layout import SETS
    from builders.store.reader import open_release
    from builders.store.runs import read_run

    expect_one_reference(release, qrels)
    for file in (per_query, list):
        if file is not None:
            check_file(file)
    opened = None if release is None else open_release(release)
    opened_runs = [order_ties(read_run(run), ties) for run in runs]

    answer_ranks = []
    if answers and opened:
        rule = Options(unit, threshold, segmenter=segmenter)
        answer_ranks = rank_answers(opened_runs, opened, split=split, set_name=set, query_config=queries, rule=rule)
        if (SETS[set].qrels, split) not in opened.splits():  # answers need no judgments
            results = answer_results(opened_runs, answer_ranks)
            return Report(results, text=lambda: answers_text(results), tables=lambda: [answers_table(results)])

    reference = read_reference(
        release=opened, qrels=qrels, split=split, set_name=set, queries=queries, qrels_config=qrels_config
    )
    warn_of_origins(opened_runs, reference, opened, set_name=set, split=split, qrels_config=qrels_config or "")
    groups = None
    if by:
        groups = groups_of(
            by=by,
            queries=[*reference.positives],
            release=opened,
            split=split,
            set_name=set,
            query_config=queries,
        )
    copy_rule = None
    if duplicates and opened:
        copy_rule = CopyRule(duplicates, ngram, jaccard, release=opened, corpus=SETS[set].corpus)
    evaluation = measure_runs(
        opened_runs,
        reference,
        groups=groups,
        answer_ranks=answer_ranks,
        ties=ties,
        with_holes=holes,
        copy_rule=copy_rule,
    )
    if per_query:
        evaluation.write_values(per_query)
    if list:
        evaluation.write_copies(list)
    return Report(
        evaluation.results,
        text=lambda: evaluation_text(evaluation.results, reference),
        tables=lambda: evaluation_tables(evaluation.results, reference),
    )
