"""Random pairs of each finished package for each reviewer (A.3).

Writes ROUND/reviews/NAME/PACKAGE.csv, .jsonl and .json (Label Studio's tasks) of every package that is whole and not
accepted: 100 pairs for each reviewer, drawn by the reviewer's name, which is how `import` must call them (user-1 and so
on in Label Studio's exports). Reviewers judge for themselves: the annotators' labels are not shown.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from builders.annotate.export import Task, write_package
from builders.annotate.judgments import Pair
from builders.annotate.quality import Rule, Verdict, cohen_of, fleiss_of, judge, percent
from builders.annotate.rounds import (
    PACKAGES,
    ROUND,
    STUDIO,
    Package,
    Reviewed,
    Standing,
    items_of,
    open_round,
    standings,
    write_round,
)
from builders.core.command import add_format
from builders.core.errors import InputError, log
from builders.core.files import alone
from builders.core.sampling import draw
from builders.core.typed import problem_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reviewers", nargs="+", required=True, metavar="NAME", help="at least two")


def run(args: argparse.Namespace) -> None:
    found = open_round(args.round)
    for reviewer in args.reviewers:
        if "/" in reviewer or problem_of(reviewer):
            raise InputError(f"expected a name that a file can have, found {reviewer[:80]!r}")
        folder = args.round / "reviews" / reviewer
        for standing in standings(args.round, found):
            package = standing.package
            if standing.missing or package.state == "accepted":
                reason = f"{len(standing.missing):,} pairs are not judged" if standing.missing else "is accepted"
                log.info("package %s, version %d: no review (%s)", package.name, package.version, reason)
                continue
            chosen = drawn_pairs(standing, reviewer, found.rule)
            items = [item for item in items_of(args.round, package) if item.pair in chosen]
            tasks = [Task(item, package.name, package.version, "review") for item in items]
            write_package(folder, package.stem, tasks)
            print(folder / f"{package.stem}.csv")


def drawn_pairs(standing: Standing, reviewer: str, rule: Rule) -> set[Pair]:
    """Return the pairs of a package's version that a reviewer is given; all of them where there are no more."""
    pairs = {"\n".join(pair): pair for pair in standing.pairs}
    return {pairs[each] for each in draw(pairs, rule.review_pairs, f"{rule.seed} {reviewer} {standing.package.stem}")}


def adjudicate(args: argparse.Namespace) -> None:
    """The pairs on which people disagree, for somebody to decide.

    Writes ROUND/adjudication/PACKAGE.csv, .jsonl and .json (Label Studio's tasks), with the number of people who said
    the one and the other, without their names. Imported, the adjudicator's label counts before all others.
    """
    folder, count, found = args.round / "adjudication", 0, open_round(args.round)
    choices = found.asked.choices
    for standing in standings(args.round, found):
        package, disputed = standing.package, set(standing.disputed)
        tasks = []
        for item in items_of(args.round, package) if disputed else ():
            if item.pair in disputed:
                counts = Counter(standing.votes(item.pair).values())
                shown = [choice for choice in choices if len(choices) == 2 or counts[choice.label]]
                said = ", ".join(f"{choice.name} {counts[choice.label]}" for choice in shown)
                tasks.append(Task(item, package.name, package.version, "adjudication", said=said))
        if tasks:
            write_package(folder, package.stem, tasks)
            print(folder / f"{package.stem}.csv")
        count += len(tasks)
    print(f"{count:,} pairs to decide")


check_arguments = add_format


def check(args: argparse.Namespace) -> None:
    """Accept packages, or send them back; print how far people agree.

    A package that is whole is accepted where the mean of its reviewers' accuracies is at least 93 % (at least two, 100
    pairs each; A.3). One below is sent back: its next version is written, in packages/ and label-studio/, with the
    labels that it has so far, for the annotators to revise and the reviewers to review anew. What is decided is kept in
    round.json.

    A tie is a pair on which as many annotators say one thing as another. It counts neither for nor against a package,
    until an adjudicator decides it: `annotate adjudicate` collects ties before and after the review.

    Cohen's kappa is of each two people on the pairs that both have judged, Fleiss' of all pairs that as many people
    have.
    """
    with alone(args.round / ROUND, args.round, wait=True):
        found = open_round(args.round)
        known = standings(args.round, found)
        decided = [_decide(standing, found.rule) for standing in known]
        for standing, (package, _) in zip(known, decided, strict=True):
            if package.version > standing.package.version:  # before round.json says so: a kill leaves it as it was
                _write_version(args.round, standing, package)
        # Where nothing is decided, too: what a killed process has left of the file goes.
        write_round(args.round, replace(found, packages=[package for package, _ in decided]))
    votes = {(each.package.name, pair): each.votes(pair) for each in known for pair in each.pairs}
    rows = [_row(standing, *each) for standing, each in zip(known, decided, strict=True)]
    result = {"packages": rows, "cohen": cohen_of(votes), "fleiss": fleiss_of(votes)}
    print(json.dumps(result, ensure_ascii=False, indent=1) if args.format == "json" else _text(result))


