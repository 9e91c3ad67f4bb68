"""Translate queries by hand, for the cross-lingual set.

`export` writes packages of 1,000 queries, one tab-separated file (package, id, zh, machine_translation, english): the
translators fill in, or correct, `english`. `review` draws 100 random pairs of each finished package for each of two
reviewers, a sheet each (package, id, zh, english, correct): the reviewer fills in `correct` with 1 or 0. `import`
builds the set, as `add crosslingual` does, when every package's mean accuracy is at least 93 %; else it prints which
packages are refused and exits with 1.

example:
  python -m builders annotate translations export --release build/sample --split dev test --out packages.tsv
  python -m builders annotate translations review --source packages.tsv --release build/sample --out review.tsv
  python -m builders annotate translations import --source packages.tsv --reviews review.1.tsv review.2.tsv \\
      --release build/sample --out build/with-english
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from builders.add.crosslingual import Pair, build_crosslingual, open_translations, print_set
from builders.annotate.review import Verdict, judge, percent
from builders.annotate.rounds import PACKAGE, Rule, answer_of
from builders.core.command import add_format, whole_number
from builders.core.errors import InputError, log
from builders.core.files import atomic_text, sha256_of
from builders.core.sampling import draw
from builders.core.tables import print_result
from builders.sources.files import Source
from builders.sources.tables import find_tables, open_table
from builders.store.layout import SPLITS
from builders.store.table3 import round_stat

PACKAGE_COLUMNS = ("package", "id", "zh", "machine_translation", "english")
SHEET_COLUMNS = ("package", "id", "zh", "english", "correct")
_NEEDED = {"export": (), "review": ("source",), "import": ("source", "reviews")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    number, items = whole_number(1), Rule().review_pairs
    parser.add_argument("action", choices=[*_NEEDED])
    parser.add_argument("--source", nargs="+", type=Path, metavar="TABLE", help="review, import: the packages")
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="it holds the Chinese queries")
    parser.add_argument("--out", type=Path, required=True, metavar="OUT", help="a .tsv file; import: the new release")
    export = parser.add_argument_group("export")
    export.add_argument("--split", nargs="+", choices=SPLITS, help="splits to translate (default: all there are)")
    export.add_argument("--package-size", type=number, default=PACKAGE, metavar="N", help=f"default: {PACKAGE}")
    export.add_argument("--translations", nargs="+", type=Path, metavar="TABLE", help="a machine's, to be corrected")
    control = parser.add_argument_group("review and import")
    control.add_argument("--reviews", nargs="+", type=Path, metavar="SHEET", help="one filled-in sheet a reviewer")
    control.add_argument(
        "--pairs", type=number, default=items, metavar="N", help=f"of a package, for each reviewer (default: {items})"
    )
    add_format(parser)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int | None:
    if missing := [name for name in _NEEDED[args.action] if getattr(args, name) is None]:
        args.usage_error(f"{args.action} needs --{missing[0]}")
    return {"export": _export, "review": _review, "import": _import}[args.action](args)


def _export(args: argparse.Namespace) -> None:
    """Write the queries of each split in packages, with a machine's translations where there are any."""
    _, splits, pairs = open_translations(args.release, args.translations or (), "auto")
    chosen = [split for split in SPLITS if split in (args.split or splits)]
    if absent := [split for split in chosen if split not in splits]:
        raise InputError(f"has no queries of the split {absent[0]}", path=args.release)
    machine = {pair.zh_id: pair.english for pair in reversed(pairs)}  # of several, the first
    rows = [
        (f"{split}-{number // args.package_size + 1:03d}", zh_id, text, *[machine.get(zh_id, "")] * 2)
        for split in chosen
        for number, (zh_id, text) in enumerate(splits[split].items())
    ]
    _write(args.out, PACKAGE_COLUMNS, rows)
    print(f"{len(rows):,} queries in {len({row[0] for row in rows}):,} packages: {args.out}")


def _write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    with atomic_text(path) as file:
        csv.writer(file, delimiter="\t", lineterminator="\n").writerows([columns, *rows])


