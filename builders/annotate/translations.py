"""Packages of translated queries, with the review and acceptance of Appendix A.3."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from builders.add.crosslingual import Translation, build_crosslingual, describe_splits, join_splits, open_translations
from builders.annotate.rounds import QualityRule, answer_of
from builders.annotate.verdicts import Verdict, fraction_rounded_down, judge_package, percent_rounded_down
from builders.core.errors import InputError, log
from builders.core.paths import kind_of, real_path
from builders.core.read_files import sha256_of
from builders.core.results import Report, Table
from builders.core.sampling import draw_sample
from builders.core.tables import round_stat
from builders.core.write_files import write_text
from builders.sources.source_files import Source
from builders.sources.source_tables import find_tables, open_table
from builders.store.names import SPLITS

PACKAGE_COLUMNS = ("package", "id", "zh", "machine_translation", "english")
SHEET_COLUMNS = ("package", "id", "zh", "english", "correct")


def write_translation_packages(
    out_path: Path,
    release_path: Path,
    *,
    splits: Sequence[str],
    package_size: int,
    machine_tables: Sequence[Path],
) -> tuple[int, int]:
    """Write the queries of ``splits`` (empty: of all splits) as packages. Return (number of queries, of packages).

    ``machine_tables`` have machine translations, which translators may correct. The English text of a query without a
    machine translation is empty. Raises :class:`InputError` if the release lacks a split.
    """
    _, texts_by_split, translations = open_translations(release_path, machine_tables, "auto")
    exported_splits = [split for split in SPLITS if split in (splits or texts_by_split)]
    for split in exported_splits:
        if split not in texts_by_split:
            raise InputError(f"has no queries of the split {split}", path=release_path)
    # In reversed order, the first translation of a query wins.
    machine_texts = {translation.zh_id: translation.english for translation in reversed(translations)}
    rows = []
    packages = set()
    for split in exported_splits:
        for number, (zh_id, chinese) in enumerate(texts_by_split[split].items()):
            package = f"{split}-{number // package_size + 1:03d}"
            packages.add(package)
            machine_text = machine_texts.get(zh_id, "")
            # Translators correct the second text, in the column ``english``.
            rows.append((package, zh_id, chinese, machine_text, machine_text))
    write_sheet(out_path, PACKAGE_COLUMNS, rows)
    return len(rows), len(packages)


def write_sheet(table_path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a tab-separated table that people fill in.

    Raises :class:`InputError` if the file exists with another content, because people may have filled it in.
    """
    content = _tab_separated(columns, rows)
    if kind_of(table_path) != "stream" and table_path.exists() and table_path.read_bytes() != content.encode():
        problem = "exists with another content, perhaps people's work; choose another name, or delete the file"
        raise InputError(problem, path=table_path)
    write_text(table_path, content)


