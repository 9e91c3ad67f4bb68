"""Translating queries by hand (Appendix A.3): packages for the translators, sheets for the reviewers, both read back.

Packages are one tab-separated file (package, id, zh, machine_translation, english), quoted as spreadsheets do: the
translators fill in, or correct, ``english``. A reviewer's sheet (package, id, zh, english, correct) holds random pairs
of every package; the reviewer fills in ``correct`` with 1 or 0.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from builders.annotate.quality import Acceptance, Verdict, answer_of, judge
from builders.common.command import InputError, log
from builders.common.files import atomic_text, sha256_of
from builders.common.sampling import draw
from builders.crosslingual.pairs import Pair
from builders.sources.files import Source
from builders.sources.tables import open_table

PACKAGE_COLUMNS = ("package", "id", "zh", "machine_translation", "english")
SHEET_COLUMNS = ("package", "id", "zh", "english", "correct")


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
            problem = "no package; expected the table that `crosslingual export` wrote"
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
