"""The tasks of a round in every form: they go to Label Studio, as sheets and as JSON lines, and come back judged."""

from __future__ import annotations

import argparse
import csv
import html
import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from builders.annotate.pool import read_pool
from builders.annotate.rounds import (
    PACKAGE,
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
from builders.core.command import whole_number
from builders.core.errors import InputError, log
from builders.core.files import first_character, read_whole, sha256_of, write_text
from builders.core.folders import new_directory, work_beside
from builders.core.typed import Count, json_lines, json_of, typed
from builders.core.words import words
from builders.sources.tables import find_tables, open_table
from builders.store.layout import SPLITS
from builders.store.reader import Release, open_release

COLUMNS = ("package", "version", "kind", "query-id", "corpus-id", "query", "passage", "said", "label", "note")
_NEEDED = ("package", "version", "kind", "query-id", "corpus-id", "label")
_FORMULA = tuple("=+-@\t\r")  # a spreadsheet would compute, not show, a cell that begins so
# A word of one character marks too much: 的, 了, 吗. Numbers and Latin words count at any length.
_TERM = re.compile(r"[^\W_]{2,}|[0-9A-Za-z]+")
# Nor does what makes a question of a query say anything of a passage.
ASKING = {"什么", "怎么", "怎么办", "怎么样", "怎样", "如何", "为什么", "为何", "多少", "哪里", "哪些", "哪个", "是否"}
# A key a choice: 1 or 0 judges a pair, Ctrl+Enter (of Label Studio) hands it in. The alias is what the export has.
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
    """A pair to judge: in which package and version, as what; what others said, and the label that it has so far."""

    package: str
    version: int
    kind: Kind = "annotation"
    said: str = ""
    label: int | None = None


def tasks_of(round_: Path, package: Package, kind: Kind, pairs: Mapping[Pair, Mapping[str, Any]]) -> list[Task]:
    """The tasks of some ``pairs`` of a package, each with what is said of it or its label."""
    items = [item for item in items_of(round_, package) if item.pair in pairs]
    place = package.name, package.version, kind
    return [Task(*msgspec.structs.astuple(item), *place, **pairs[item.pair]) for item in items]  # type: ignore[call-arg]


def common_terms(query: str, passage: str) -> list[str]:
    """Return the words of a query that stand in a passage, whatever their case; the longest first."""
    text = passage.lower()
    found = {word.lower() for word in words(query) if _TERM.fullmatch(word)} - ASKING
    return sorted((word for word in found if word in text), key=lambda word: (-len(word), word))


def marked(text: str, terms: list[str]) -> str:
    """Return the text as HTML: nothing in it is markup but ``<mark>`` around each of the ``terms``."""
    if not terms:
        return html.escape(text)
    # Split where a term stands, before anything is escaped: no term is found in what escaping adds.
    parts = re.split(f"({'|'.join(map(re.escape, terms))})", text, flags=re.IGNORECASE)
    return "".join(f"<mark>{html.escape(part)}</mark>" if n % 2 else html.escape(part) for n, part in enumerate(parts))


def config_of(question: Question) -> str:
    """Return the labelling interface of a round that asks this question; pointed at, a choice says what it means."""
    choices = (
        f'    <Choice value="{choice.name}" alias="{choice.label}" hotkey="{choice.label}"'
        + f' hint="{choice.means}"' * bool(choice.means)
        + "/>"
        for choice in question.choices
    )
    return _CONFIG.format(text=question.text, hint=question.hint, choices="\n".join(choices))


def write_package(folder: Path, stem: str, tasks: Sequence[Task], studio: Path | None = None) -> None:
    """Write tasks in every form: ``STEM.csv`` and ``.jsonl`` in ``folder``, ``.json`` there, too, or in ``studio``."""
    write_sheet(folder / f"{stem}.csv", tasks)
    write_lines(folder / f"{stem}.jsonl", tasks)
    write_tasks((studio or folder) / f"{stem}.json", tasks)


def write_sheet(path: Path, tasks: Sequence[Task]) -> None:
    """Write a CSV that spreadsheets open as what it is: UTF-8 with a mark, and no cell that is a formula."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in map(msgspec.to_builtins, tasks):
        cells = ["" if row.get(name) is None else str(row[name]) for name in COLUMNS]
        writer.writerow([f"'{cell}" if cell.startswith(_FORMULA) else cell for cell in cells])
    _write(path, f"\ufeff{text.getvalue()}")


def write_lines(path: Path, tasks: Sequence[Task]) -> None:
    """Write the same as JSON lines."""
    _write(path, "".join(msgspec.json.encode(task).decode() + "\n" for task in tasks))


def _write(path: Path, text: str) -> None:
    """Write a file that somebody fills in. Another text that stands there, perhaps filled in, stays as ``NAME.1``."""
    if path.exists() and path.read_bytes() != text.encode():
        names = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
        kept = next(name for name in names if not name.exists())
        path.rename(kept)
        log.warning("%s: there already, with other text (filled in?): kept as %s", path, kept.name)
    write_text(path, text)


def write_tasks(path: Path, tasks: Sequence[Task], by: str = "") -> None:
    """Write tasks as the JSON list that Label Studio imports; a label that is there already comes as a prediction.

    ``by``: the model that gave the labels; the last version's annotators where it is empty.
    """
    write_text(path, "[\n" + ",\n".join(msgspec.json.encode(_studio(task, by)).decode() for task in tasks) + "\n]\n")


def _studio(task: Task, by: str) -> dict[str, Any]:
    row, terms = msgspec.to_builtins(task), common_terms(task.query, task.passage)
    # The plain query is for the lists of tasks, which show no HTML.
    data = {key: row[key] for key in ("package", "version", "kind", "query-id", "corpus-id", "query", "said")}
    data |= {"query_html": marked(task.query, terms), "passage_html": marked(task.passage, terms)}
    if task.label is None:
        return {"data": data}
    choice = {"from_name": "label", "to_name": "passage", "type": "choices", "value": {"choices": [str(task.label)]}}
    model = by or f"version {task.version - 1}"
    return {"data": data, "predictions": [{"model_version": model, "result": [choice]}]}


def export_arguments(parser: argparse.ArgumentParser) -> None:
    number, pairs = whole_number(1), Rule().review_pairs
    parser.add_argument("--pool", type=Path, required=True, metavar="FILE", help="what `pool select` wrote")
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release with the texts")
    parser.add_argument("--split", choices=SPLITS, default="dev", help="whose queries the pool has (dev)")
    parser.add_argument("--unjudged", action="store_true", help="leave out the pairs that the release's qrels have")
    parser.add_argument("--package-size", type=number, default=PACKAGE, metavar="N", help=f"pairs each ({PACKAGE})")
    parser.add_argument(
        "--review-pairs", type=number, default=pairs, metavar="N", help=f"of a package, for each reviewer ({pairs})"
    )


def export(args: argparse.Namespace) -> None:
    """A pool as a round: packages of pairs, for Label Studio, for spreadsheets and as JSON lines.

    The pairs of a query stay together, in the order of the passages' ids: their ranks would say what a model thinks of
    them. Writes ROUND, which must not be there: a round is never replaced.

    Columns of a sheet: package, version, kind (annotation, review, adjudication), query-id, corpus-id, query, passage,
    said (the votes so far, in an adjudication), label, note. In JSON lines a row is an object of the same keys.
    `import` takes both back when ``label`` is filled in.
    """
    chosen = [pair.pair for pair in read_pool(args.pool) if not (args.unjudged and pair.judged is not None)]
    order = {query: place for place, query in enumerate(dict.fromkeys(query for query, _ in chosen))}
    pairs = sorted(set(chosen), key=lambda pair: (order[pair[0]], pair[1]))
    if not pairs:
        raise InputError("holds no pair that is not judged", path=args.pool)
    release, rule = open_release(args.release), Rule(review_pairs=args.review_pairs)
    packages = make_round(args.round, release, args.split, pairs, args.pool, rule, args.package_size)
    print(f"{len(pairs):,} pairs of {len(order):,} queries in {packages:,} packages: {args.round}")


def expect_new(path: Path) -> None:
    """Raise :class:`InputError` where a round is there already."""
    if (path / ROUND).exists():
        with work_beside(path):  # what is left of an export that was killed when it was done goes
            pass
        raise InputError("is a round already, which may hold judgments; expected a new path", path=path)


def make_round(
    path: Path,
    release: Release,
    split: str,
    pairs: Sequence[Pair],
    source: Path,
    rule: Rule,
    size: int = PACKAGE,
    question: Question = RELEVANCE,
) -> int:
    """Write the round ``path``, which must not be there; return the number of its packages.

    ``pairs`` stand in their order, those of a query together; ``source`` is the file that they come from. Raises
    :class:`InputError` for a pair that the release lacks.
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
    """The subject of a judgment, as a file says it: a pair in a version of a package, judged as what."""

    package: str
    version: Version
    kind: Kind


class Row(Place, frozen=True, rename="kebab"):
    """One judgment as a file brings it: what it is of, and what it says."""

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
    """One person's work on a task; ``was_cancelled``: they skipped it."""

    result: list[_Result]
    updated_at: Time
    completed_by: Count | _Person
    was_cancelled: bool = False


class _Exported(msgspec.Struct, frozen=True):
    """A task of Label Studio's JSON export."""

    data: Place
    annotations: list[_Annotation]


def take_in_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what people have judged")
    parser.add_argument("--annotator", metavar="NAME", help="who judged, where a file does not say it")


def take_in(args: argparse.Namespace) -> None:
    """Judgments into a round: from Label Studio, from sheets, from JSON lines.

    FILE is Label Studio's JSON export, a sheet that was filled in (CSV or TSV), JSON lines of the same, or a file of
    judgments of another copy of the round; what it is, its content says. Label Studio's export has no addresses: people
    are called user-1 and so on. Rows without a label are not judged yet and are passed over. Nothing is taken where one
    row is wrong. The same import again changes nothing.
    """
    found, now = open_round(args.round), datetime.now(timezone.utc)
    packages = {each.name: (each, {item.pair for item in items_of(args.round, each)}) for each in found.packages}
    timed: list[Judgment] = []
    untimed: list[Judgment] = []
    for path in args.files:
        for place, row in _read(path, found.asked):
            if row.label is not None:
                made = _judgment(row, f"{path}:{place}", found.question, packages, row.annotator or args.annotator, now)
                (timed if row.time else untimed).append(made)
    # All of one call is added by one file where all have their times, as Label Studio's have; sheets have none.
    new = add_judgments(args.round, timed) + add_judgments(args.round, untimed, timed=False)
    if old := sum(each.version < packages[each.package][0].version for each in (*timed, *untimed)):
        log.warning("%d judgments are of versions that were sent back: they are kept, and count no more", old)
    print(f"{new:,} new judgments of {len(timed) + len(untimed):,}: {args.round}")


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
    """Return the row as a judgment. :class:`InputError` where it is of no pair of the round, or nobody's."""
    package, pairs = packages.get(row.package, (Package("none", 0), set()))
    for is_right, problem in (
        (row.package in packages, f"the round has no package {row.package!r}"),
        (row.pair in pairs, f"the package {row.package} has no pair {row.query_id!r}, {row.corpus_id!r}"),
        (row.version <= package.version, f"version {row.version} of {row.package}, which is at {package.version}"),
        (who, "does not say who judged; expected --annotator NAME"),
    ):
        if not is_right:
            raise InputError(problem, path=where)
    said: list[Any] = [row.label, who, row.time or now, row.package, row.version, row.kind, row.model or None]
    try:
        return Judgment(*row.pair, *said, row.note or None, question)  # type: ignore[call-arg]
    except ValueError as error:
        raise InputError(str(error), path=where) from None


def read_sheet(path: Path, question: Question = RELEVANCE) -> Iterator[tuple[int, Row]]:
    """Yield (line, row) of a filled-in table. :class:`InputError` for one of other columns, and for a bad row."""
    for source in find_tables([path]):
        table = open_table(source, spreadsheet=True)
        if missing := [name for name in _NEEDED if name not in table.columns]:
            raise InputError(f"no column {missing[0]}; expected a sheet of `annotate`", path=source.shown, line=1)
        names = [name for name in (*COLUMNS, "annotator", "time") if name in table.columns]
        for line, fields in table.rows(names):
            cells = {name: cell.strip() for name, cell in zip(names, fields, strict=True)}
            where, label = f"{source.shown}:{line}", question.label_of(cells["label"])
            if cells["label"] and label is None:
                expected = f"expected {question.expected} in the column label, found {cells['label']!r}"
                raise InputError(expected, path=where)
            given = {name: cell for name, cell in cells.items() if cell and name not in ("query", "passage", "said")}
            ids = {name: cells[name].removeprefix("'") for name in ("query-id", "corpus-id")}
            yield line, typed(given | ids | {"label": label}, Row, where, from_text=True)


def read_lines(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield (line, row) of JSON lines; errors as of :func:`read_sheet`."""
    return json_lines(path, Row)


def read_export(path: Path, question: Question = RELEVANCE) -> Iterator[tuple[int, Row]]:
    """Yield (number of the task from 1, row) of every annotation in Label Studio's JSON export (not JSON-MIN)."""
    for number, task in enumerate(json_of(read_whole(path), list[_Exported], path), 1):
        for annotation in task.annotations:
            values = {result.from_name: result.value for result in annotation.result}
            choices, note = values.get("label", _Value()).choices, values.get("note", _Value()).text
            if annotation.was_cancelled or not choices:
                continue
            # The alias of a choice, or its name, as an interface without aliases says it.
            label, person = question.label_of(choices[0]), annotation.completed_by
            if len(choices) > 1 or label is None:
                found = f"expected one choice, {question.expected}, found {', '.join(choices)[:80]}"
                raise InputError(found, path=f"{path}: task {number}")
            who = f"user-{person}" if isinstance(person, int) else person.email or f"user-{person.id}"
            text, place = note if isinstance(note, str) else "\n".join(note), msgspec.structs.asdict(task.data)
            yield number, Row(**place, label=label, annotator=who, time=annotation.updated_at, note=text)
