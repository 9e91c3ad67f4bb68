"""Select the rows that `reproduce` runs: by table, figure and name, and by the data of the release."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from baselines.reproduce.paper_tables import FIGURES, TABLES, Runs, pool
from baselines.reproduce.published_scores import PublishedRow, read_published_scores
from baselines.reproduce.steps import Step, Steps
from builders.core.errors import InputError, UsageError, log
from builders.store.layout import SETS
from builders.store.reader import Release

# Tables of the paper that another verb prints.
OTHER_VERBS = {2: "builders check", 3: "builders check", 10: "baselines errors tally"}


class TableRow(PublishedRow, frozen=True, kw_only=True, eq=False):
    """A published row with its run. Rows are compared by identity, so they can be keys of a dictionary.

    Attributes:
        name: the row's name for --row.
        run: records the steps behind the row, and returns the step that writes the measured run.
        table, figure: the number of the row's table or figure. A row of the pool has neither.
    """

    name: str
    run: Callable[[], Step]
    table: int | None = None
    figure: int | None = None

    @property
    def selector(self) -> str:
        """The words that select the table or figure of the row: --table 4, --figure 2 or --pool."""
        if self.table:
            return f"--table {self.table}"
        if self.figure:
            return f"--figure {self.figure}"
        return "--pool"


@dataclass(frozen=True)
class RowSelection:
    """The tables, figures and row that the user names. Without any of them, all rows are selected.

    With ``pool``, the rows of the pool's models are selected instead of the tables and figures.
    """

    tables: Sequence[int] = ()
    figures: Sequence[int] = ()
    row: str | None = None
    pool: bool = False

    @property
    def selectors(self) -> list[str]:
        """The named tables and figures, as in :attr:`TableRow.selector`."""
        return [f"--table {number}" for number in self.tables] + [f"--figure {number}" for number in self.figures]


def rows_of(do: Steps, *, of_pool: bool = False) -> list[TableRow]:
    """Return all rows of the tables and figures, or of the pool. No step is recorded before a row's ``run`` is called.

    Rows of different tables can have the same name, for example bm25.
    """
    published = read_published_scores()
    rows = []

    def add_rows(published_rows: Mapping[str, PublishedRow], runs: Runs, **location: Any) -> None:
        """Append the rows of a table. ``location`` is table=NUMBER, figure=NUMBER, or empty for the pool."""
        for name, run in runs.items():
            rows.append(TableRow(name=name, run=run, **location, **msgspec.structs.asdict(published_rows[name])))

    if of_pool:
        add_rows(published.pool, pool(do))
        return rows
    for number, table in TABLES.items():
        add_rows(published.table[str(number)], table(do), table=number)
    for number, figure in FIGURES.items():
        add_rows(published.figure[str(number)], figure(do), figure=number)
    return rows


def select_rows(do: Steps, selection: RowSelection) -> list[TableRow]:
    """Return the selected rows.

    Raises :class:`UsageError` with the known rows if no row matches, or if a table or figure has no row.
    """
    for number in selection.tables:
        if number in OTHER_VERBS:
            raise UsageError(f"--table {number}: `python -m {OTHER_VERBS[number]}` prints this table")
    rows = rows_of(do, of_pool=selection.pool)
    selected = []
    for row in rows:
        is_in_table = not selection.selectors or row.selector in selection.selectors
        if is_in_table and selection.row in (None, row.name):
            selected.append(row)
    if not selected or set(selection.selectors) - {row.selector for row in selected}:
        words = list(selection.selectors)
        if selection.row:
            words.append(f"--row {selection.row}")
        known_rows = [f"{row.selector} --row {row.name}" for row in rows]
        raise UsageError(f"no row matches {' '.join(words)}; known rows: {'; '.join(known_rows)}")
    return selected


def runnable_rows(rows: Sequence[TableRow], selection: RowSelection, release: Release, do: Steps) -> list[TableRow]:
    """Return the rows that can run on a release. Each skipped row is logged with the data that the release lacks.

    Raises :class:`InputError` if a row, table or figure that the user names cannot run.
    """
    has_negatives = any(row.official_negatives for row in rows) and _has_official_negatives(release)
    runnable = []
    skipped: dict[str, list[TableRow]] = {}  # by the reason
    for row in rows:
        reason = _missing_data(row, release, do, has_negatives)
        if reason:
            skipped.setdefault(reason, []).append(row)
        else:
            runnable.append(row)
    # A named row, table or figure that cannot run at all is an error. Others are skipped with a warning.
    selectors_without_rows = set(selection.selectors) - {row.selector for row in runnable}
    for reason, skipped_rows in skipped.items():
        names = dict.fromkeys(row.name for row in skipped_rows)
        problem = f"{', '.join(names)}: {reason}"
        is_named = selection.row or any(row.selector in selectors_without_rows for row in skipped_rows)
        if is_named or not runnable:
            raise InputError(problem, path=release.path)
        log.warning("%s: %s; skipped", release.path, problem)
    return runnable


def is_labelled(row: TableRow, release: Release | None, split: str) -> bool:
    """True if the release has the row's judgments. ``split`` is for rows without a split of their own.

    Without a release, only rows on the official test split (of main and crosslingual) have no judgments.
    """
    if release is None:
        return bool(row.split) or split != "test"
    return (SETS[row.set].qrels, row.split or split) in release.splits()


def _missing_data(row: TableRow, release: Release, do: Steps, has_negatives: bool) -> str:
    """Return the reason why a row cannot run, or "". ``has_negatives``: the release has official hard negatives."""
    split = row.split or do.split
    splits = release.splits()
    configs = SETS[row.set]
    if (configs.queries, split) not in splits:
        return f"has no {configs.queries}/{split} to measure on; `python -m builders add` adds sets"
    # "": the row needs no further config.
    missing_configs = {row.needs} - {config for config, _ in splits} - {""}
    if row.needs or row.queries or row.qrels:  # configs of the quality strategies (Section 2.3)
        for config in (row.queries, row.qrels or configs.qrels):
            if config and (config, split) not in splits:
                missing_configs.add(f"{config}/{split}")
    if missing_configs:
        return (
            f"has no {', '.join(sorted(missing_configs))}; `python -m builders similar` and `annotate merge` make them"
        )
    if row.official_negatives and do.variant:
        return "has no recipe without pretrained weights (--scratch)"
    if row.official_negatives and not has_negatives:
        return "has no official hard negatives, which `python -m builders official` imports"
    return ""


def _has_official_negatives(release: Release) -> bool:
    """True if a training question of the release has a hard negative in its joined row."""
    config = SETS["main"].joined["train"]
    if (config, "train") not in release.splits():
        return False
    batches = release.batches(config, "train", ["negative_passages.list.element.docid"])
    return any(len(batch.column(0).flatten()) for batch in batches)
