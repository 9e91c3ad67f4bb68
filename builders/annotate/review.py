"""Quality control of human work in packages (Appendix A.3): reviews, acceptance, disputes, agreement.

A package has 1,000 items: query-passage pairs, or translated queries. At least two reviewers independently judge 100
random items of each package. The accuracy is the share of these items that a reviewer finds right. A package is
accepted if its mean accuracy over the reviewers is at least 93 %. Otherwise annotators revise the package. An item is a
tie if its two most frequent labels have equally many votes. Ties do not count until an adjudicator decides them.
"""

import argparse
import csv
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from builders.add.crosslingual import Translation, build_crosslingual, crosslingual_report, open_translations
from builders.annotate.rounds import (
    PACKAGE,
    PACKAGES,
    ROUND,
    STUDIO,
    Package,
    Pair,
    Reviewed,
    Rule,
    Standing,
    answer_of,
    open_round,
    standings,
    write_round,
)
from builders.annotate.tasks import tasks_of, write_package
from builders.core.command import add_format, whole_number
from builders.core.errors import InputError, log
from builders.core.files import alone, atomic_text, sha256_of
from builders.core.sampling import draw
from builders.core.tables import print_result, round_stat
from builders.core.typed import problem_of
from builders.sources.source_files import Source
from builders.sources.source_tables import find_tables, open_table
from builders.store.layout import SPLITS

PACKAGE_COLUMNS = ("package", "id", "zh", "machine_translation", "english")
SHEET_COLUMNS = ("package", "id", "zh", "english", "correct")
_NEEDED = {"export": (), "review": ("source",), "import": ("source", "reviews")}


@dataclass(frozen=True)
class Verdict:
    """The outcome of the reviews of one package.

    ``reviews`` has the number of right items and the number of judged items of each reviewer, without ties. ``refusal``
    is the reason for not accepting the package, or empty. ``reviewed`` is True if enough people reviewed enough items.
    """

    reviews: Mapping[str, tuple[int, int]]
    refusal: str
    reviewed: bool

    @property
    def accuracy(self) -> Fraction | None:
        """The mean accuracy over the reviewers, from 0 to 1; None without a review."""
        shares = [Fraction(right, judged) for right, judged in self.reviews.values() if judged]
        return sum(shares, Fraction(0)) / len(shares) if shares else None


def judge(size: int, reviews: Mapping[str, Sequence[bool | None]], rule: Rule) -> Verdict:
    """Return the verdict on one package of ``size`` items.

    ``reviews`` has one value for each item that a reviewer judged: True for right, False for wrong, None for a tie.
    Ties do not count in the accuracy. In a package smaller than ``rule.review_pairs``, all items must be judged.
    """
    reviews = {reviewer: found for reviewer, found in reviews.items() if found}
    counts = {each: (sum(map(bool, found)), len(found) - found.count(None)) for each, found in reviews.items()}
    needed, refusal = min(rule.review_pairs, size), ""
    if len(counts) < rule.reviewers:
        refusal = f"has {len(counts)} reviews, expected at least {rule.reviewers}"
    elif few := [reviewer for reviewer, found in reviews.items() if len(found) < needed]:
        refusal = f"has {len(reviews[few[0]])} items judged by {few[0]}, expected at least {needed}"
    elif ties := [reviewer for reviewer, (_, judged) in counts.items() if not judged]:
        refusal = f"has nothing but ties among the items judged by {ties[0]}; decide the ties first"
    verdict = Verdict(counts, refusal, reviewed=not refusal)
    if refusal or verdict.accuracy is None or verdict.accuracy >= rule.accuracy:
        return verdict
    refusal = f"has an accuracy of {percent(verdict.accuracy)}, expected at least {percent(rule.accuracy)}"
    return Verdict(counts, refusal, reviewed=True)


def percent(share: Fraction) -> str:
    """Format a share with two decimals, rounded down so that no share below the threshold looks equal to it."""
    hundredths = share * 10_000 // 1
    return f"{hundredths // 100}.{hundredths % 100:02d} %"


def cohen(first: Sequence[int], second: Sequence[int]) -> float | None:
    """Return Cohen's kappa of two people's labels of the same pairs, or None if chance explains the whole agreement."""
    import numpy as np
    from statsmodels.stats.inter_rater import cohens_kappa, to_table

    with np.errstate(all="ignore"):
        return finite(cohens_kappa(to_table(np.array([first, second]).T)[0], return_results=False))


