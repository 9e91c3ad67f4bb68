"""The verb `reproduce`: the paper's tables, the published scores, and the leaderboard."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from builders.core.errors import UsageError, log
from builders.core.options import AtLeastOne, Excludes, Needs, Placeholder, Use
from builders.core.verbs import TABLE_FORMATS, verb
from builders.store.release_options import AnySplit, ReleasePath, RunPath

if TYPE_CHECKING:
    from builders.core.results import Report

SAMPLE = Path("build/sample")
RUNS = Path("build/runs")
SMALL = Path(__file__).resolve().parents[1] / "settings" / "sample.toml"


@verb(formats=TABLE_FORMATS, resumes=True)
def reproduce_tables(
    *,
    table: Annotated[Sequence[int], Placeholder("N"), Excludes("leaderboard")] = (),
    figure: Annotated[Sequence[int], Placeholder("N"), Excludes("leaderboard")] = (),
    row: Annotated[str, Placeholder("NAME"), Excludes("leaderboard")] | None = None,
    release: ReleasePath | None = None,
    split: AnySplit = "dev",
    scratch: bool = False,
    small: bool = False,
    settings: Annotated[Path, Placeholder("FILE")] | None = None,
    start: Annotated[str, Placeholder("MODEL")] | None = None,
    out: Annotated[Path, Placeholder("DIR")] | None = None,
    html: Annotated[Path, Placeholder("FILE")] | None = None,
    one_process: bool = False,
    processes: Annotated[AtLeastOne, Placeholder("N")] = 1,
    extrapolation: Annotated[Sequence[str], Use.MAY_BE_EMPTY, Placeholder("NAME")] | None = None,
    pool: Annotated[bool, Excludes("leaderboard")] = False,
    dry_run: Annotated[bool, Excludes("leaderboard")] = False,
    leaderboard: Annotated[Sequence[RunPath], Use.MAY_BE_EMPTY] | None = None,
    searched: Annotated[Literal["whole", "sample"], Needs("leaderboard")] | None = None,
    top: Annotated[AtLeastOne, Placeholder("N"), Needs("leaderboard")] | None = None,
) -> "Report":
    """Reproduce the paper's tables, and print the published scores.

    The command covers Tables 4 to 9 and Figure 2. `builders check` prints Table 3, and `errors tally` prints Table
    10. baselines/reproduce/paper_tables.py has the steps behind the rows, and published_scores.toml the published
    scores. Rows can share steps. A step is skipped if the same call of its verb has finished the output, and an
    interrupted step resumes. A change of the code does not make a step run again, unless the verb's results change.

    Every score has a mark, and a 95 % interval over queries. The mark is OK, close or off if data and models are those
    of the published score. Otherwise the mark is "not comparable", with the reasons. An HTML page (reproduce.html under
    --out, or --html FILE) shows the tables, Figure 2, the training curves and the leaderboard.

    Without --release, the command builds the embedded sample (build/sample) and runs as with --small. Scores on the
    sample only show that every step runs. --small means --scratch with the settings of baselines/settings/sample.toml.
    On two cores and some thousand passages, --small takes minutes.

    --scratch uses recipes without pretrained weights: a small BERT is first pretrained on the collection. --settings
    FILE (TOML) changes recipes and commands, for example for a small machine. A section [RECIPE] changes one recipe,
    ["*"] changes all recipes, and [options.VERB] changes the options of a command. baselines/settings has examples.
    --start MODEL replaces the pretrained model from which recipes start.

    --table 6 needs the configs that `builders similar` writes. --figure 2 needs the configs of `builders annotate
    merge`. Figures are also drawn as PNG and SVG under --out.

    --extrapolation [restrain-14K resttest] runs BM25, DE and CE (or another --row) on the sets that `builders add`
    drew. The report has the scores for interpolation and for extrapolation, and the gap between the two scores.

    --pool trains the nine models of the paper's pool (Section 2.3, A.1): BM25 and four dual-encoders, whose top 50 are
    the candidates, and four re-rankers, whose mean score selects the best 5 of each query for people to judge.

    --leaderboard [RUN ...] prints the scores of baselines/leaderboard.toml with their sources. The column "trained"
    shows whether a model declares training on data of DuReader. The whole collection and the sample of 100,001 passages
    (C-MTEB's DuRetrieval) have separate tables. Each RUN is measured on --split of --release, with 95 % intervals. A
    run on another collection has a separate table.

    --dry-run prints the estimated cost of each step as comments, and then the commands. Costs are rows, tokens,
    operations and bytes on disk. Training takes 6 x parameters x tokens operations. Encoding and re-ranking take 2 x
    parameters x tokens. If the release does not exist, the sizes are those of the paper's collection.

    Args:
        table: tables of the paper (default: all)
        figure: figures of the paper (default: all)
        row: rows with this name (default: all)
        release: release (default: build/sample with --small, built if missing)
        split: split to measure rows without a split on
        scratch: use recipes without pretrained weights
        small: use --scratch and the settings for the embedded sample
        settings: TOML file that changes recipes and options
        start: start every training from this model, a folder or a name on the hub, in place of a pretrained model
        out: output directory (default: build/runs/NAME for a release NAME)
        html: file of the HTML page (default: OUT/reproduce.html)
        one_process: run every step in this process; libraries load once, but memory is not released between steps
        processes: processes of a training
        extrapolation: compare interpolation with extrapolation on these sets (default: all such sets of the release)
        pool: train the nine models of the pool, pool their passages, select the best
        dry_run: print the commands and the estimated costs of their steps; run nothing
        leaderboard: print the published scores, and the scores of each RUN on --release; run nothing
        searched: leaderboard: only this collection
        top: leaderboard: only the N best of each table

    Returns:
        The scores beside the published scores, or with ``dry_run`` the commands.

    Raises:
        InputError: no row matches, the release lacks the data of a named row, or a step failed.

    Examples:
        python -m baselines reproduce
        python -m baselines reproduce --small --release build/demo
        python -m baselines reproduce --table 4 --row bm25
        python -m baselines reproduce --table 7 --release DIR --dry-run
        python -m baselines reproduce --table 6 --figure 2 --release DIR
        python -m baselines reproduce --pool --release DIR
        python -m baselines reproduce --extrapolation resttest --release DIR
        python -m baselines reproduce --leaderboard --searched sample --top 10 --format markdown
        python -m baselines reproduce --release build/sample --leaderboard build/runs/bm25.dev.run.gz
    """
    from builders.store.reader import Release

    release_path = release.path if isinstance(release, Release) else release
    if leaderboard is not None:
        from baselines.reproduce.leaderboard import report_leaderboard

        return report_leaderboard(leaderboard, release_path, split=split, searched=searched, top=top)
    if release_path is None:
        release_path = SAMPLE
        if not (small or scratch or settings):
            if start is not None:
                raise UsageError("--start needs --release DIR: models of the embedded sample are trained from scratch")
            log.info("no --release: using the embedded sample and --small (add --release %s to omit --small)", SAMPLE)
            small = True
    if small:
        scratch = True
        settings = settings or SMALL

    from baselines.reproduce.extrapolation_table import report_extrapolation
    from baselines.reproduce.run_tables import run_tables, show_plan
    from baselines.reproduce.select_rows import RowSelection
    from baselines.reproduce.step_settings import NO_SETTINGS, read_settings
    from baselines.reproduce.steps import Steps

    changes = read_settings(settings) if settings else NO_SETTINGS
    if start is not None:
        if scratch:
            raise UsageError("--start replaces pretrained models, which --scratch does not use; remove one of the two")
        changes = replace(changes, start=start)
    out = out or RUNS / release_path.resolve().name
    do = Steps(release_path, out, split, scratch=scratch, settings=changes)
    selection = RowSelection(table, figure, row, pool)
    is_sample = release_path == SAMPLE
    if extrapolation is not None:
        return report_extrapolation(
            do, selection, extrapolation, dry_run=dry_run, one_process=one_process, processes=processes
        )
    if dry_run:
        return show_plan(do, selection, is_sample=is_sample, processes=processes)
    return run_tables(do, selection, is_sample=is_sample, html=html, one_process=one_process, processes=processes)
