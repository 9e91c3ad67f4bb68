"""Review the packages of a round: draw pairs for reviewers, decide packages, and collect disputes (Appendix A.3)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from builders.annotate.kappa import cohen_of, fleiss_of
from builders.annotate.rounds import (
    PACKAGES,
    ROUND,
    STUDIO,
    LabelChoice,
    Package,
    PackageStanding,
    Pair,
    QualityRule,
    Reviewed,
    open_round,
    read_standings,
    write_round,
)
from builders.annotate.tasks import tasks_of, write_package
from builders.annotate.verdicts import Verdict, fraction_rounded_down, judge_package, percent_rounded_down
from builders.core.errors import InputError, log
from builders.core.locks import hold_lock
from builders.core.results import Report, Table
from builders.core.sampling import draw_sample
from builders.core.typed import problem_of

_SHOWN_CHARACTERS = 80  # of a wrong name in an error


def write_reviews(round_path: Path, reviewers: Sequence[str]) -> list[Path]:
    """Write a sheet with random pairs of a package for each reviewer. Return the paths of the sheets.

    Only packages that are fully judged and not accepted have sheets. The others are logged. Raises :class:`InputError`
    for a reviewer's name that cannot be a folder's name.
    """
    annotation_round = open_round(round_path)
    package_standings = read_standings(round_path, annotation_round)
    sheet_paths = []
    for reviewer in reviewers:
        # A reviewer's sheets are in a folder of this name.
        if "/" in reviewer or problem_of(reviewer):
            raise InputError(
                f"expected a reviewer's name that can be a folder's name, found {reviewer[:_SHOWN_CHARACTERS]!r}"
            )
        folder = round_path / "reviews" / reviewer
        for standing in package_standings:
            package = standing.package
            if standing.unjudged_pairs or package.state == "accepted":
                log.info("no review of %s: %s, %d unjudged", package.stem, package.state, len(standing.unjudged_pairs))
                continue
            # Without label, so that the reviewer judges independently.
            pair_fields: dict[Pair, dict[str, Any]] = {}
            for pair in draw_pairs(standing, reviewer, annotation_round.rule):
                pair_fields[pair] = {}
            tasks = tasks_of(round_path, package, "review", pair_fields)
            write_package(folder, package.stem, tasks)
            sheet_paths.append(folder / f"{package.stem}.csv")
    return sheet_paths


def draw_pairs(standing: PackageStanding, reviewer: str, rule: QualityRule) -> set[Pair]:
    """Draw the pairs that a reviewer judges in a package's present version. Small packages are drawn completely."""
    # The draw takes texts. An id contains no line end, so each pair has its own text.
    pair_by_key = {"\n".join(pair): pair for pair in standing.pairs}
    drawn_keys = draw_sample(pair_by_key, rule.review_pairs, f"{rule.seed} {reviewer} {standing.package.stem}")
    return {pair_by_key[key] for key in drawn_keys}


def write_disputes(round_path: Path) -> tuple[list[Path], int]:
    """Write sheets with the pairs on which people disagree. Return (paths of the sheets, number of pairs).

    Packages without such a pair have no sheet.
    """
    annotation_round = open_round(round_path)
    folder = round_path / "adjudication"
    choices = annotation_round.label_question.choices
    sheet_paths: list[Path] = []
    pair_count = 0
    for standing in read_standings(round_path, annotation_round):
        pair_fields: dict[Pair, dict[str, str]] = {}
        for pair in standing.disputed_pairs:
            pair_fields[pair] = {"said": _vote_text(standing, pair, choices)}
        if pair_fields:
            package = standing.package
            tasks = tasks_of(round_path, package, "adjudication", pair_fields)
            write_package(folder, package.stem, tasks)
            sheet_paths.append(folder / f"{package.stem}.csv")
        pair_count += len(pair_fields)
    return sheet_paths, pair_count


