"""Write the pairs of a round for Label Studio, as sheets and as JSON lines, and import judgments from these formats."""

import csv
import io
import itertools
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
    Asked,
    Ids,
    Item,
    Judgment,
    Kind,
    Label,
    Package,
    Pair,
    Question,
    Round,
    Rule,
    Time,
    Version,
    add_judgments,
    fingerprint_of,
    items_of,
    open_round,
    write_round,
)
from builders.core.errors import InputError, log
from builders.core.files import first_character, read_whole, sha256_of, write_text
from builders.core.folders import new_directory, work_beside
from builders.core.highlight import common_terms, marked
from builders.core.typed import Count, json_lines, json_of, typed
from builders.sources.source_tables import find_tables, open_table
from builders.store.reader import Release

COLUMNS = ("package", "version", "kind", "query-id", "corpus-id", "query", "passage", "said", "label", "note")
_NEEDED = ("package", "version", "kind", "query-id", "corpus-id", "label")
_FORMULA = tuple("=+-@\t\r")  # first characters of a formula in spreadsheets
# Chinese words of one character, such as 的, would be highlighted too often. Numbers and Latin words may be short.
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


class Task(Item, frozen=True, rename="kebab"):
    """A pair to judge. ``said`` has the earlier votes for an adjudicator. ``label`` is the pair's label so far."""

    package: str
    version: int
    kind: Kind = "annotation"
    said: str = ""
    label: int | None = None


def tasks_of(round_: Path, package: Package, kind: Kind, pairs: Mapping[Pair, Mapping[str, Any]]) -> list[Task]:
    """Return tasks for some ``pairs`` of a package. The values of ``pairs`` set the fields ``said`` or ``label``."""
    return [
        Task(*msgspec.structs.astuple(item), package.name, package.version, kind, **pairs[item.pair])  # type: ignore[call-arg]
        for item in items_of(round_, package)
        if item.pair in pairs
    ]


def config_of(question: Question) -> str:
    """Return Label Studio's labelling interface for a question. A tooltip explains each choice."""
    choices = (
        f'    <Choice value="{choice.name}" alias="{choice.label}" hotkey="{choice.label}"'
        + f' hint="{choice.means}"' * bool(choice.means)
        + "/>"
        for choice in question.choices
    )
    return _CONFIG.format(text=question.text, hint=question.hint, choices="\n".join(choices))


def write_package(folder: Path, stem: str, tasks: Sequence[Task], studio: Path | None = None) -> None:
    """Write ``STEM.csv``, ``.jsonl`` and ``.json`` to ``folder``, but the ``.json`` to ``studio`` if that is given."""
    write_sheet(folder / f"{stem}.csv", tasks)
    write_lines(folder / f"{stem}.jsonl", tasks)
    write_tasks((studio or folder) / f"{stem}.json", tasks)


