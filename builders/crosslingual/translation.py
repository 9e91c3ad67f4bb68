"""Translating queries by hand: packages for the translators, sheets for the reviewers, and reading both back (A.3).

Packages are one tab-separated file (package, id, zh, machine_translation, english), quoted as spreadsheets do: the
translators fill in, or correct, ``english``. A reviewer's sheet (package, id, zh, english, correct) holds random pairs
of every package; the reviewer fills in ``correct`` with 1 or 0.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builders.common.command import InputError, log
from builders.common.files import atomic_text, sha256_of
from builders.common.sampling import draw
from builders.crosslingual.review import Rule, Verdict, judge
from builders.sources.files import Source
from builders.sources.tables import Table, open_table
from builders.store.ids import text_id

PACKAGE_COLUMNS = ("package", "id", "zh", "machine_translation", "english")
SHEET_COLUMNS = ("package", "id", "zh", "english", "correct")
_KEYS = ("id", "_id", "zh_id", "query_id", "query-id", "question_id", "qid")
_CHINESE = ("zh", "query_zh", "chinese", "中文", "text", "query", "question")
_ENGLISH = ("english", "en", "query_en", "translation", "英文")
_RIGHT = {"1": True, "yes": True, "true": True, "对": True, "是": True} | {
    "0": False,
    "no": False,
    "false": False,
    "错": False,
    "否": False,
}


@dataclass(frozen=True)
class Pair:
    """One translated query as a table has it; ``package`` is empty in a plain table, ``english`` may be."""

    zh_id: str
    english: str
    package: str
    source: Source
    line: int


def read_pairs(sources: Sequence[Source], known: Mapping[str, str], encoding: str) -> Iterator[Pair]:
    """The rows of translation tables: with a header, or two columns (query id or Chinese text, English text) without.

    ``known`` maps the release's query ids to their texts. A key that is none of these ids is taken as a Chinese text.

    Raises :class:`InputError` for a table of other columns, and for a row whose id and Chinese text belong to
    different queries.
    """
    for source in sources:
        table = open_table(source, encoding, spreadsheet=True)
        names = _names(table)
        for line, row in table.rows(names):
            fields = dict(zip(names, row, strict=True)) if names else {"key": row[0], "english": row[1]}
            values = {role: fields[name] for role, name in _roles(names or ["key", "english"]).items()}
            key, chinese = values.get("key", ""), values.get("zh", "")
            if not key:  # a column of Chinese texts alone may hold ids, too
                key, chinese = chinese, ""
            zh_id = key if key in known else text_id(key)
            # A spreadsheet turns an id of digits alone into a number: such a row must not get lost, or go astray.
            if key and chinese and key != text_id(chinese) and (key in known or text_id(chinese) in known):
                expected = f"the id of {chinese!r} is {text_id(chinese)}, here {key!r}"
                raise InputError(expected, path=source.shown, line=line)
            yield Pair(zh_id, values["english"].strip(), fields.get("package", ""), source, line)


def _roles(names: Sequence[str]) -> dict[str, str]:
    """The columns that hold key, Chinese and English text, as far as they are there."""
    found = {}
    for role, words in (("key", ("key", *_KEYS)), ("zh", _CHINESE), ("english", _ENGLISH)):
        if name := next((word for word in words if word in names), None):
            found[role] = name
    return found


def _names(table: Table) -> list[str] | None:
    """The table's column names; None where it has two columns and no header."""
    roles = _roles(table.columns)
    if "english" in roles and ("key" in roles or "zh" in roles):
        return table.columns
    if len(table.columns) == 2:
        return None
    raise InputError(
        "expected columns named id or zh, and english, or two columns: query id or Chinese text, English text;"
        f" found {', '.join(table.columns)[:200]}",
        path=table.source.shown,
        line=1,
    )


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


def write_sheets(path: Path, pairs: Sequence[Pair], texts: Mapping[str, str], rule: Rule, seed: int) -> list[Path]:
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


def review(pairs: Iterable[Pair], sheets: Sequence[Source], rule: Rule, encoding: str) -> list[Verdict]:
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
            right = _RIGHT.get(correct.strip().lower())
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
