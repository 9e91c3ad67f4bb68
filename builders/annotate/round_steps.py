"""The steps of `annotate` that work on a round: export, import, review, check, adjudicate and merge."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from builders.annotate.annotate_options import PACKAGE_SIZE, REVIEW_ITEMS, ItemCount, RoundPath, WrittenFiles
from builders.core.options import Placeholder, Use
from builders.core.results import Report
from builders.core.verbs import TABLE_FORMATS, verb
from builders.store.release_options import MainSplit, NewRelease, ReleasePath


@verb()
def export_round(
    round: RoundPath,
    *,
    pool: Annotated[Path, Placeholder("FILE")],
    release: ReleasePath,
    split: MainSplit = "dev",
    unjudged: bool = False,
    package_size: ItemCount = PACKAGE_SIZE,
    review_pairs: ItemCount = REVIEW_ITEMS,
) -> WrittenFiles:
    """Write a pool as a round for people who judge pairs.

    The packages of pairs are written for Label Studio, for spreadsheets and as JSON lines. The pairs of a query stay
    together, ordered by passage id, because an order by rank would show a model's opinion. ROUND must not exist,
    because a round is never replaced.

    A sheet has the columns package, version, kind (annotation, review or adjudication), query-id, corpus-id, query,
    passage, said (the votes so far, for an adjudication), label and note. JSON lines have the same keys. After people
    have filled in `label`, `import` reads sheets and JSON lines.

    Args:
        round: directory of the round to write
        pool: output of `pool select`
        release: release with the texts
        split: split of the pool's queries
        unjudged: skip the pairs that are in the release's qrels
        package_size: pairs of a package
        review_pairs: pairs of a package per reviewer

    Returns:
        The path of the round, and the numbers of pairs, queries and packages.

    Raises:
        InputError: the round exists, the pool has no pair to judge, or the release lacks a pair.

    Examples:
        python -m builders annotate export --pool build/pool/dev.jsonl.gz --release build/sample --round build/round
    """
    from builders.annotate.rounds import QualityRule
    from builders.annotate.tasks import export_pool
    from builders.store.reader import open_release

    exported = export_pool(
        round,
        open_release(release),
        pool=pool,
        split=split,
        unjudged_only=unjudged,
        package_size=package_size,
        rule=QualityRule(review_pairs=review_pairs),
    )
    counts = {"pairs": exported.pairs, "queries": exported.queries, "packages": exported.packages}
    text = f"{exported.pairs:,} pairs of {exported.queries:,} queries in {exported.packages:,} packages: {round}"
    return WrittenFiles((round,), text, counts)


@verb()
def import_judgments(
    round: RoundPath,
    files: Annotated[Sequence[Path], Use.POSITIONAL, Placeholder("FILE")],
    *,
    annotator: Annotated[str, Placeholder("NAME")] | None = None,
) -> WrittenFiles:
    """Import judgments into a round from files that people filled in.

    FILE is Label Studio's JSON export, a filled-in sheet (CSV, TSV or JSON lines), or a file of judgments from another
    copy of the round. The format is detected from the content. If Label Studio's export has no e-mail addresses, people
    are named user-1 and so on. Rows without a label are skipped. If one row is wrong, nothing is imported. Importing a
    file twice changes nothing.

    Args:
        files: files with judgments
        annotator: name of the person, for rows without a name

    Returns:
        The path of the round, and the numbers of judgments and of new judgments.

    Raises:
        InputError: the directory is no round, or a row is no judgment of a pair of the round.

    Examples:
        python -m builders annotate import --round build/round project-1.json
        python -m builders annotate import --round build/round --annotator anna@example.com sheets/dev-001.csv
    """
    from builders.annotate.tasks import import_files

    imported = import_files(round, files, annotator)
    text = f"{imported.new:,} new judgments of {imported.judgments:,}: {round}"
    return WrittenFiles((round,), text, {"judgments": imported.judgments, "new": imported.new})


@verb()
def draw_reviews(
    round: RoundPath,
    *,
    reviewers: Sequence[Annotated[str, Placeholder("NAME")]],
) -> WrittenFiles:
    """Draw random pairs of each judged package for reviewers (A.3).

    Writes ROUND/reviews/NAME/PACKAGE.csv, .jsonl and .json (tasks for Label Studio) for every package that is fully
    judged but not accepted. Each file has 100 pairs, without labels. The draw depends on the reviewer's name, so
    `import` must use this name, too. If Label Studio's exports lack e-mail addresses, the reviewers are called user-1,
    user-2 and so on.

    Args:
        reviewers: names of two or more reviewers

    Returns:
        The paths of the sheets.

    Raises:
        InputError: the directory is no round, or a reviewer's name cannot be a folder's name.

    Examples:
        python -m builders annotate review --round build/round --reviewers anna@example.com ben@example.com
    """
    from builders.annotate.review import write_reviews

    sheet_paths = write_reviews(round, reviewers)
    return WrittenFiles(tuple(sheet_paths), "\n".join(map(str, sheet_paths)))


@verb(formats=TABLE_FORMATS)
def check_round(round: RoundPath) -> Report:
    """Accept packages or send them back, and measure the agreement.

    A package is decided when annotators have judged all its pairs, and at least two reviewers 100 pairs each. The
    accuracy is the share of these 100 pairs that reviewer and annotators label alike. If the mean accuracy over the
    reviewers is at least 93 %, the package is accepted (A.3). Otherwise, the package is sent back: its next version,
    with the present labels, is written to packages/ and label-studio/ for a revision and a new review.

    A pair is a tie if equally many annotators gave its two most frequent labels. Ties do not count for or against a
    package until an adjudicator decides them. `annotate adjudicate` collects ties before and after the review.

    Cohen's kappa compares two people. Fleiss' kappa covers only pairs with the most frequent number of judges.

    Returns:
        The state of each package, and the kappas.

    Raises:
        InputError: the directory is no round, or a file of judgments was changed.

    Examples:
        python -m builders annotate check --round build/round
    """
    from builders.annotate.review import check_packages

    return check_packages(round)


@verb()
def collect_disagreements(round: RoundPath) -> WrittenFiles:
    """Collect the pairs on which people disagree, for an adjudicator.

    Writes ROUND/adjudication/PACKAGE.csv, .jsonl and .json (tasks for Label Studio). Each pair has the number of votes
    for each label, without names. After `import`, the adjudicator's label is the pair's final label.

    Returns:
        The paths of the sheets, and the number of pairs.

    Raises:
        InputError: the directory is no round, or a file of judgments was changed.

    Examples:
        python -m builders annotate adjudicate --round build/round
    """
    from builders.annotate.review import write_disputes

    sheet_paths, pair_count = write_disputes(round)
    text_lines = list(map(str, sheet_paths))
    text_lines.append(f"{pair_count:,} pairs to decide")
    return WrittenFiles(tuple(sheet_paths), "\n".join(text_lines), {"pairs": pair_count})


@verb(formats=TABLE_FORMATS)
def merge_round(round: RoundPath, *, release: ReleasePath, out: NewRelease) -> Report:
    """Write a release with new qrels from accepted packages.

    A pair that was judged 1 becomes a positive. A pair that was judged 0 gets the score 0 in qrels, so that the next
    pool shows the pair as judged. The passage then becomes a negative in the query's row of the config train, dev, test
    or crosslingual. Unjudged pairs, and ties between annotators, stay unchanged. Packages that are not accepted are
    skipped, and so are models' judgments. The statistics are computed from the new qrels.

    The config qrels-before has the judgments from before the first merge, for comparison (Figure 2). The command prints
    the figures of Section 2.3 for the new release and for the paper: positives per query before and after, and the
    share of queries with a false negative. `check` recounts these figures from the rows.

    Args:
        release: release that was judged

    Returns:
        The figures of the new release and of the paper.

    Raises:
        InputError: the round was made from other queries or passages, or has no settled label.

    Examples:
        python -m builders annotate merge --round build/round --release build/sample --out build/relabelled
    """
    from builders.annotate.merge_judgments import merge_judgments, merge_report
    from builders.store.reader import open_release

    figures = merge_judgments(round, open_release(release), out)
    return merge_report(figures, out)