def _review(args: argparse.Namespace) -> None:
    """Draw pairs of each package for every reviewer, each on their own."""
    _, splits, pairs = open_translations(args.release, args.source, "auto")
    texts = {zh_id: text for texts in splits.values() for zh_id, text in texts.items()}
    for reviewer in range(1, Rule().reviewers + 1):
        sheet = args.out.with_name(f"{args.out.stem}.{reviewer}{args.out.suffix}")
        rows = []
        for package, content in by_package(pairs).items():
            chosen = draw(content, args.pairs, f"{Rule().seed} {reviewer} {package}")
            rows += [(package, n, texts[n], pair.english, "") for n, pair in content.items() if n in chosen]
        _write(sheet, SHEET_COLUMNS, rows)
        print(sheet)


def _import(args: argparse.Namespace) -> int | None:
    """Build the set from reviewed packages; return 1 where one of them is refused."""
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
            log.error("package %s %s: revise it, and review it again", package, verdict.refusal)
        lines.append(f"package {package}: {size:,} queries, accuracy {accuracy}, {outcome}")
    if is_refused or args.format == "text":
        print_result({"packages": packages}, "\n".join(lines), args.format)
    if is_refused:
        return 1
    options = {"action": "import", "encoding": "auto", "reviewers": rule.reviewers, "pairs": rule.review_pairs}
    options |= {"min_accuracy": rule.min_accuracy}
    sources = [*find_tables(args.source), *sheets]
    print_set(build_crosslingual(pairs, splits, base, args.out, options, sources, packages), args)
    return None


def by_package(pairs: Iterable[Pair]) -> dict[str, dict[str, Pair]]:
    """Return the pairs of each package by query id. :class:`InputError` for a pair in none, and for a query twice."""
    packages: dict[str, dict[str, Pair]] = {}
    seen: dict[str, Pair] = {}
    for pair in pairs:
        first = seen.setdefault(pair.zh_id, pair)
        for is_right, problem in (
            (pair.package, "no package; expected the table that `annotate translations export` wrote"),
            (pair.english, f"the query {pair.zh_id} of package {pair.package} has no English text"),
            (first is pair, f"the query {pair.zh_id} again, after line {first.line} of {first.source.name}"),
        ):
            if not is_right:
                raise InputError(problem, path=pair.source.shown, line=pair.line)
        packages.setdefault(pair.package, {})[pair.zh_id] = pair
    return packages


def review_packages(pairs: Iterable[Pair], sheets: Sequence[Source], rule: Rule) -> dict[str, tuple[int, Verdict]]:
    """Return the size of each package, and the verdict on it by the reviewers' sheets: a sheet is a reviewer.

    Raises:
        InputError: for a sheet given twice, a row that is not judged, judges a pair twice or one that is in no
            package, and for one that was drawn before its English text was changed.
    """
    packages = by_package(pairs)
    judged: dict[str, dict[str, dict[str, bool]]] = {package: {} for package in packages}
    seen: dict[str, Source] = {}
    for sheet in sheets:
        if (first := seen.setdefault(sha256_of(sheet.path) + (sheet.member or ""), sheet)) is not sheet:
            raise InputError(f"the same sheet as {first.name}; expected one of another reviewer", path=sheet.shown)
        table = open_table(sheet, spreadsheet=True)
        if missing := [name for name in SHEET_COLUMNS if name not in table.columns]:
            raise InputError(f"no column {missing[0]}; expected a reviewer's sheet", path=sheet.shown, line=1)
        for line, (package, zh_id, _, english, correct) in table.rows(SHEET_COLUMNS):
            pair, right = packages.get(package, {}).get(zh_id), answer_of(correct)
            found = judged.setdefault(package, {}).setdefault(sheet.shown, {})
            now = pair.english if pair else ""
            for is_right, problem in (
                (pair, f"package {package} has no query {zh_id}"),
                (english.strip() == now, f"judges {english!r}, the package has {now!r} by now; draw a new sheet"),
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
