"""Write the pairs of a round for Label Studio, as sheets and as JSON lines, and import judgments from these formats."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from builders.annotate.annotate_options import PACKAGE_SIZE
from builders.annotate.pool import read_pool
from builders.annotate.rounds import (
    PACKAGES,
    RELEVANCE,
    ROUND,
    STUDIO,
    AnnotationRound,
    Asked,
    Judgment,
    Kind,
    Label,
    LabelQuestion,
    Package,
    PackageItem,
    Pair,
    PairIds,
    QualityRule,
    Time,
    Version,
    add_judgments,
    fingerprint_of,
    items_of,
    open_round,
    write_round,
)
from builders.core.errors import InputError, log
from builders.core.folders import new_directory, work_beside
from builders.core.highlight import common_terms, mark_terms
from builders.core.read_files import first_character, read_whole, sha256_of
from builders.core.typed import Count, convert_to, json_lines, json_of
from builders.core.write_files import write_text
from builders.sources.source_tables import find_tables, open_table
from builders.store.reader import Release

COLUMNS = ("package", "version", "kind", "query-id", "corpus-id", "query", "passage", "said", "label", "note")
_REQUIRED_COLUMNS = ("package", "version", "kind", "query-id", "corpus-id", "label")
_TEXT_COLUMNS = ("query", "passage", "said")  # for people to read; the import ignores them
_FORMULA_STARTS = tuple("=+-@\t\r")  # first characters of a formula in spreadsheets
_SHOWN_CHARACTERS = 80  # of a wrong value in an error
# A key such as 1 or 0 selects a choice. Label Studio's Ctrl+Enter submits the task. Exports have the choice's alias.
_CONFIG = """\
<View>
  <Style>
    mark {{background: #ffe58f; color: inherit; padding: 0 2px; border-radius: 2px}}
    .query {{font-size: 1.25em; font-weight: 600}}
    .passage {{line-height: 1.8; max-width: 48em}}
    .said {{color: #888}}
  </Style>
  <Header value="查询" size="5"/>
  <View className="query"><HyperText name="query" value="$query_html" inline="true"/></View>
  <Header value="段落" size="5"/>
  <View className="passage"><HyperText name="passage" value="$passage_html" inline="true"/></View>
  <View className="said"><Text name="said" value="$said"/></View>
  <Header value="{text}" size="5"/>
  <Choices name="label" toName="passage" choice="single-radio" required="true" showInline="true"
           requiredMessage="{hint}">
{choices}
  </Choices>
  <TextArea name="note" toName="passage" placeholder="备注（可不填）" rows="1" maxSubmissions="1" editable="true"/>
</View>
"""


class Task(PackageItem, frozen=True, rename="kebab"):
    """A pair to judge. ``said`` has the earlier votes for an adjudicator. ``label`` is the pair's label so far."""

    package: str
    version: int
    kind: Kind = "annotation"
    said: str = ""
    label: int | None = None


def tasks_of(
    round_path: Path,
    package: Package,
    judgment_kind: Kind,
    pair_fields: Mapping[Pair, Mapping[str, Any]],
) -> list[Task]:
    """Return tasks for the pairs of a package that are keys of ``pair_fields``, in the package's order.

    ``pair_fields`` maps a pair to further fields of its task: ``said``, ``label`` or none.
    """
    tasks = []
    for item in items_of(round_path, package):
        if item.pair in pair_fields:
            item_fields = msgspec.structs.asdict(item)
            task = Task(
                **item_fields,
                package=package.name,
                version=package.version,
                kind=judgment_kind,
                **pair_fields[item.pair],
            )
            tasks.append(task)
    return tasks


def config_of(question: LabelQuestion) -> str:
    """Return Label Studio's labelling interface for a question. A tooltip explains each choice."""
    choice_lines = []
    for choice in question.choices:
        # An annotator clicks the choice or presses its key. Exports have the alias in place of the value.
        tooltip = f' hint="{choice.means}"' if choice.means else ""
        choice_lines.append(
            f'    <Choice value="{choice.name}" alias="{choice.label}" hotkey="{choice.label}"{tooltip}/>'
        )
    return _CONFIG.format(text=question.text, hint=question.hint, choices="\n".join(choice_lines))


def write_package(
    folder: Path,
    file_stem: str,
    tasks: Sequence[Task],
    studio_folder: Path | None = None,
) -> None:
    """Write ``STEM.csv``, ``.jsonl`` and ``.json`` to ``folder``. ``studio_folder`` is another folder for ``.json``."""
    write_sheet(folder / f"{file_stem}.csv", tasks)
    write_lines(folder / f"{file_stem}.jsonl", tasks)
    write_tasks((studio_folder or folder) / f"{file_stem}.json", tasks)


def write_sheet(sheet_path: Path, tasks: Sequence[Task]) -> None:
    """Write a CSV for spreadsheets: UTF-8 with a byte order mark, and no cell that would be read as a formula."""
    sheet_text = io.StringIO(newline="")
    writer = csv.writer(sheet_text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for task in tasks:
        row = msgspec.to_builtins(task)
        writer.writerow([_sheet_cell(row.get(column)) for column in COLUMNS])
    byte_order_mark = "\ufeff"
    _write_with_backup(sheet_path, byte_order_mark + sheet_text.getvalue())


def _sheet_cell(value: Any) -> str:
    """Format a value, with an apostrophe before a text that a spreadsheet would read as a formula."""
    if value is None:
        return ""
    cell = str(value)
    return f"'{cell}" if cell.startswith(_FORMULA_STARTS) else cell


def write_lines(lines_path: Path, tasks: Sequence[Task]) -> None:
    """Write the tasks as JSON lines."""
    _write_with_backup(lines_path, "".join(msgspec.json.encode(task).decode() + "\n" for task in tasks))


def _write_with_backup(path: Path, text: str) -> None:
    """Write a file that people fill in. An existing file with another text is renamed to ``NAME.1``, ``NAME.2`` ..."""
    if path.exists() and path.read_bytes() != text.encode():
        number = 1
        while path.with_name(f"{path.name}.{number}").exists():
            number += 1
        backup_path = path.with_name(f"{path.name}.{number}")
        path.rename(backup_path)
        log.warning("%s: the existing file has another text, so it was renamed to %s", path, backup_path.name)
    write_text(path, text)


def write_tasks(tasks_path: Path, tasks: Sequence[Task], model_name: str = "") -> None:
    """Write tasks as the JSON list that Label Studio imports. A task's label becomes a prediction.

    ``model_name`` names the model that gave the labels. If ``model_name`` is empty, the labels are from the package's
    previous version.
    """
    encoded_tasks = [msgspec.json.encode(_studio_task(task, model_name)).decode() for task in tasks]
    write_text(tasks_path, "[\n" + ",\n".join(encoded_tasks) + "\n]\n")


def _studio_task(task: Task, model_name: str) -> dict[str, Any]:
    """Return a task in Label Studio's format. ``model_name`` is that of :func:`write_tasks`."""
    row = msgspec.to_builtins(task)
    terms = common_terms(task.query, task.passage)
    # The plain query is for Label Studio's list of tasks, which shows no HTML.
    data = {key: row[key] for key in ("package", "version", "kind", "query-id", "corpus-id", "query", "said")}
    data["query_html"] = mark_terms(task.query, terms)
    data["passage_html"] = mark_terms(task.passage, terms)
    if task.label is None:
        return {"data": data}
    value = {"choices": [str(task.label)]}
    choice = {"from_name": "label", "to_name": "passage", "type": "choices", "value": value}
    model_version = model_name or f"version {task.version - 1}"
    return {"data": data, "predictions": [{"model_version": model_version, "result": [choice]}]}


@dataclass(frozen=True)
class ExportedTasks:
    """The numbers of pairs, queries and packages of a new round."""

    pairs: int
    queries: int
    packages: int


def export_pool(
    round_path: Path,
    release: Release,
    *,
    pool: Path,
    split: str,
    unjudged_only: bool,
    package_size: int,
    rule: QualityRule,
) -> ExportedTasks:
    """Write the pairs of a pool as the round ``round_path``, which must not exist.

    Raises :class:`InputError` if the pool has no pair to judge, or a pair that the release lacks.
    """
    passages_by_query: dict[str, list[str]] = {}
    for pooled in read_pool(pool):
        if unjudged_only and pooled.judged is not None:
            continue
        passages_by_query.setdefault(pooled.query_id, []).append(pooled.corpus_id)
    # The pairs of a query stay together. The order of the passage ids does not show a model's opinion.
    pairs: list[Pair] = []
    for query_id, passage_ids in passages_by_query.items():
        pairs += [(query_id, passage_id) for passage_id in sorted(passage_ids)]
    if not pairs:
        raise InputError("has no pair to judge; pool further runs, or omit --unjudged", path=pool)
    # The packages are cut from this order.
    package_count = make_round(round_path, release, split, pairs, pool, rule, package_size)
    return ExportedTasks(len(pairs), len(passages_by_query), package_count)


def expect_new(round_path: Path) -> None:
    """Raise :class:`InputError` if ``round_path`` is already a round."""
    if (round_path / ROUND).exists():
        # Removes the work folder of an export that was killed after it was done.
        with work_beside(round_path):
            pass
        raise InputError("is already a round, which may have judgments; expected a new path", path=round_path)


def make_round(
    round_path: Path,
    release: Release,
    split: str,
    pairs: Sequence[Pair],
    pairs_path: Path,
    rule: QualityRule,
    package_size: int = PACKAGE_SIZE,
    question: LabelQuestion = RELEVANCE,
) -> int:
    """Write the round ``round_path``, which must not exist, and return the number of its packages.

    The packages are consecutive parts of ``pairs``, with ``package_size`` pairs each. ``pairs_path`` is the file that
    the pairs come from. Raises :class:`InputError` for a pair that is not in the release.
    """
    expect_new(round_path)
    query_texts = release.texts("queries", split)
    passage_texts = release.texts("corpus", "corpus", {passage_id for _, passage_id in pairs})
    for query_id, passage_id in pairs:
        if query_id not in query_texts or passage_id not in passage_texts:
            raise InputError(
                f"has a pair {query_id} {passage_id} that queries/{split} or the corpus lacks", path=pairs_path
            )
    packages: list[Package] = []
    with new_directory(round_path, "a round", ROUND) as folder:
        write_text(folder / STUDIO / "config.xml", config_of(question))
        for start in range(0, len(pairs), package_size):
            # The last package may be smaller.
            package_pairs = pairs[start : start + package_size]
            package = Package(name=f"{split}-{len(packages) + 1:03d}", pairs=len(package_pairs))
            tasks = []
            for query_id, passage_id in package_pairs:
                query_text = query_texts[query_id]
                passage_text = passage_texts[passage_id]
                tasks.append(Task(query_id, passage_id, query_text, passage_text, package.name, package.version))
            write_package(folder / PACKAGES, package.stem, tasks, folder / STUDIO)
            packages.append(package)
        # round.json is written last, with the hash of the pairs and the fingerprint of the texts.
        annotation_round = AnnotationRound(
            format=1,
            release=release.path.resolve().name,
            fingerprint=fingerprint_of(release, split),
            split=split,
            pool=sha256_of(pairs_path),
            rule=rule,
            packages=packages,
            question=question.name,
        )
        write_round(folder, annotation_round)
    return len(packages)


class JudgmentSubject(PairIds, frozen=True, rename="kebab"):
    """The subject of a judgment in a file: pair, package, version and kind of work."""

    package: str
    version: Version
    kind: Kind


class JudgmentRow(JudgmentSubject, frozen=True, rename="kebab"):
    """One row of a file with judgments: subject and judgment. ``label`` is None for an unjudged pair."""

    label: Label | None
    annotator: str | None = None
    time: Time | None = None
    model: str | None = None
    note: str | None = None


# The following types have the parts of Label Studio's export that are imported. Other keys are ignored.


class _StudioPerson(msgspec.Struct, frozen=True):
    id: Count
    email: str = ""


class _StudioValue(msgspec.Struct, frozen=True):
    choices: list[str] = []
    text: list[str] | str = []


class _StudioResult(msgspec.Struct, frozen=True):
    value: _StudioValue
    from_name: str = ""


class _StudioAnnotation(msgspec.Struct, frozen=True):
    """One person's work on a task. ``was_cancelled`` is True if the person skipped the task."""

    result: list[_StudioResult]
    updated_at: Time
    completed_by: Count | _StudioPerson
    was_cancelled: bool = False


class _StudioTask(msgspec.Struct, frozen=True):
    data: JudgmentSubject
    annotations: list[_StudioAnnotation]


@dataclass(frozen=True)
class ImportedJudgments:
    """The numbers of judgments in the imported files, and of judgments that the round did not have."""

    judgments: int
    new: int


def import_files(
    round_path: Path,
    judgment_paths: Sequence[Path],
    annotator: str | None,
) -> ImportedJudgments:
    """Add the judgments of files to a round. ``annotator`` is the person of rows without a name.

    Raises :class:`InputError` for a row that is no judgment of a pair of the round. Then nothing is imported.
    """
    annotation_round = open_round(round_path)
    now = datetime.now(UTC)
    # Every row is checked against the pairs of its package.
    packages: dict[str, tuple[Package, set[Pair]]] = {}
    for package in annotation_round.packages:
        packages[package.name] = (package, {item.pair for item in items_of(round_path, package)})

    # Label Studio records the time of a judgment. Most sheets have no times.
    timed: list[Judgment] = []
    untimed: list[Judgment] = []
    for path in judgment_paths:
        for row_number, row in _read_rows(path, annotation_round.label_question):
            if row.label is None:
                continue
            error_path = f"{path}:{row_number}"
            person = row.annotator or annotator
            _check_subject(row, error_path, packages, person)
            judgment = _judgment_of(row, error_path, annotation_round.question, person, now)
            if row.time:
                timed.append(judgment)
            else:
                untimed.append(judgment)

    # All rows are correct, so the judgments can be added.
    new_count = add_judgments(round_path, timed)
    new_count += add_judgments(round_path, untimed, timed=False)
    judgments = timed + untimed
    outdated_count = 0
    for judgment in judgments:
        package, _ = packages[judgment.package]
        outdated_count += judgment.version < package.version
    if outdated_count:
        log.warning(
            "%d judgments are of versions that were sent back; they are stored, but do not count", outdated_count
        )
    return ImportedJudgments(len(judgments), new_count)


def _read_rows(path: Path, question: LabelQuestion) -> Iterator[tuple[int, JudgmentRow]]:
    """Return (number of the line or of Label Studio's task, row) of each judgment in a file.

    The file's first character tells its format.
    """
    start = first_character(path)
    if start == "{":
        return read_lines(path)
    if start == "[":
        return read_export(path, question)
    return read_sheet(path, question)


def _check_subject(
    row: JudgmentRow,
    error_path: str,
    packages: Mapping[str, tuple[Package, set[Pair]]],
    person: str | None,
) -> None:
    """Raise :class:`InputError` if the round lacks the row's package, pair or version, or if there is no person.

    ``packages`` maps a package's name to the package and its pairs. ``person`` is the annotator, if known.
    """
    package, pairs = packages.get(row.package, (None, set()))
    if package is None:
        raise InputError(f"the round has no package {row.package!r}", path=error_path)
    if row.pair not in pairs:
        raise InputError(f"the package {row.package} has no pair {row.query_id!r}, {row.corpus_id!r}", path=error_path)
    if row.version > package.version:
        raise InputError(f"has version {row.version}; {row.package} has version {package.version}", path=error_path)
    if not person:
        raise InputError("has no annotator; give --annotator NAME", path=error_path)


def _judgment_of(
    row: JudgmentRow,
    error_path: str,
    question: Asked,
    person: str | None,
    now: datetime,
) -> Judgment:
    """Convert a row to a judgment. Raises :class:`InputError` for a value that a judgment cannot have."""
    assert row.label is not None and person
    try:
        return Judgment(
            query_id=row.query_id,
            corpus_id=row.corpus_id,
            label=row.label,
            annotator=person,
            time=row.time or now,
            package=row.package,
            version=row.version,
            kind=row.kind,
            model=row.model or None,
            note=row.note or None,
            question=question,
        )
    except ValueError as error:
        raise InputError(str(error), path=error_path) from None


def read_sheet(
    sheet_path: Path,
    question: LabelQuestion = RELEVANCE,
) -> Iterator[tuple[int, JudgmentRow]]:
    """Yield (line, row) of a filled-in table. The row of an empty label has the label None.

    Raises :class:`InputError` for a missing column and for a wrong row.
    """
    for source in find_tables([sheet_path]):
        table = open_table(source, spreadsheet=True)
        for column in _REQUIRED_COLUMNS:
            if column not in table.columns:
                problem = f"has no column {column}; expected a sheet of `annotate`"
                raise InputError(problem, path=source.shown, line=table.first_line)
        columns = [column for column in (*COLUMNS, "annotator", "time") if column in table.columns]
        for line, fields in table.rows(columns):
            cells = {column: cell.strip() for column, cell in zip(columns, fields, strict=True)}
            error_path = f"{source.shown}:{line}"
            label = question.label_of(cells["label"])
            if cells["label"] and label is None:
                raise InputError(f"label: expected {question.expected}, found {cells['label']!r}", path=error_path)
            values: dict[str, Any] = {}
            for column, cell in cells.items():
                if cell and column not in _TEXT_COLUMNS:  # an empty cell is a missing value
                    values[column] = cell
            for column in ("query-id", "corpus-id"):
                values[column] = cells[column].removeprefix("'")  # see _sheet_cell
            values["label"] = label
            yield line, convert_to(values, JudgmentRow, error_path, from_text=True)


def read_lines(lines_path: Path) -> Iterator[tuple[int, JudgmentRow]]:
    """Yield (line, row) of JSON lines. Raises :class:`InputError` for a wrong line."""
    return json_lines(lines_path, JudgmentRow)


def read_export(
    export_path: Path,
    question: LabelQuestion = RELEVANCE,
) -> Iterator[tuple[int, JudgmentRow]]:
    """Yield (task number from 1, row) for every annotation with a choice in Label Studio's JSON export (not JSON-MIN).

    Skipped tasks have no row. Raises :class:`InputError` for several choices, and for a choice that does not fit.
    """
    # An export is one JSON list, so it is read at once.
    studio_tasks = json_of(read_whole(export_path), list[_StudioTask], export_path)
    for task_number, studio_task in enumerate(studio_tasks, 1):
        for annotation in studio_task.annotations:
            # A result is the value of one control of the labelling interface, by the name in _CONFIG.
            values = {result.from_name: result.value for result in annotation.result}
            choices = values.get("label", _StudioValue()).choices
            if annotation.was_cancelled or not choices:
                continue
            # An export has the alias of a choice, or its name if the labelling interface has no aliases.
            label = question.label_of(choices[0])
            if len(choices) > 1 or label is None:
                chosen = ", ".join(choices)[:_SHOWN_CHARACTERS]
                raise InputError(
                    f"expected one choice, {question.expected}, found {chosen}",
                    path=f"{export_path}: task {task_number}",
                )
            note = values.get("note", _StudioValue()).text
            if not isinstance(note, str):
                note = "\n".join(note)
            subject_fields = msgspec.structs.asdict(studio_task.data)
            row = JudgmentRow(
                **subject_fields,
                label=label,
                annotator=_person_name(annotation.completed_by),
                time=annotation.updated_at,
                note=note,
            )
            yield task_number, row


def _person_name(person: int | _StudioPerson) -> str:
    """Return the e-mail address of a person or, if the export has only numbers, a name such as user-1."""
    if isinstance(person, int):
        return f"user-{person}"
    return person.email or f"user-{person.id}"