def fleiss(labels: Sequence[Sequence[int]]) -> float | None:
    """Return Fleiss' kappa. ``labels`` has one row for each pair. All rows have the same number of labels."""
    import numpy as np
    from statsmodels.stats.inter_rater import aggregate_raters, fleiss_kappa

    with np.errstate(all="ignore"):
        return finite(fleiss_kappa(aggregate_raters(np.array(labels))[0]))


def finite(value: float) -> float | None:
    """Return a statistic as a float, or None if it is undefined (not finite)."""
    return float(value) if math.isfinite(value) else None


def cohen_of(votes: Mapping[Any, Mapping[str, int]]) -> dict[str, dict[str, float | int | None]]:
    """Return Cohen's kappa of every two people, by their names, with the number of pairs that both people judged."""
    found: dict[str, dict[str, float | int | None]] = {}
    for one, other in combinations(sorted({person for labels in votes.values() for person in labels}), 2):
        both = [(labels[one], labels[other]) for labels in votes.values() if one in labels and other in labels]
        if both:
            first, second = zip(*both, strict=True)
            found[f"{one}, {other}"] = {"kappa": cohen(first, second), "pairs": len(both)}
    return found


def fleiss_of(votes: Mapping[Any, Mapping[str, int]]) -> dict[str, float | int | None]:
    """Return Fleiss' kappa of the pairs that several people judged.

    Fleiss' kappa needs an equal number of people for every pair, so only pairs with the most frequent number count.
    """
    numbers = Counter(len(labels) for labels in votes.values() if len(labels) > 1)
    if not numbers:
        return {"kappa": None, "pairs": 0, "people": 0}
    people = max(numbers, key=lambda number: (numbers[number], number))
    chosen = [[*labels.values()] for labels in votes.values() if len(labels) == people]
    return {"kappa": fleiss(chosen), "pairs": len(chosen), "people": people}


def review_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reviewers", nargs="+", required=True, metavar="NAME", help="names of two or more reviewers")


def review(args: argparse.Namespace) -> None:
    """Draw random pairs of each fully judged package for each reviewer (A.3).

    Writes ROUND/reviews/NAME/PACKAGE.csv, .jsonl and .json (tasks for Label Studio) for every package that is fully
    judged but not accepted. Each file has 100 pairs, without labels. The draw depends on the reviewer's name, so
    `import` must use this name, too. If Label Studio's exports lack e-mail addresses, the reviewers are called user-1,
    user-2 and so on.
    """
    found = open_round(args.round)
    known = standings(args.round, found)
    for reviewer in args.reviewers:
        if "/" in reviewer or problem_of(reviewer):
            raise InputError(f"expected a reviewer's name that can be a folder's name, found {reviewer[:80]!r}")
        folder = args.round / "reviews" / reviewer
        for standing in known:
            package = standing.package
            if standing.missing or package.state == "accepted":
                log.info("no review of %s: %s, %d unjudged", package.stem, package.state, len(standing.missing))
                continue
            pairs: dict[Pair, dict[str, Any]] = {pair: {} for pair in drawn_pairs(standing, reviewer, found.rule)}
            write_package(folder, package.stem, tasks_of(args.round, package, "review", pairs))
            print(folder / f"{package.stem}.csv")


def drawn_pairs(standing: Standing, reviewer: str, rule: Rule) -> set[Pair]:
    """Draw the pairs that a reviewer judges in a package's present version. Small packages are drawn completely."""
    pairs = {"\n".join(pair): pair for pair in standing.pairs}
    return {pairs[each] for each in draw(pairs, rule.review_pairs, f"{rule.seed} {reviewer} {standing.package.stem}")}


