"""The verb `errors`: analyse the errors of a run."""

from pathlib import Path
from typing import Annotated

from baselines.measure.measure_options import RUN_HELP
from builders.core.errors import UsageError
from builders.core.options import AtLeastOne, Excludes, Help, Needs, Shown, Use
from builders.core.results import Report
from builders.core.verbs import TABLE_FORMATS, verb
from builders.store.release_options import MainSplit, ReleasePath, RunPath, Seed

# Section 3.5 draws 100 queries, and judges the five best passages of each.
QUERIES = 100
DEPTH = 5


@verb(formats=TABLE_FORMATS)
def analyse_errors(
    run: Annotated[RunPath, Use.POSITIONAL, Help(RUN_HELP)] | None = None,
    *,
    tally: Annotated[Path, Shown("ROUND")] | None = None,
    release: Annotated[ReleasePath, Excludes("tally")] | None = None,
    split: MainSplit = "dev",
    sample: Annotated[AtLeastOne, Shown("N"), Excludes("tally")] = QUERIES,
    top_k: Annotated[AtLeastOne, Shown("K"), Excludes("tally")] = DEPTH,
    seed: Annotated[Seed, Excludes("tally")] = 0,
    round: Annotated[Path, Shown("ROUND"), Needs("run")] | None = None,
    model: Annotated[str, Shown("NAME"), Needs("tally")] | None = None,
) -> Report:
    """Analyse the errors of a run as the paper does (Table 10).

    A query fails if no positive passage is in its top 5. The verb draws 100 failed queries. All five passages of a
    failed query are errors. People assign each error to a category of Section 3.5: entity, numeral, modifier or
    syntactic mismatch, typos, mere overlap of terms, false negative, or other.

    With RUN, the verb prints the number of failed queries. --round also writes the errors as a round for `annotate`
    (Label Studio or sheets, prefill, review, quality control). --tally ROUND prints the share of each category in
    people's answers next to Table 10. With --model NAME, the answers of this model are counted instead (`annotate
    prefill`).

    Args:
        tally: count the answers of a round of errors
        release: release that the run searched
        sample: draw N queries
        top_k: passages per query
        seed: seed of the draw
        round: write the pairs as a round for `annotate`
        model: with --tally: count the answers of this model

    Returns:
        The numbers of failed queries and of drawn errors, or with ``tally`` the figures of each category.

    Raises:
        InputError: the split has no judgments, no query failed, or the round has no answers.

    Examples:
        python -m baselines errors --release build/sample --split dev --round build/errors build/runs/bm25.dev.run.gz
        python -m builders annotate import --round build/errors --annotator anna@example.com dev-001.csv
        python -m baselines errors --tally build/errors
    """
    if (run is None) == (tally is None):
        raise UsageError("expected either RUN or --tally ROUND")
    from baselines.measure.error_rounds import (
        draw_errors,
        draw_report,
        expect_new_round,
        tally_errors,
        tally_report,
        write_error_round,
    )

    if tally is not None:
        return tally_report(tally_errors(tally, model))
    if release is None or run is None:
        raise UsageError("RUN needs --release DIR")
    from builders.store.reader import open_release
    from builders.store.runs import expect_run_file, read_run

    if round:
        expect_new_round(round)
    opened, opened_run = open_release(release), read_run(run)
    if round:
        expect_run_file(opened_run)
    drawn = draw_errors(opened, split, opened_run, sample=sample, top_k=top_k, seed=seed)
    if round:
        write_error_round(round, opened, split, drawn, source=opened_run.path, seed=seed)
    return draw_report(drawn, opened_run.path, top_k, round)