def write_sheet(path: Path, tasks: Sequence[Task]) -> None:
    """Write a CSV for spreadsheets: UTF-8 with a byte order mark, and no cell that would be read as a formula."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in map(msgspec.to_builtins, tasks):
        cells = ["" if row.get(name) is None else str(row[name]) for name in COLUMNS]
        writer.writerow([f"'{cell}" if cell.startswith(_FORMULA) else cell for cell in cells])
    _write(path, f"\ufeff{text.getvalue()}")


def write_lines(path: Path, tasks: Sequence[Task]) -> None:
    """Write the tasks as JSON lines."""
    _write(path, "".join(msgspec.json.encode(task).decode() + "\n" for task in tasks))


def _write(path: Path, text: str) -> None:
    """Write a file that people fill in. An existing file with another text is renamed to ``NAME.1``, ``NAME.2`` ..."""
    if path.exists() and path.read_bytes() != text.encode():
        names = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
        backup = next(name for name in names if not name.exists())
        path.rename(backup)
        log.warning("%s: the existing file has another text, so it was renamed to %s", path, backup.name)
    write_text(path, text)


def write_tasks(path: Path, tasks: Sequence[Task], by: str = "") -> None:
    """Write tasks as the JSON list that Label Studio imports. A task's label becomes a prediction.

    ``by`` names the model that gave the labels. If ``by`` is empty, the labels are from the package's previous version.
    """
    write_text(path, "[\n" + ",\n".join(msgspec.json.encode(_studio(task, by)).decode() for task in tasks) + "\n]\n")


def _studio(task: Task, by: str) -> dict[str, Any]:
    row, terms = msgspec.to_builtins(task), common_terms(task.query, task.passage)
    # The plain query is for Label Studio's list of tasks, which shows no HTML.
    data = {key: row[key] for key in ("package", "version", "kind", "query-id", "corpus-id", "query", "said")}
    data |= {"query_html": marked(task.query, terms), "passage_html": marked(task.passage, terms)}
    if task.label is None:
        return {"data": data}
    choice = {"from_name": "label", "to_name": "passage", "type": "choices", "value": {"choices": [str(task.label)]}}
    model = by or f"version {task.version - 1}"
    return {"data": data, "predictions": [{"model_version": model, "result": [choice]}]}


@dataclass(frozen=True)
class Exported:
    """The numbers of pairs, queries and packages of a new round."""

    pairs: int
    queries: int
    packages: int


def export_pool(
    round_path: Path, release: Release, *, pool: Path, split: str, unjudged_only: bool, package_size: int, rule: Rule
) -> Exported:
    """Write the pairs of a pool as the round ``round_path``, which must not exist.

    Raises :class:`InputError` if the pool has no pair to judge, or a pair that the release lacks.
    """
    chosen = [pair.pair for pair in read_pool(pool) if not (unjudged_only and pair.judged is not None)]
    # The pairs of a query stay together, in the order of the queries in the pool, and by passage id.
    query_places = {query_id: place for place, query_id in enumerate(dict.fromkeys(query_id for query_id, _ in chosen))}
    pairs = sorted(set(chosen), key=lambda pair: (query_places[pair[0]], pair[1]))
    if not pairs:
        raise InputError("has no pair to judge; pool further runs, or omit --unjudged", path=pool)
    package_count = make_round(round_path, release, split, pairs, pool, rule, package_size)
    return Exported(len(pairs), len(query_places), package_count)


def expect_new(path: Path) -> None:
    """Raise :class:`InputError` if ``path`` is already a round."""
    if (path / ROUND).exists():
        with work_beside(path):  # removes the work folder of an export that was killed after it was done
            pass
        raise InputError("is already a round, which may have judgments; expected a new path", path=path)


def make_round(
    path: Path,
    release: Release,
    split: str,
    pairs: Sequence[Pair],
    source: Path,
    rule: Rule,
    size: int = PACKAGE_SIZE,
    question: Question = RELEVANCE,
) -> int:
    """Write the round ``path``, which must not exist, and return the number of its packages.

    The packages are consecutive parts of ``pairs``, with ``size`` pairs each. ``source`` is the file that the pairs
    come from. Raises :class:`InputError` for a pair that is not in the release.
    """
    expect_new(path)
    queries = release.texts("queries", split)
    passages = release.texts("corpus", "corpus", {passage for _, passage in pairs})
    if strange := next((f"{q} {p}" for q, p in pairs if q not in queries or p not in passages), ""):
        raise InputError(f"has a pair {strange} that queries/{split} or the corpus lacks", path=source)
    packages: list[Package] = []
    with new_directory(path, "a round", ROUND) as folder:
        write_text(folder / STUDIO / "config.xml", config_of(question))
        for start in range(0, len(pairs), size):
            part = pairs[start : start + size]
            package = Package(f"{split}-{len(packages) + 1:03d}", len(part))
            tasks = [Task(q, p, queries[q], passages[p], package.name, 1) for q, p in part]
            write_package(folder / PACKAGES, package.stem, tasks, folder / STUDIO)
            packages.append(package)
        name, fingerprint = release.path.resolve().name, fingerprint_of(release, split)
        write_round(folder, Round(1, name, fingerprint, split, sha256_of(source), rule, packages, question.name))
    return len(packages)


class Place(Ids, frozen=True, rename="kebab"):
    """The subject of a judgment in a file: pair, package, version and kind of work."""

    package: str
    version: Version
    kind: Kind


class Row(Place, frozen=True, rename="kebab"):
    """One row of a file with judgments: a :class:`Place`, and the judgment. ``label`` is None for an unjudged pair."""

    label: Label | None
    annotator: str | None = None
    time: Time | None = None
    model: str | None = None
    note: str | None = None


class _Person(msgspec.Struct, frozen=True):
    id: Count
    email: str = ""


class _Value(msgspec.Struct, frozen=True):
    choices: list[str] = []
    text: list[str] | str = []


class _Result(msgspec.Struct, frozen=True):
    value: _Value
    from_name: str = ""


class _Annotation(msgspec.Struct, frozen=True):
    """One person's work on a task. ``was_cancelled`` is True if the person skipped the task."""

    result: list[_Result]
    updated_at: Time
    completed_by: Count | _Person
    was_cancelled: bool = False


class _ExportedTask(msgspec.Struct, frozen=True):
    data: Place
    annotations: list[_Annotation]


@dataclass(frozen=True)
class Imported:
    """The numbers of judgments in the imported files, and of judgments that the round did not have."""

    judgments: int
    new: int