def adjudicate(args: argparse.Namespace) -> None:
    """Collect the pairs on which people disagree, for an adjudicator.

    Writes ROUND/adjudication/PACKAGE.csv, .jsonl and .json (tasks for Label Studio). Each pair has the number of votes
    for each label, without names. After `import`, the adjudicator's label is the pair's final label.
    """
    folder, count, found = args.round / "adjudication", 0, open_round(args.round)
    for standing in standings(args.round, found):
        said: dict[Pair, dict[str, str]] = {}
        for pair in standing.disputed:
            votes = Counter(standing.votes(pair).values())
            choices = (each for each in found.asked.choices if len(found.asked.choices) == 2 or votes[each.label])
            said[pair] = {"said": ", ".join(f"{choice.name} {votes[choice.label]}" for choice in choices)}
        if said:
            package = standing.package
            write_package(folder, package.stem, tasks_of(args.round, package, "adjudication", said))
            print(folder / f"{package.stem}.csv")
        count += len(said)
    print(f"{count:,} pairs to decide")


check_arguments = add_format


def check(args: argparse.Namespace) -> None:
    """Accept packages or send them back, and print the agreement between people.

    A package is decided when annotators have judged all its pairs, and at least two reviewers 100 pairs each. The
    accuracy is the share of these 100 pairs that reviewer and annotators label alike. If the mean accuracy over the
    reviewers is at least 93 %, the package is accepted (A.3). Otherwise, the package is sent back: its next version,
    with the present labels, is written to packages/ and label-studio/ for a revision and a new review.

    A pair is a tie if equally many annotators gave its two most frequent labels. Ties do not count for or against a
    package until an adjudicator decides them. `annotate adjudicate` collects ties before and after the review.

    Cohen's kappa compares two people. Fleiss' kappa covers only pairs with the most frequent number of judges.
    """
    with alone(args.round / ROUND, args.round, wait=True):
        found = open_round(args.round)
        known = standings(args.round, found)
        decided = [_decide(standing, found.rule) for standing in known]
        for standing, (package, _) in zip(known, decided, strict=True):
            if package.version > standing.package.version:  # written before round.json, so that a kill changes no state
                labels = {pair: {"label": standing.label(pair)} for pair in standing.pairs}
                tasks = tasks_of(args.round, package, "annotation", labels)
                write_package(args.round / PACKAGES, package.stem, tasks, args.round / STUDIO)
        # Always write round.json, because writing also removes a killed process's temporary file.
        write_round(args.round, replace(found, packages=[package for package, _ in decided]))
    votes = {(each.package.name, pair): each.votes(pair) for each in known for pair in each.pairs}
    rows = [_row(standing, *each) for standing, each in zip(known, decided, strict=True)]
    result = {"packages": rows, "cohen": cohen_of(votes), "fleiss": fleiss_of(votes)}
    print_result(result, _text(result), args.format)


def _decide(standing: Standing, rule: Rule) -> tuple[Package, Verdict]:
    package, digest = standing.package, standing.digest
    if package.state == "accepted" and package.labels != digest:
        log.warning("package %s: labels changed after it was accepted, so it is checked again", package.name)
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
    """Return one value for each drawn pair that a reviewer judged, by the reviewer's name.

    True: reviewer and annotators agree. False: reviewer and annotators disagree. None: the annotators' votes are a tie
    that no adjudicator decided. Pairs that the reviewer annotated, and pairs that were not drawn, do not count.
    """
    found: dict[str, list[bool | None]] = {}
    reviewers = {name for labels in standing.reviews.values() for name in labels}
    drawn = {name: drawn_pairs(standing, name, rule) for name in reviewers}
    for pair, labels in standing.reviews.items():
        for reviewer, label in labels.items():
            if pair in drawn[reviewer] and reviewer not in standing.annotations.get(pair, {}):
                known = standing.reviewed(pair)
                found.setdefault(reviewer, []).append(None if known is None else label == known)
    return found