def _decide(standing: Standing, rule: Rule) -> tuple[Package, Verdict]:
    """Return the package as it stands from now on, and the verdict on its present version."""
    package, digest = standing.package, standing.digest
    if package.state == "accepted" and package.labels != digest:
        log.warning("package %s: its labels have changed since it was accepted; it is looked at again", package.name)
        package = replace(package, state="open", labels="")
    verdict = judge(package.pairs, _reviews(standing, rule), rule)
    if standing.missing or package.state == "accepted" or not verdict.reviewed:
        return package, verdict
    is_accepted = not verdict.refusal
    verdicts = [*package.verdicts, Reviewed(package.version, is_accepted, dict(verdict.reviews))]
    if is_accepted:
        return replace(package, state="accepted", verdicts=verdicts, labels=digest), verdict
    return replace(package, version=package.version + 1, state="sent back", verdicts=verdicts), verdict


def _reviews(standing: Standing, rule: Rule) -> dict[str, list[bool | None]]:
    """Return by reviewer, of each pair that they were given and judged, whether the annotators judged it as they do.

    None for a tie that no adjudicator has decided. Nobody reviews their own work, and pairs that were not drawn do not
    count.
    """
    found: dict[str, list[bool | None]] = {}
    drawn = {name: drawn_pairs(standing, name, rule) for names in standing.reviews.values() for name in names}
    passed = 0
    for pair, labels in standing.reviews.items():
        for reviewer, label in labels.items():
            if pair in drawn[reviewer] and reviewer not in standing.annotations.get(pair, {}):
                known = standing.reviewed(pair)
                found.setdefault(reviewer, []).append(None if known is None else label == known)
            else:
                passed += 1
    if passed:
        log.warning(
            "package %s: %d reviews are of the reviewer's own work, or of pairs that were not drawn, and do not count",
            standing.package.name,
            passed,
        )
    return found


def _write_version(round_: Path, standing: Standing, package: Package) -> None:
    """Write a package that was sent back with the labels that it has so far."""
    items = items_of(round_, package)
    tasks = [Task(item, package.name, package.version, label=standing.label(item.pair)) for item in items]
    write_package(round_ / PACKAGES, package.stem, tasks, round_ / STUDIO)


def _row(standing: Standing, package: Package, verdict: Verdict) -> dict[str, Any]:
    """Return the figures of a package that are printed: those of the version that was checked."""
    missing, old = len(standing.missing), standing.package
    is_sent_back = package.version > old.version
    why = f"{missing:,} pairs are not judged" if missing else "" if package.state == "accepted" else verdict.refusal
    return {
        **{"package": old.name, "version": old.version, "pairs": old.pairs, "judged": old.pairs - missing},
        **{"disputed": len(standing.disputed), "ties": len(standing.ties), "reviews": dict(verdict.reviews)},
        "accuracy": None if verdict.accuracy is None else percent(verdict.accuracy),
        "state": f"sent back as version {package.version}" if is_sent_back else package.state,
        "why": why,
    }


def _text(found: dict[str, Any]) -> str:
    lines = []
    for row in found["packages"]:
        reviews = ", ".join(f"{name} {right}/{judged}" for name, (right, judged) in row["reviews"].items())
        words = f"package {row['package']}, version {row['version']}: {row['judged']:,} of {row['pairs']:,} judged"
        words += f", {row['ties']:,} ties" if row["ties"] else ""
        outcome = f"; {reviews}; accuracy {row['accuracy']}" if reviews else ""
        lines.append(f"{words}{outcome}; {row['state']}{'; ' * bool(row['why'])}{row['why']}")
    kappas = [(f"Cohen's kappa of {people}", figures) for people, figures in found["cohen"].items()]
    if found["fleiss"]["pairs"]:
        kappas.append((f"Fleiss' kappa of {found['fleiss']['people']} people a pair", found["fleiss"]))
    for what, figures in kappas:
        kappa = "-" if figures["kappa"] is None else f"{figures['kappa']:.3f}"
        lines.append(f"{what}: {kappa} ({figures['pairs']:,} pairs)")
    return "\n".join(lines)
