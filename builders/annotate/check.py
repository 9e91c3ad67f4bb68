"""Accept packages, or send them back; print how far people agree.

A package that is whole is accepted where the mean of its reviewers' accuracies is at least 93 % (at least two, 100
pairs each; A.3). One below is sent back: its next version is written, in packages/ and label-studio/, with the labels
that it has so far, for the annotators to revise and the reviewers to review anew. What is decided is kept in
round.json.

A tie is a pair on which as many annotators say one thing as another. It counts neither for nor against a package, until
an adjudicator decides it: `annotate adjudicate` collects ties before and after the review.

Cohen's kappa is of each two people on the pairs that both have judged, Fleiss' of all pairs that as many people have.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builders.annotate.quality import Verdict, judge, percent
from builders.core.command import add_format
from builders.core.errors import log

if TYPE_CHECKING:
    from builders.annotate.judgments import Pair
    from builders.annotate.labels import Standing
    from builders.annotate.rounds import Package, Rule


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    import msgspec

    from builders.annotate.labels import standings
    from builders.annotate.rounds import ROUND, open_round, write_round
    from builders.core.files import alone

    with alone(args.round / ROUND, args.round, wait=True):
        found = open_round(args.round)
        known = standings(args.round, found)
        decided = [_decide(standing, found.rule) for standing in known]
        for standing, (package, _) in zip(known, decided, strict=True):
            if package.version > standing.package.version:  # before round.json says so: a kill leaves it as it was
                _write_version(args.round, standing, package)
        packages = [package for package, _ in decided]
        # Where nothing is decided, too: what a killed process has left of the file goes.
        write_round(args.round, msgspec.structs.replace(found, packages=packages))
    _print(known, decided, args.format)


def drawn_pairs(standing: Standing, reviewer: str, rule: Rule) -> set[Pair]:
    """The pairs of a package's version that a reviewer is given; all of them where there are no more."""
    from builders.core.sampling import draw

    package = standing.package
    pairs = {"\n".join(pair): pair for pair in standing.pairs}
    return {pairs[each] for each in draw(pairs, rule.review_pairs, f"{rule.seed} {reviewer} {package.stem}")}


def _decide(standing: Standing, rule: Rule) -> tuple[Package, Verdict]:
    """The package as it stands from now on, and the verdict on its present version."""
    from builders.annotate.labels import labels_digest
    from builders.annotate.rounds import accepted, reopened, sent_back

    package, digest = standing.package, labels_digest(standing)
    if package.state == "accepted" and package.labels != digest:
        log.warning("package %s: its labels have changed since it was accepted; it is looked at again", package.name)
        package = reopened(package)
    verdict = judge(package.name, package.pairs, _reviews(standing, rule), rule.acceptance)
    if standing.missing or package.state == "accepted":
        return package, verdict
    if not verdict.refusal:
        return accepted(package, verdict, digest), verdict
    return (sent_back(package, verdict) if verdict.reviewed else package), verdict


def _reviews(standing: Standing, rule: Rule) -> dict[str, list[bool | None]]:
    """By reviewer: of each pair that they were given and judged, whether the annotators judged it as they do.

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
            *(standing.package.name, passed),
        )
    return found


def _write_version(round_: Path, standing: Standing, package: Package) -> None:
    """The files of a package's next version, with the labels of the last."""
    from builders.annotate.rounds import PACKAGES, STUDIO, items_of
    from builders.annotate.sheets import Task
    from builders.annotate.studio import write_package

    items = items_of(round_, package)
    tasks = [Task(item, package.name, package.version, label=standing.label(item.pair)) for item in items]
    write_package(round_ / PACKAGES, package.stem, tasks, round_ / STUDIO)


def _print(known: Sequence[Standing], decided: Sequence[tuple[Package, Verdict]], form: str) -> None:
    from builders.annotate.agreement import cohen_of, fleiss_of

    votes = {(each.package.name, pair): each.votes(pair) for each in known for pair in each.pairs}
    rows = [_row(standing, *each) for standing, each in zip(known, decided, strict=True)]
    result: dict[str, Any] = {"packages": rows, "cohen": cohen_of(votes), "fleiss": fleiss_of(votes)}
    if form == "json":
        print(json.dumps(result, ensure_ascii=False, indent=1))
        return
    for row in rows:
        reviews = ", ".join(f"{name} {right}/{judged}" for name, (right, judged) in row["reviews"].items())
        words = f"package {row['package']}, version {row['version']}: {row['judged']:,} of {row['pairs']:,} judged"
        words += f", {row['ties']:,} ties" if row["ties"] else ""
        outcome = f"; {reviews}; accuracy {row['accuracy']}" if reviews else ""
        print(f"{words}{outcome}; {row['state']}{'; ' * bool(row['why'])}{row['why']}")
    for people, figures in result["cohen"].items():
        print(f"Cohen's kappa of {people}: {_shown(figures['kappa'])} ({figures['pairs']:,} pairs)")
    all_ = result["fleiss"]
    if all_["pairs"]:
        print(f"Fleiss' kappa of {all_['people']} people a pair: {_shown(all_['kappa'])} ({all_['pairs']:,} pairs)")


def _row(standing: Standing, package: Package, verdict: Verdict) -> dict[str, Any]:
    """What is printed of a package: of the version that was looked at."""
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


def _shown(kappa: float | int | None) -> str:
    return "-" if kappa is None else f"{kappa:.3f}"