def import_files(round_path: Path, files: Sequence[Path], annotator: str | None) -> Imported:
    """Add the judgments of files to a round. ``annotator`` is the person of rows without a name.

    Raises :class:`InputError` for a row that is no judgment of a pair of the round. Then nothing is imported.
    """
    annotation_round, now = open_round(round_path), datetime.now(UTC)
    packages: dict[str, tuple[Package, set[Pair]]] = {}
    for package in annotation_round.packages:
        packages[package.name] = (package, {item.pair for item in items_of(round_path, package)})
    timed: list[Judgment] = []
    untimed: list[Judgment] = []
    for path in files:
        for place, row in _read(path, annotation_round.asked):
            if row.label is None:
                continue
            judgment = _judgment(
                row, f"{path}:{place}", annotation_round.question, packages, row.annotator or annotator, now
            )
            (timed if row.time else untimed).append(judgment)
    # Label Studio records the time of a judgment. Sheets have no times.
    new = add_judgments(round_path, timed) + add_judgments(round_path, untimed, timed=False)
    judgments = [*timed, *untimed]
    if old := sum(judgment.version < packages[judgment.package][0].version for judgment in judgments):
        log.warning("%d judgments are of versions that were sent back; they are stored, but do not count", old)
    return Imported(len(judgments), new)


def _read(path: Path, question: Question) -> Iterator[tuple[int, Row]]:
    first = first_character(path)
    if first == "{":
        return read_lines(path)
    return read_export(path, question) if first == "[" else read_sheet(path, question)


def _judgment(
    row: Row,
    where: str,
    question: Asked,
    packages: Mapping[str, tuple[Package, set[Pair]]],
    who: str | None,
    now: datetime,
) -> Judgment:
    package, pairs = packages.get(row.package, (Package("none", 0), set()))
    problem = ""
    if row.package not in packages:
        problem = f"the round has no package {row.package!r}"
    elif row.pair not in pairs:
        problem = f"the package {row.package} has no pair {row.query_id!r}, {row.corpus_id!r}"
    elif row.version > package.version:
        problem = f"has version {row.version}; {row.package} has version {package.version}"
    elif not who:
        problem = "has no annotator; give --annotator NAME"
    if problem:
        raise InputError(problem, path=where)
    fields: list[Any] = [row.label, who, row.time or now, row.package, row.version, row.kind, row.model or None]
    try:
        return Judgment(*row.pair, *fields, row.note or None, question)  # type: ignore[call-arg]
    except ValueError as error:
        raise InputError(str(error), path=where) from None


def read_sheet(path: Path, question: Question = RELEVANCE) -> Iterator[tuple[int, Row]]:
    """Yield (line, row) of a filled-in table. Raises :class:`InputError` for a missing column and for a wrong row."""
    for source in find_tables([path]):
        table = open_table(source, spreadsheet=True)
        if missing := [name for name in _NEEDED if name not in table.columns]:
            raise InputError(f"has no column {missing[0]}; expected a sheet of `annotate`", path=source.shown, line=1)
        names = [name for name in (*COLUMNS, "annotator", "time") if name in table.columns]
        for line, fields in table.rows(names):
            cells = {name: cell.strip() for name, cell in zip(names, fields, strict=True)}
            where, label = f"{source.shown}:{line}", question.label_of(cells["label"])
            if cells["label"] and label is None:
                raise InputError(f"label: expected {question.expected}, found {cells['label']!r}", path=where)
            filled = {name: cell for name, cell in cells.items() if cell and name not in ("query", "passage", "said")}
            ids = {name: cells[name].removeprefix("'") for name in ("query-id", "corpus-id")}
            yield line, typed(filled | ids | {"label": label}, Row, where, from_text=True)


def read_lines(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield (line, row) of JSON lines. Raises :class:`InputError` for a wrong line."""
    return json_lines(path, Row)


def read_export(path: Path, question: Question = RELEVANCE) -> Iterator[tuple[int, Row]]:
    """Yield (task number from 1, row) for every annotation in Label Studio's JSON export (not JSON-MIN)."""
    for number, task in enumerate(json_of(read_whole(path), list[_ExportedTask], path), 1):
        for annotation in task.annotations:
            values = {result.from_name: result.value for result in annotation.result}
            choices, note = values.get("label", _Value()).choices, values.get("note", _Value()).text
            if annotation.was_cancelled or not choices:
                continue
            # An export has the alias of a choice, or its name if the labelling interface has no aliases.
            label, person = question.label_of(choices[0]), annotation.completed_by
            if len(choices) > 1 or label is None:
                found = f"expected one choice, {question.expected}, found {', '.join(choices)[:80]}"
                raise InputError(found, path=f"{path}: task {number}")
            who = f"user-{person}" if isinstance(person, int) else person.email or f"user-{person.id}"
            text, place = note if isinstance(note, str) else "\n".join(note), msgspec.structs.asdict(task.data)
            yield number, Row(**place, label=label, annotator=who, time=annotation.updated_at, note=text)