def _row(standing: Standing, package: Package, verdict: Verdict) -> dict[str, Any]:
    missing, old = len(standing.missing), standing.package
    reason = f"{missing:,} pairs are not judged" if missing else "" if package.state == "accepted" else verdict.refusal
    return {
        **{"package": old.name, "version": old.version, "pairs": old.pairs, "judged": old.pairs - missing},
        **{"disputed": len(standing.disputed), "ties": len(standing.ties), "reviews": dict(verdict.reviews)},
        "accuracy": None if verdict.accuracy is None else percent(verdict.accuracy),
        "state": f"sent back as version {package.version}" if package.version > old.version else package.state,
        "why": reason,
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


def translations_arguments(parser: argparse.ArgumentParser) -> None:
    number, items = whole_number(1), Rule().review_pairs
    parser.add_argument("action", choices=[*_NEEDED])
    parser.add_argument("--source", nargs="+", type=Path, metavar="TABLE", help="tables with packages (review, import)")
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="release with the Chinese queries")
    parser.add_argument("--out", type=Path, required=True, metavar="OUT", help="table or release to write")
    export = parser.add_argument_group("export")
    export.add_argument("--split", nargs="+", choices=SPLITS, help="splits to translate (default: all)")
    size = f"queries of a package (default: {PACKAGE})"
    export.add_argument("--package-size", type=number, default=PACKAGE, metavar="N", help=size)
    export.add_argument("--translations", nargs="+", type=Path, metavar="TABLE", help="machine translations to correct")
    control = parser.add_argument_group("review and import")
    control.add_argument("--reviews", nargs="+", type=Path, metavar="SHEET", help="filled-in sheets, one per reviewer")
    control.add_argument(
        "--pairs", type=number, default=items, metavar="N", help=f"queries of a package per reviewer (default: {items})"
    )
    add_format(parser)
    parser.set_defaults(usage_error=parser.error)


def translations(args: argparse.Namespace) -> int | None:
    """Translate queries by hand, for the cross-lingual set.

    `export` writes packages of 1,000 queries into one tab-separated file with the columns package, id, zh,
    machine_translation and english. Translators fill in or correct `english`. `review` draws 100 random queries of each
    package for each of two reviewers. A reviewer's sheet has the columns package, id, zh, english and correct.
    Reviewers fill in `correct` with 1 or 0. `import` computes each package's accuracy, the mean over its reviewers. If
    every accuracy is at least 93 %, `import` builds the set as `add crosslingual` does. Otherwise, `import` prints the
    accuracies and exits with 1.

    example:
      python -m builders annotate translations export --release build/sample --split dev test --out packages.tsv
      python -m builders annotate translations review --source packages.tsv --release build/sample --out review.tsv
      python -m builders annotate translations import --source packages.tsv --reviews review.1.tsv review.2.tsv \\
          --release build/sample --out build/with-english
    """
    if missing := [name for name in _NEEDED[args.action] if getattr(args, name) is None]:
        args.usage_error(f"{args.action} needs --{missing[0]}")
    steps = {"export": _export_queries, "review": _review_translations, "import": _import_translations}
    return steps[args.action](args)


