"""Translate queries by hand, for the cross-lingual set.

`export` writes packages of 1,000 queries, one tab-separated file (package, id, zh, machine_translation, english): the
translators fill in, or correct, `english`. `review` draws 100 random pairs of each finished package for each of two
reviewers, a sheet each (package, id, zh, english, correct): the reviewer fills in `correct` with 1 or 0. `import`
builds the set, as `add crosslingual` does, when every package's mean accuracy is at least 93 %; else it prints which
packages are refused and exits with 1.

example:
  python -m builders annotate translations export --release build/sample --split dev test --out packages.tsv
  python -m builders annotate translations review --source packages.tsv --release build/sample --out review.tsv --seed 1
  python -m builders annotate translations import --source packages.tsv --reviews review.1.tsv review.2.tsv \\
      --release build/sample --out build/with-english
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from builders.add.crosslingual import Pair, build_crosslingual, open_translations, print_set
from builders.annotate.quality import PACKAGE, Acceptance, Verdict, add_acceptance, answer_of, judge, percent
from builders.core.command import add_format, whole_number
from builders.core.errors import InputError, log
from builders.core.files import atomic_text, sha256_of
from builders.core.sampling import draw
from builders.sources.encoding import CHOICES
from builders.sources.files import Source
from builders.sources.tables import find_tables, open_table
from builders.store.layout import SPLITS
from builders.store.table3 import round_stat

PACKAGE_COLUMNS = ("package", "id", "zh", "machine_translation", "english")
SHEET_COLUMNS = ("package", "id", "zh", "english", "correct")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["export", "review", "import"])
    parser.add_argument("--source", nargs="+", type=Path, metavar="TABLE", help="review, import: the packages")
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="it holds the Chinese queries")
    parser.add_argument("--out", type=Path, required=True, metavar="OUT", help="a .tsv file; import: the new release")
    parser.add_argument("--encoding", choices=CHOICES, default="auto", help="default: told by the bytes")
    export = parser.add_argument_group("export")
    export.add_argument("--split", nargs="+", choices=SPLITS, help="splits to translate (default: all there are)")
    export.add_argument("--size", type=whole_number(1), metavar="N", help="queries of a split at random (all)")
    export.add_argument(
        "--package-size", type=whole_number(1), default=PACKAGE, metavar="N", help=f"default: {PACKAGE}"
    )
    export.add_argument("--translations", nargs="+", type=Path, metavar="TABLE", help="a machine's, to be corrected")
    control = parser.add_argument_group("review and import")
    control.add_argument("--reviews", nargs="+", type=Path, metavar="SHEET", help="one filled-in sheet a reviewer")
    add_acceptance(control, "--pairs")
    parser.add_argument("--seed", type=int, default=0, help="of every random choice (default: 0)")
    add_format(parser)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int | None:
    needed = {"export": (), "review": ("source",), "import": ("source", "reviews")}[args.action]
    if missing := [name for name in needed if getattr(args, name) is None]:
        args.usage_error(f"{args.action} needs --{missing[0]}")
    return {"export": _export, "review": _review, "import": _import}[args.action](args)


def _export(args: argparse.Namespace) -> None:
    _, splits, pairs = open_translations(args.release, args.translations or (), args.encoding)
    chosen = [split for split in SPLITS if split in (args.split or splits)]
    if absent := [split for split in chosen if split not in splits]:
        raise InputError(f"has no queries of the split {absent[0]}", path=args.release)
    machine: dict[str, str] = {}
    for pair in pairs:
        machine.setdefault(pair.zh_id, pair.english)  # of several, the first
    queries = []
    for split in chosen:
        drawn = draw(splits[split], args.size or len(splits[split]), args.seed)
        queries.append((split, {zh_id: text for zh_id, text in splits[split].items() if zh_id in drawn}))
    packages = write_packages(args.out, queries, args.package_size, machine)
    print(f"{sum(len(texts) for _, texts in queries):,} queries in {packages:,} packages: {args.out}")


def _review(args: argparse.Namespace) -> None:
    _, splits, pairs = open_translations(args.release, args.source, args.encoding)
    texts = {zh_id: text for texts in splits.values() for zh_id, text in texts.items()}
    for sheet in write_sheets(args.out, pairs, texts, _rule(args), args.seed):
        print(sheet)


def _import(args: argparse.Namespace) -> int | None:
    """Build the set from reviewed packages; return 1 where one of them is refused."""
    base, splits, pairs = open_translations(args.release, args.source, args.encoding)
    rule, sheets = _rule(args), find_tables(args.reviews)
    verdicts = review_packages(pairs, sheets, rule, args.encoding)
    if refused := [verdict for verdict in verdicts if verdict.refusal]:
        _print_verdicts(verdicts, args.format)
        for verdict in refused:
            log.error("package %s %s: revise it, and review it again", verdict.package, verdict.refusal)
        return 1
    options = {
        **{"action": "import", "encoding": args.encoding, "reviewers": rule.reviewers, "pairs": rule.items},
        "min_accuracy": str(args.min_accuracy),
    }
    sources = [*find_tables(args.source), *sheets]
    stats = build_crosslingual(pairs, splits, base, args.out, options, sources, as_stats(verdicts))
    if args.format != "json":
        _print_verdicts(verdicts, "text")
    print_set(stats, args)
    return None


def _rule(args: argparse.Namespace) -> Acceptance:
    return Acceptance(args.reviewers, args.pairs, args.min_accuracy / 100)


def _print_verdicts(verdicts: Sequence[Verdict], form: str) -> None:
    if form == "json":
        print(json.dumps({"packages": as_stats(verdicts)}, ensure_ascii=False, indent=1))
        return
    for verdict in verdicts:
        accuracy = "-" if verdict.accuracy is None else percent(verdict.accuracy)
        outcome = f"refused: {verdict.refusal}" if verdict.refusal else "accepted"
        print(f"package {verdict.package}: {verdict.size:,} queries, accuracy {accuracy}, {outcome}")


def as_stats(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """The packages as ``stats.json`` has them."""
    return [
        {
            "package": verdict.package,
            "queries": verdict.size,
            "reviews": [{"right": right, "judged": judged} for right, judged in verdict.reviews.values()],
            "accuracy": None if verdict.accuracy is None else round_stat(float(verdict.accuracy)),
            "accepted": not verdict.refusal,
        }
        for verdict in verdicts
    ]


def write_packages(
    path: Path, queries: Iterable[tuple[str, Mapping[str, str]]], size: int, translations: Mapping[str, str]
) -> int:
    """Write the queries of each split (name, text by id) in packages of ``size``; returns the number of packages."""
    packages = 0
    with atomic_text(path) as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(PACKAGE_COLUMNS)
        for split, texts in queries:
            for number, (zh_id, text) in enumerate(texts.items()):
                machine = translations.get(zh_id, "")
                writer.writerow([f"{split}-{number // size + 1:03d}", zh_id, text, machine, machine])
            packages += -(-len(texts) // size)
    return packages


def write_sheets(
    path: Path, pairs: Sequence[Pair], texts: Mapping[str, str], rule: Acceptance, seed: int
) -> list[Path]:
    """Draw ``rule.items`` pairs of each package for every reviewer, each on their own; returns the sheets' paths."""
    packages = by_package(pairs)
    sheets = []
    for reviewer in range(1, rule.reviewers + 1):
        sheet = path.with_name(f"{path.stem}.{reviewer}{path.suffix}")
        with atomic_text(sheet) as file:
            writer = csv.writer(file, delimiter="\t", lineterminator="\n")
            writer.writerow(SHEET_COLUMNS)
            for package, content in packages.items():
                chosen = draw(content, rule.items, f"{seed} {reviewer} {package}")
                for zh_id, pair in content.items():
                    if zh_id in chosen:
                        writer.writerow([package, zh_id, texts[zh_id], pair.english, ""])
        sheets.append(sheet)
    return sheets