def _vote_text(standing: PackageStanding, pair: Pair, choices: Sequence[LabelChoice]) -> str:
    """Return the number of votes for each choice, without names of people."""
    vote_counts = Counter(standing.votes(pair).values())
    # Of two choices, both are shown. Of the eight error categories, those with a vote are shown.
    show_all = len(choices) == 2
    parts = []
    for choice in choices:
        if show_all or vote_counts[choice.label]:
            parts.append(f"{choice.name} {vote_counts[choice.label]}")
    return ", ".join(parts)


def check_packages(round_path: Path) -> Report:
    """Accept packages or send them back. Return the state of each package, and the agreement between people."""
    with hold_lock(round_path / ROUND, round_path, wait=True):
        annotation_round = open_round(round_path)
        package_standings = read_standings(round_path, annotation_round)
        decisions = [_decide(standing, annotation_round.rule) for standing in package_standings]
        # Files of new versions are written before round.json, so that a kill changes no state.
        for standing, (package, _) in zip(package_standings, decisions, strict=True):
            if package.version > standing.package.version:
                labels = {pair: {"label": standing.label(pair)} for pair in standing.pairs}
                tasks = tasks_of(round_path, package, "annotation", labels)
                write_package(round_path / PACKAGES, package.stem, tasks, round_path / STUDIO)
        # Always write round.json, because writing also removes a killed process's temporary file.
        decided_packages = [package for package, _ in decisions]
        write_round(round_path, replace(annotation_round, packages=decided_packages))

    # Report the agreement between people, and the packages.
    # A pair of a package is judged by annotators and reviewers, and both count as people.
    votes: dict[tuple[str, Pair], Mapping[str, int]] = {}
    for standing in package_standings:
        for pair in standing.pairs:
            votes[standing.package.name, pair] = standing.votes(pair)
    rows = []
    accuracies = []
    for standing, (package, verdict) in zip(package_standings, decisions, strict=True):
        rows.append(_row(standing, package, verdict))
        accuracies.append(fraction_rounded_down(verdict.accuracy))
    figures = {"packages": rows, "cohen": cohen_of(votes), "fleiss": fleiss_of(votes)}
    tables = [_package_table(rows, accuracies), _kappa_table(figures)]
    return Report(figures, _text_of(figures), tables=tables)


def _decide(standing: PackageStanding, rule: QualityRule) -> tuple[Package, Verdict]:
    """Return a package in its new state, and the verdict on it."""
    package = standing.package
    digest = standing.digest
    if package.state == "accepted" and package.labels != digest:
        log.warning("package %s: labels changed after it was accepted, so it is checked again", package.name)
        package = replace(package, state="open", labels="")
    # The verdict is also computed for packages that are already decided, for the report.
    verdict = judge_package(package.pairs, _reviews(standing, rule), rule)
    if standing.unjudged_pairs or package.state == "accepted" or not verdict.reviewed:
        return package, verdict
    # Enough people reviewed the package, so this version is decided.
    is_accepted = not verdict.refusal
    verdicts = [*package.verdicts, Reviewed(package.version, is_accepted, dict(verdict.reviews))]
    if is_accepted:
        return replace(package, state="accepted", verdicts=verdicts, labels=digest), verdict
    return replace(package, version=package.version + 1, state="sent back", verdicts=verdicts), verdict


def _reviews(standing: PackageStanding, rule: QualityRule) -> dict[str, list[bool | None]]:
    """Return one value for each drawn pair that a reviewer judged, by the reviewer's name.

    True: reviewer and annotators agree. False: reviewer and annotators disagree. None: the annotators' votes are a tie
    that no adjudicator decided. Pairs that the reviewer annotated, and pairs that were not drawn, do not count.
    """
    answers: dict[str, list[bool | None]] = {}
    drawn_by_reviewer: dict[str, set[Pair]] = {}
    for pair, labels in standing.reviews.items():
        for reviewer, label in labels.items():
            if reviewer not in drawn_by_reviewer:
                drawn_by_reviewer[reviewer] = draw_pairs(standing, reviewer, rule)
            # People must not review their own annotations, nor choose the pairs of a review.
            if pair in drawn_by_reviewer[reviewer] and reviewer not in standing.annotations.get(pair, {}):
                annotated = standing.label_for_review(pair)
                answers.setdefault(reviewer, []).append(None if annotated is None else label == annotated)
    return answers


