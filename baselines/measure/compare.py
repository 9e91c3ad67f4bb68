"""The verb `compare`: compare runs."""

from collections.abc import Sequence
from typing import Annotated

from baselines.measure.measure_options import (
    TEST_RESAMPLES,
    TESTS,
    ImageFile,
    QrelsConfig,
    QrelsFile,
    QuestionProperty,
    RunPaths,
    Ties,
)
from builders.core.errors import UsageError
from builders.core.options import Between, Excludes, Needs, NotNegativeInt, OneOf, Placeholder, Use
from builders.core.results import Report
from builders.core.verbs import TABLE_FORMATS, verb
from builders.store.release_options import AnySplit, QuestionConfig, ReleasePath, Seed, SetName


@verb(formats=(*TABLE_FORMATS, "latex"))
def compare_runs(
    runs: RunPaths,
    *,
    release: ReleasePath | None = None,
    qrels: QrelsFile | None = None,
    split: AnySplit = "dev",
    set: SetName = "main",
    queries: QuestionConfig | None = None,
    qrels_config: QrelsConfig | None = None,
    measure: Annotated[Sequence[str], Use.REPEATED, Placeholder("NAME")] = (),
    name: Annotated[Sequence[str], Use.REPEATED, Placeholder("TEXT")] = (),
    by: QuestionProperty | None = None,
    ties: Ties = "listed",
    test: Annotated[str, OneOf(TESTS)] = TESTS[0],
    alpha: Annotated[float, Between(low=0.0001, high=0.5), Placeholder("P")] = 0.05,
    power: Annotated[float, Between(low=0.5, high=0.99), Placeholder("P")] = 0.8,
    resamples: Annotated[int, Between(low=99), Placeholder("N")] = TEST_RESAMPLES,
    seed: Seed = 0,
    changed: Annotated[NotNegativeInt, Placeholder("N")] = 3,
    stress: Annotated[
        bool,
        Needs("release"),
        Excludes("queries"),
        Excludes("qrels_config"),
        Excludes("name"),
        Excludes("by"),
    ] = False,
    plot: Annotated[ImageFile, Excludes("stress")] | None = None,
) -> Report:
    """Compare runs: paired tests, groups, changed queries.

    Every pair of runs is compared on the same queries by Student's paired t-test and Fisher's randomisation test, with
    Holm's correction over all pairs. For each pair, the verb prints the interval of the difference, wins, ties and
    losses, the smallest detectable difference, and the queries that changed most. A system's superscripts name the
    systems that are significantly worse. A group lists systems without significant differences. Runs and reference have
    the formats of `evaluate`. A query that a run lacks counts as 0.

    --by also compares every pair in each group of queries, with Holm's correction over all pairs and groups of a
    measure.

    --stress compares one system with itself: its run on the questions as asked, and its runs on perturbed questions
    (`builders add stress`). The verb prints the drop of each kind, with Holm's correction over the kinds, and the
    questions that fell deepest. Which run has which questions is read from the run's query ids.

    Figures are percent in text, Markdown and LaTeX (a table for a paper). In JSON and CSV, figures are fractions.

    Args:
        release: release with the reference judgments
        split: split of the release
        measure: measure to compare, repeatable: an official key, a measure of ir-measures in any case, for example
            nDCG@20, or a column of `errors holes --per-query`. The first measure selects the queries that changed most
            (default: MRR@10, recall@1, recall@50)
        name: name of a run in the tables, once per run (default: its path)
        by: also compare the runs on the queries of each group, by this property of queries (default: no groups)
        test: test for superscripts and groups
        alpha: test level
        power: power for the detectable difference
        resamples: resamples
        seed: seed of resamples
        changed: show N changed queries per pair
        stress: compare a system's runs on perturbed questions with its run as asked
        plot: write a picture (PNG or SVG, by the suffix) of the systems' intervals and groups

    Returns:
        The comparison. docs/compare.md describes its value.

    Raises:
        InputError: a file or the release is wrong, a measure is unknown, or there are fewer than two queries or runs.

    Examples:
        python -m baselines compare --release DIR --split dev bm25.dev.run.gz de.dev.run.gz ce.dev.run.gz
        python -m baselines compare --qrels qrels.trec --measure nDCG@10 --test randomisation A.run B.run --format json
        python -m baselines compare --release DIR --stress bm25.dev.run bm25.swap.run bm25.drop.run
        python -m baselines compare --release DIR --plot systems.svg bm25.run de.run ce.run
        python -m baselines compare --release DIR --name BM25 --name "DE w/ BM25 Neg" bm25.run de.run --format latex
    """
    from baselines.measure.compare_tables import Comparison
    from baselines.measure.comparison import LABELS, SignificanceRule, compare_systems, table_of_run
    from baselines.measure.comparison_plot import comparison_figure
    from baselines.measure.measure_names import resolve_measures
    from baselines.measure.measures import PAPER
    from baselines.measure.qrels import expect_one_reference, read_queries
    from baselines.measure.reference_source import ReferenceSource
    from baselines.measure.stress_drops import compare_with_asked, sort_runs
    from baselines.measure.stress_tables import stress_report
    from baselines.measure.ties import order_ties
    from builders.core.images import image_format_of, write_figure
    from builders.store.layout import SETS
    from builders.store.original_runs import read_release_run

    expect_one_reference(release, qrels)
    if stress and set != "main":
        raise UsageError(f"--stress compares with the questions as asked, the set main; remove --set {set}")
    if name and len(name) != len(runs):
        raise UsageError(f"expected a --name for each of {len(runs)} runs, found {len(name)}")
    for system_name in name:
        if name.count(system_name) > 1:
            raise UsageError(f"--name {system_name}: two systems have this name; expected different names")
    if not 2 <= len(runs) <= len(LABELS):
        raise UsageError(f"expected 2 to {len(LABELS)} runs, found {len(runs)}")
    if plot is not None:
        image_format_of(plot)  # a wrong name is reported before the work
    measures = resolve_measures(measure or PAPER.values(), ties, with_holes=True)
    settings = SignificanceRule(test, alpha, power, resamples, seed)
    source = ReferenceSource.of_options(
        release=release, qrels=qrels, split=split, set_name=set, queries=queries, qrels_config=qrels_config
    )
    opened_runs = [order_ties(read_release_run(run, source.release), ties) for run in runs]
    if stress:
        assert source.release is not None
        runs_by_set = sort_runs(opened_runs, source.release, split)
        drops = compare_with_asked(
            runs_by_set, source.release, split, measures, settings=settings, ties=ties, changed=changed
        )
        return stress_report({"reference": f"{source.release.path} {split}", "ties": ties, **drops})
    reference = source.read()
    source.warn_of_origins(opened_runs, reference)
    tables = [table_of_run(run, reference, measures, ties) for run in opened_runs]
    system_names = list(name) or [str(run.path) for run in opened_runs]

    query_groups = None
    if by:
        query_groups = source.groups(by, tables[0]["query_id"].to_pylist())
    # Empty without --release, because a file of judgments has no texts.
    query_texts: dict[str, str] = {}
    if changed and source.release:
        query_texts = dict(read_queries(source.release, split, queries or SETS[set].queries))
    result = compare_systems(
        system_names,
        tables,
        measures,
        settings=settings,
        query_groups=query_groups,
        texts=query_texts,
        changed=changed,
    )
    if plot is not None:
        write_figure(comparison_figure(result, tables), plot)
    return Comparison.of({"reference": reference.name, "ties": ties, **result})