def by_package(pairs: Iterable[Pair]) -> dict[str, dict[str, Pair]]:
    """The pairs of each package by query id. Raises :class:`InputError` for a pair in none, and for a query twice."""
    packages: dict[str, dict[str, Pair]] = {}
    seen: dict[str, Pair] = {}
    for pair in pairs:
        first = seen.setdefault(pair.zh_id, pair)
        problem = ""
        if not pair.package:
            problem = "no package; expected the table that `annotate translations export` wrote"
        elif not pair.english:
            problem = f"the query {pair.zh_id} of package {pair.package} has no English text"
        elif first is not pair:
            problem = f"the query {pair.zh_id} again, after line {first.line} of {first.source.name}"
        if problem:
            raise InputError(problem, path=pair.source.shown, line=pair.line)
        packages.setdefault(pair.package, {})[pair.zh_id] = pair
    return packages


def review_packages(pairs: Iterable[Pair], sheets: Sequence[Source], rule: Acceptance, encoding: str) -> list[Verdict]:
    """The verdict on each package by the reviewers' sheets: a sheet is a reviewer.

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
        table = open_table(sheet, encoding, spreadsheet=True)
        if missing := [name for name in SHEET_COLUMNS if name not in table.columns]:
            raise InputError(f"no column {missing[0]}; expected a reviewer's sheet", path=sheet.shown, line=1)
        for line, (package, zh_id, _, english, correct) in table.rows(SHEET_COLUMNS):
            pair = packages.get(package, {}).get(zh_id)
            right = answer_of(correct)
            found = judged.setdefault(package, {}).setdefault(sheet.shown, {})
            problem = ""
            if pair is None:
                problem = f"package {package} has no query {zh_id}"
            elif english.strip() != pair.english:
                problem = f"judges {english!r}, the package has {pair.english!r} by now; draw a new sheet"
            elif right is None:
                problem = f"expected 1 or 0 in the column correct, found {correct!r}"
            elif zh_id in found:
                problem = f"the query {zh_id} is judged twice"
            if problem:
                raise InputError(problem, path=sheet.shown, line=line)
            found[zh_id] = bool(right)
    names = {sheet.shown: sheet.name for sheet in sheets}
    verdicts = []
    for package, content in packages.items():
        reviews = {names[shown]: list(found.values()) for shown, found in judged[package].items()}
        verdicts.append(judge(package, len(content), reviews, rule))
    log.info("%d packages reviewed, %d accepted", len(verdicts), sum(not verdict.refusal for verdict in verdicts))
    return verdicts