def write_rows(table_path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a tab-separated table."""
    write_text(table_path, _tab_separated(columns, rows))


def _tab_separated(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def write_review_sheets(
    out_path: Path, release_path: Path, *, tables: Sequence[Path], queries_per_package: int
) -> list[Path]:
    """Write a sheet with random queries of each package for each reviewer. Return the paths of the sheets.

    The number of the reviewer is added to the name of ``out_path``.
    """
    _, texts_by_split, translations = open_translations(release_path, tables, "auto")
    chinese_texts = join_splits(texts_by_split)
    packages = by_package(translations)
    rule = QualityRule()
    sheet_paths = []
    for reviewer in range(1, rule.reviewers + 1):
        rows = []
        for package, package_translations in packages.items():
            # The draw differs between reviewers, so that together they review more queries.
            drawn_ids = draw_sample(package_translations, queries_per_package, f"{rule.seed} {reviewer} {package}")
            for zh_id, translation in package_translations.items():
                if zh_id in drawn_ids:
                    rows.append((package, zh_id, chinese_texts[zh_id], translation.english, ""))
        sheet_path = out_path.with_name(f"{out_path.stem}.{reviewer}{out_path.suffix}")
        write_sheet(sheet_path, SHEET_COLUMNS, rows)
        sheet_paths.append(sheet_path)
    return sheet_paths


def import_translations(
    out_path: Path,
    release_path: Path,
    *,
    tables: Sequence[Path],
    reviews: Sequence[Path],
    queries_per_package: int,
) -> Report:
    """Build the cross-lingual set from reviewed packages. If a package is refused, only report the verdicts."""
    base, texts_by_split, translations = open_translations(release_path, tables, "auto")
    rule = QualityRule(review_pairs=queries_per_package)
    sheets = find_tables(reviews)
    verdicts = review_packages(translations, sheets, rule)
    package_figures = []
    lines = []
    for package, (query_count, verdict) in verdicts.items():
        package_figures.append(_package_figures(package, query_count, verdict))
        lines.append(_package_line(package, query_count, verdict))
    package_table = _package_table(verdicts)

    # One refused package is enough: the set has all translations, or is not built.
    is_refused = False
    for package, (_, verdict) in verdicts.items():
        if verdict.refusal:
            is_refused = True
            log.error("package %s %s; revise the package, and review it again", package, verdict.refusal)
    if is_refused:
        return Report({"packages": package_figures}, "\n".join(lines), tables=[package_table], failed=True)

    # The manifest records the rule of acceptance.
    options = {
        "action": "import",
        "encoding": "auto",
        "reviewers": rule.reviewers,
        "pairs": rule.review_pairs,
        "min_accuracy": rule.min_accuracy,
    }
    sources = find_tables(tables) + sheets
    stats = build_crosslingual(translations, texts_by_split, base, out_path, options, sources, package_figures)
    split_lines, split_rows = describe_splits(stats)
    lines += split_lines
    lines.append(f"release: {out_path}")
    split_table = Table(("split", "queries", "words per query"), split_rows, "English queries")
    return Report(stats, "\n".join(lines), tables=[package_table, split_table])


def _package_figures(package: str, query_count: int, verdict: Verdict) -> dict[str, Any]:
    """Return the row of a package for the report and ``stats.json``."""
    accuracy = None
    if verdict.accuracy is not None:
        accuracy = round_stat(float(verdict.accuracy))
    return {
        "package": package,
        "queries": query_count,
        "reviews": [{"right": right, "judged": judged} for right, judged in verdict.reviews.values()],
        "accuracy": accuracy,
        "accepted": not verdict.refusal,
    }


def _package_line(package: str, query_count: int, verdict: Verdict) -> str:
    accuracy = "-" if verdict.accuracy is None else percent_rounded_down(verdict.accuracy)
    return f"package {package}: {query_count:,} queries, accuracy {accuracy}, {_outcome(verdict)}"


def _package_table(verdicts: Mapping[str, tuple[int, Verdict]]) -> Table:
    rows = []
    for package, (query_count, verdict) in verdicts.items():
        rows.append((package, query_count, fraction_rounded_down(verdict.accuracy), _outcome(verdict)))
    columns = ("package", "queries", "accuracy", "outcome")
    return Table(columns, rows, "packages", percent_columns=("accuracy",))


def _outcome(verdict: Verdict) -> str:
    return f"refused: {verdict.refusal}" if verdict.refusal else "accepted"


def by_package(translations: Iterable[Translation]) -> dict[str, dict[str, Translation]]:
    """Return package -> query id -> translation.

    Raises :class:`InputError` for a translation without package or English text, and for a repeated query.
    """
    packages: dict[str, dict[str, Translation]] = {}
    first_by_query: dict[str, Translation] = {}
    for translation in translations:
        first = first_by_query.setdefault(translation.zh_id, translation)
        problem = ""
        if not translation.package:
            problem = "the column package is empty; expected the table of `annotate translations export`"
        elif not translation.english:
            problem = f"the query {translation.zh_id} of package {translation.package} has no English text"
        elif first is not translation:
            problem = f"the query {translation.zh_id} repeats line {first.line} of {first.source.name}; remove one"
        if problem:
            raise InputError(problem, path=translation.source.shown, line=translation.line)
        packages.setdefault(translation.package, {})[translation.zh_id] = translation
    return packages


def review_packages(
    translations: Iterable[Translation], sheets: Sequence[Source], rule: QualityRule
) -> dict[str, tuple[int, Verdict]]:
    """Return package -> (number of queries, verdict). Each sheet is from one reviewer.

    Raises :class:`InputError` for a repeated sheet, for a row that has no judgment, repeats a query or is in no
    package, and if the English text changed after the sheet was drawn.
    """
    packages = by_package(translations)
    # Package -> sheet -> query id -> True if the reviewer finds the translation right.
    answers_by_package: dict[str, dict[str, dict[str, bool]]] = {package: {} for package in packages}
    sheets_by_file: dict[tuple[Path, str | None], Source] = {}
    sheets_by_content: dict[str, Source] = {}
    for sheet in sheets:
        # The same sheet twice would count as two reviewers.
        same_sheet = sheets_by_file.setdefault((real_path(sheet.path), sheet.member), sheet)
        if same_sheet is not sheet:
            raise InputError(f"is the same sheet as {same_sheet.name}; expected another reviewer's", path=sheet.shown)
        # Two reviewers of a small package get the same queries, and may agree on all of them.
        equal_sheet = sheets_by_content.setdefault(sha256_of(sheet.path) + (sheet.member or ""), sheet)
        if equal_sheet is not sheet:
            log.warning(
                "%s: has the same content as %s; expected the sheets of two people", sheet.shown, equal_sheet.name
            )
        table = open_table(sheet, spreadsheet=True)
        for column in SHEET_COLUMNS:
            if column not in table.columns:
                problem = f"has no column {column}; expected a reviewer's sheet"
                raise InputError(problem, path=sheet.shown, line=table.first_line)
        for line, (package, zh_id, _, english, correct) in table.rows(SHEET_COLUMNS):
            sheet_answers = answers_by_package.setdefault(package, {}).setdefault(sheet.shown, {})
            translation = packages.get(package, {}).get(zh_id)
            answer = answer_of(correct)
            problem = ""
            if translation is None:
                problem = f"package {package} has no query {zh_id}"
            elif english.strip() != translation.english:
                problem = f"judges {english!r}, but the package now has {translation.english!r}; draw a new sheet"
            elif answer is None:
                problem = f"expected 1 or 0 in the column correct, found {correct!r}"
            elif zh_id in sheet_answers:
                problem = f"the query {zh_id} is judged twice"
            if problem:
                raise InputError(problem, path=sheet.shown, line=line)
            sheet_answers[zh_id] = bool(answer)

    # Every sheet is read, so each package can be decided.
    verdicts: dict[str, tuple[int, Verdict]] = {}
    for package, package_translations in packages.items():
        query_count = len(package_translations)
        reviews: dict[str, list[bool]] = {}
        for sheet_name, sheet_answers in answers_by_package[package].items():
            reviews[sheet_name] = list(sheet_answers.values())
        verdicts[package] = (query_count, judge_package(query_count, reviews, rule))
    return verdicts