def _row(standing: PackageStanding, package: Package, verdict: Verdict) -> dict[str, Any]:
    """Return the report's row of a package. ``package`` is the package in its new state."""
    checked_package = standing.package
    unjudged_count = len(standing.unjudged_pairs)
    reason = ""
    if unjudged_count:
        reason = f"{unjudged_count:,} pairs are not judged"
    elif package.state != "accepted":
        reason = verdict.refusal
    accuracy = None
    if verdict.accuracy is not None:
        accuracy = percent_rounded_down(verdict.accuracy)
    state: str = package.state
    if package.version > checked_package.version:
        state = f"sent back as version {package.version}"
    return {
        "package": checked_package.name,
        "version": checked_package.version,
        "pairs": checked_package.pairs,
        "judged": checked_package.pairs - unjudged_count,
        "disputed": len(standing.disputed_pairs),
        "ties": len(standing.ties),
        "reviews": dict(verdict.reviews),
        "accuracy": accuracy,
        "state": state,
        "why": reason,
    }


def _format_reviews(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {right}/{judged}" for name, (right, judged) in row["reviews"].items())


def _package_table(rows: Sequence[Mapping[str, Any]], accuracies: Sequence[float | None]) -> Table:
    """Return rows of :func:`_row` as a table. ``accuracies`` replace the accuracies in the rows, which are texts."""
    columns = list(rows[0]) if rows else ["package"]
    cells = []
    for row, accuracy in zip(rows, accuracies, strict=True):
        table_row = dict(row) | {"reviews": _format_reviews(row), "accuracy": accuracy}
        cells.append(list(table_row.values()))
    return Table(columns, cells, "packages", percent_columns=("accuracy",))


def _kappa_table(figures: Mapping[str, Any]) -> Table:
    """Return the results of :func:`cohen_of` and :func:`fleiss_of`, in ``cohen`` and ``fleiss``, as a table."""
    rows = [["Cohen", people, kappa["kappa"], kappa["pairs"]] for people, kappa in figures["cohen"].items()]
    fleiss = figures["fleiss"]
    if fleiss["pairs"]:
        rows.append(["Fleiss", f"{fleiss['people']} people a pair", fleiss["kappa"], fleiss["pairs"]])
    return Table(("kappa of", "people", "kappa", "pairs"), rows, "agreement", text_columns=2)


def _text_of(figures: Mapping[str, Any]) -> str:
    """Format the figures of :func:`check_packages` for people: a line for each package and for each kappa."""
    lines = []
    for row in figures["packages"]:
        line = f"package {row['package']}, version {row['version']}: {row['judged']:,} of {row['pairs']:,} judged"
        if row["ties"]:
            line += f", {row['ties']:,} ties"
        if row["reviews"]:
            line += f"; {_format_reviews(row)}; accuracy {row['accuracy']}"
        line += f"; {row['state']}"
        if row["why"]:
            line += f"; {row['why']}"
        lines.append(line)
    kappas = [(f"Cohen's kappa of {people}", kappa) for people, kappa in figures["cohen"].items()]
    if figures["fleiss"]["pairs"]:
        kappas.append((f"Fleiss' kappa of {figures['fleiss']['people']} people a pair", figures["fleiss"]))
    for name, kappa in kappas:
        kappa_text = "-" if kappa["kappa"] is None else f"{kappa['kappa']:.3f}"
        lines.append(f"{name}: {kappa_text} ({kappa['pairs']:,} pairs)")
    return "\n".join(lines)