def _export_queries(args: argparse.Namespace) -> None:
    _, splits, pairs = open_translations(args.release, args.translations or (), "auto")
    chosen = [split for split in SPLITS if split in (args.split or splits)]
    if absent := [split for split in chosen if split not in splits]:
        raise InputError(f"has no queries of the split {absent[0]}", path=args.release)
    machine = {pair.zh_id: pair.english for pair in reversed(pairs)}  # the first translation of a query wins
    rows = [
        (f"{split}-{number // args.package_size + 1:03d}", zh_id, text, *[machine.get(zh_id, "")] * 2)
        for split in chosen
        for number, (zh_id, text) in enumerate(splits[split].items())
    ]
    write_rows(args.out, PACKAGE_COLUMNS, rows)
    print(f"{len(rows):,} queries in {len({row[0] for row in rows}):,} packages: {args.out}")


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a tab-separated table."""
    with atomic_text(path) as file:
        csv.writer(file, delimiter="\t", lineterminator="\n").writerows([columns, *rows])


def _review_translations(args: argparse.Namespace) -> None:
    _, splits, pairs = open_translations(args.release, args.source, "auto")
    texts = {zh_id: text for texts in splits.values() for zh_id, text in texts.items()}
    for reviewer in range(1, Rule().reviewers + 1):
        sheet = args.out.with_name(f"{args.out.stem}.{reviewer}{args.out.suffix}")
        rows = []
        for package, content in by_package(pairs).items():
            chosen = draw(content, args.pairs, f"{Rule().seed} {reviewer} {package}")
            rows += [(package, n, texts[n], pair.english, "") for n, pair in content.items() if n in chosen]
        write_rows(sheet, SHEET_COLUMNS, rows)
        print(sheet)


def _import_translations(args: argparse.Namespace) -> int | None:
    """Build the set from reviewed packages. Return 1 if a package is refused."""
    base, splits, pairs = open_translations(args.release, args.source, "auto")
    rule, sheets = Rule(review_pairs=args.pairs), find_tables(args.reviews)
    packages, lines, is_refused = [], [], False
    for package, (size, verdict) in review_packages(pairs, sheets, rule).items():
        share = verdict.accuracy
        packages.append(
            {
                **{"package": package, "queries": size},
                "reviews": [{"right": right, "judged": judged} for right, judged in verdict.reviews.values()],
                "accuracy": None if share is None else round_stat(float(share)),
                "accepted": not verdict.refusal,
            }
        )
        accuracy, outcome = "-" if share is None else percent(share), "accepted"
        if verdict.refusal:
            is_refused, outcome = True, f"refused: {verdict.refusal}"
            log.error("package %s %s; revise the package, and review it again", package, verdict.refusal)
        lines.append(f"package {package}: {size:,} queries, accuracy {accuracy}, {outcome}")
    if is_refused or args.format == "text":
        print_result({"packages": packages}, "\n".join(lines), args.format)
    if is_refused:
        return 1
    options = {
        **{"action": "import", "encoding": "auto", "reviewers": rule.reviewers, "pairs": rule.review_pairs},
        "min_accuracy": rule.min_accuracy,
    }
    sources = [*find_tables(args.source), *sheets]
    stats = build_crosslingual(pairs, splits, base, args.out, options, sources, packages)
    print(crosslingual_report(stats, args.out).render(args.format))
    return None


def by_package(pairs: Iterable[Translation]) -> dict[str, dict[str, Translation]]:
    """Return package -> query id -> pair. Raises :class:`InputError` for an incomplete pair or a repeated query."""
    packages: dict[str, dict[str, Translation]] = {}
    seen: dict[str, Translation] = {}
    for pair in pairs:
        first = seen.setdefault(pair.zh_id, pair)
        for is_right, problem in (
            (pair.package, "the column package is empty; expected the table of `annotate translations export`"),
            (pair.english, f"the query {pair.zh_id} of package {pair.package} has no English text"),
            (first is pair, f"the query {pair.zh_id} repeats line {first.line} of {first.source.name}; remove one"),
        ):
            if not is_right:
                raise InputError(problem, path=pair.source.shown, line=pair.line)
        packages.setdefault(pair.package, {})[pair.zh_id] = pair
    return packages


def review_packages(
    pairs: Iterable[Translation], sheets: Sequence[Source], rule: Rule
) -> dict[str, tuple[int, Verdict]]:
    """Return package -> (number of queries, verdict). Each sheet is from one reviewer.

    Raises :class:`InputError` for a repeated sheet, for a row that has no judgment, repeats a query or is in no
    package, and if the English text changed after the sheet was drawn.
    """
    packages = by_package(pairs)
    judged: dict[str, dict[str, dict[str, bool]]] = {package: {} for package in packages}
    seen: dict[str, Source] = {}
    for sheet in sheets:
        if (first := seen.setdefault(sha256_of(sheet.path) + (sheet.member or ""), sheet)) is not sheet:
            raise InputError(f"is the same sheet as {first.name}; expected another reviewer's", path=sheet.shown)
        table = open_table(sheet, spreadsheet=True)
        if missing := [name for name in SHEET_COLUMNS if name not in table.columns]:
            raise InputError(f"has no column {missing[0]}; expected a reviewer's sheet", path=sheet.shown, line=1)
        for line, (package, zh_id, _, english, correct) in table.rows(SHEET_COLUMNS):
            pair, right = packages.get(package, {}).get(zh_id), answer_of(correct)
            found = judged.setdefault(package, {}).setdefault(sheet.shown, {})
            now = pair.english if pair else ""
            for is_right, problem in (
                (pair, f"package {package} has no query {zh_id}"),
                (english.strip() == now, f"judges {english!r}, but the package now has {now!r}; draw a new sheet"),
                (right is not None, f"expected 1 or 0 in the column correct, found {correct!r}"),
                (zh_id not in found, f"the query {zh_id} is judged twice"),
            ):
                if not is_right:
                    raise InputError(problem, path=sheet.shown, line=line)
            found[zh_id] = bool(right)
    return {
        package: (
            len(content),
            judge(len(content), {who: [*each.values()] for who, each in judged[package].items()}, rule),
        )
        for package, content in packages.items()
    }
