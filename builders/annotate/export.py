"""A pool as a round: packages of pairs, for Label Studio, for spreadsheets and as JSON lines.

The pairs of a query stay together, in the order of the passages' ids: their ranks would say what a model thinks of
them. Writes ROUND, which must not be there: a round is never replaced.

Columns of a sheet: package, version, kind (annotation, review, adjudication), query-id, corpus-id, query, passage, said
(the votes so far, in an adjudication), label, note. In JSON lines a row is an object of the same keys. `import` takes
both back when ``label`` is filled in.
"""

from __future__ import annotations

import argparse
import csv
import html
import io
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from builders.annotate.judgments import RELEVANCE, Kind, Pair, Question
from builders.annotate.pool import read_pool
from builders.annotate.quality import PACKAGE, Rule
from builders.annotate.rounds import PACKAGES, ROUND, STUDIO, Item, Package, Round, fingerprint_of, write_round
from builders.core.command import whole_number
from builders.core.errors import InputError, log
from builders.core.files import sha256_of, write_text
from builders.core.folders import new_directory, work_beside
from builders.core.words import words
from builders.store.layout import SPLITS
from builders.store.reader import Release, open_release

COLUMNS = ("package", "version", "kind", "query-id", "corpus-id", "query", "passage", "said", "label", "note")
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


class Task(msgspec.Struct, frozen=True):
    """A pair to judge: in which package and version, as what; the label that it has so far, and what others said.

    ``by``: the model that gave the label, where none of the last version's annotators did.
    """

    item: Item
    package: str
    version: int
    kind: Kind = "annotation"
    label: int | None = None
    said: str = ""
    by: str = ""

    @property
    def row(self) -> dict[str, Any]:
        """Its columns by name, without a note."""
        place: dict[str, Any] = {"package": self.package, "version": self.version, "kind": self.kind}
        texts: dict[str, Any] = msgspec.to_builtins(self.item)
        return place | texts | {"said": self.said, "label": self.label}


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
    text = io.StringIO("\ufeff", newline="")
    text.seek(0, io.SEEK_END)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for task in tasks:
        row = task.row
        cells = ["" if row.get(name) is None else str(row[name]) for name in COLUMNS]
        writer.writerow([f"'{cell}" if cell.startswith(_FORMULA) else cell for cell in cells])
    _write(path, text.getvalue())


def write_lines(path: Path, tasks: Sequence[Task]) -> None:
    """Write the same as JSON lines."""
    _write(path, "".join(msgspec.json.encode(task.row).decode() + "\n" for task in tasks))


def _write(path: Path, text: str) -> None:
    """Write a file that somebody fills in. Another text that stands there, perhaps filled in, stays as ``NAME.1``."""
    if path.exists() and path.read_bytes() != text.encode():
        names = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
        kept = next(name for name in names if not name.exists())
        path.rename(kept)
        log.warning("%s: there already, with other text (filled in?): kept as %s", path, kept.name)
    write_text(path, text)


def write_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """Write tasks as the JSON list that Label Studio imports; a label that is there already comes as a prediction."""
    write_text(path, "[\n" + ",\n".join(msgspec.json.encode(_task(task)).decode() for task in tasks) + "\n]\n")


def _task(task: Task) -> dict[str, Any]:
    row, terms = task.row, common_terms(task.item.query, task.item.passage)
    # The plain query is for the lists of tasks, which show no HTML.
    data = {key: row[key] for key in ("package", "version", "kind", "query-id", "corpus-id", "query", "said")}
    data |= {"query_html": marked(task.item.query, terms), "passage_html": marked(task.item.passage, terms)}
    if task.label is None:
        return {"data": data}
    choice = {"from_name": "label", "to_name": "passage", "type": "choices", "value": {"choices": [str(task.label)]}}
    by = task.by or f"version {task.version - 1}"
    return {"data": data, "predictions": [{"model_version": by, "result": [choice]}]}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    number, pairs = whole_number(1), Rule().review_pairs
    parser.add_argument("--pool", type=Path, required=True, metavar="FILE", help="what `pool select` wrote")
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release with the texts")
    parser.add_argument("--split", choices=SPLITS, default="dev", help="whose queries the pool has (dev)")
    parser.add_argument("--unjudged", action="store_true", help="leave out the pairs that the release's qrels have")
    parser.add_argument("--package-size", type=number, default=PACKAGE, metavar="N", help=f"pairs each ({PACKAGE})")
    parser.add_argument(
        "--review-pairs", type=number, default=pairs, metavar="N", help=f"of a package, for each reviewer ({pairs})"
    )


def run(args: argparse.Namespace) -> None:
    expect_new(args.round)
    release, pool = open_release(args.release), read_pool(args.pool)
    chosen = [pair.pair for pair in pool if not (args.unjudged and pair.judged is not None)]
    order = {query: place for place, query in enumerate(dict.fromkeys(query for query, _ in chosen))}
    pairs = sorted(set(chosen), key=lambda pair: (order[pair[0]], pair[1]))
    if not pairs:
        raise InputError("holds no pair that is not judged", path=args.pool)
    packages = make_round(
        args.round, release, args.split, pairs, args.pool, Rule(review_pairs=args.review_pairs), args.package_size
    )
    log.info("%s: %d pairs of %d queries in %d packages", args.round, len(pairs), len(order), packages)
    print(f"{len(pairs):,} pairs in {packages:,} packages: {args.round}")


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

    Args:
        pairs: in their order; those of a query stand together.
        source: the file that they come from.
        size: pairs a package.

    Raises:
        InputError: a query or a passage that the release lacks.
    """
    expect_new(path)
    queries = release.texts("queries", split)
    passages = release.texts("corpus", "corpus", {passage for _, passage in pairs})
    for query, passage in pairs:
        if query not in queries:
            raise InputError(f"has a query {query!r} that queries/{split} lacks", path=source)
        if passage not in passages:
            raise InputError(f"has a passage {passage!r} that the corpus lacks", path=source)
    packages: list[Package] = []
    with new_directory(path, "a round", ROUND) as folder:
        write_text(folder / STUDIO / "config.xml", config_of(question))
        for start in range(0, len(pairs), size):
            part = pairs[start : start + size]
            package = Package(f"{split}-{len(packages) + 1:03d}", len(part))
            tasks = [Task(Item(q, p, queries[q], passages[p]), package.name, 1) for q, p in part]
            write_package(folder / PACKAGES, package.stem, tasks, folder / STUDIO)
            packages.append(package)
        name, fingerprint = release.path.resolve().name, fingerprint_of(release, split)
        write_round(folder, Round(1, name, fingerprint, split, sha256_of(source), rule, packages, question.name))
    return len(packages)
