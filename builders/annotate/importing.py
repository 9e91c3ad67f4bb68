"""Judgments into a round: from Label Studio, from sheets, from JSON lines.

FILE is Label Studio's JSON export, a sheet that was filled in (CSV or TSV), JSON lines of the same, or a file of
judgments of another copy of the round; what it is, its content says. Label Studio's export has no addresses: people are
called user-1 and so on. Rows without a label are not judged yet and are passed over. Nothing is taken where one row is
wrong. The same import again changes nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from builders.annotate.judgments import Asked, Judgment, Pair, Question, add_judgments
from builders.annotate.rounds import Package, items_of, open_round
from builders.annotate.tasks import Row, read_export, read_lines, read_sheet
from builders.common.command import InputError, log

_START = 1 << 16  # bytes that tell what a file is


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what people have judged")
    parser.add_argument("--annotator", metavar="NAME", help="who judged, where a file does not say it")


def run(args: argparse.Namespace) -> None:
    found, now = open_round(args.round), datetime.now(timezone.utc)
    packages = {
        package.name: (package, {item.pair for item in items_of(args.round, package)}) for package in found.packages
    }
    timed: list[Judgment] = []
    untimed: list[Judgment] = []
    for path in args.files:
        for place, row in _read(path, found.asked):
            if row.label is not None:
                made = _judgment(row, f"{path}:{place}", found.question, packages, row.annotator or args.annotator, now)
                (timed if row.time else untimed).append(made)
    # All of one call is added by one file where all have their times, as Label Studio's have; sheets have none.
    new = add_judgments(args.round, timed) if timed else 0
    new += add_judgments(args.round, untimed, timed=False) if untimed else 0
    if old := sum(each.version < packages[each.package][0].version for each in (*timed, *untimed)):
        log.warning("%d judgments are of versions that were sent back: they are kept, and count no more", old)
    print(f"{new:,} new judgments of {len(timed) + len(untimed):,}: {args.round}")


def _read(path: Path, question: Question) -> Iterator[tuple[int, Row]]:
    try:
        with open(path, "rb") as file:
            start = file.read(_START).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=path) from error
    if start == b"{":
        return read_lines(path)
    return read_export(path, question) if start == b"[" else read_sheet(path, question)


def _judgment(
    row: Row,
    where: str,
    question: Asked,
    packages: Mapping[str, tuple[Package, set[Pair]]],
    who: str | None,
    now: datetime,
) -> Judgment:
    """Return the row as a judgment. :class:`InputError` where it is of no pair of the round, or nobody's."""
    package, pairs = packages.get(row.package, (None, set()))
    problem = ""
    if package is None:
        problem = f"the round has no package {row.package!r}"
    elif (row.query_id, row.corpus_id) not in pairs:
        problem = f"the package {row.package} has no pair of query {row.query_id!r} and passage {row.corpus_id!r}"
    elif row.version > package.version:
        problem = f"version {row.version} of the package {row.package}, which is at version {package.version}"
    elif who is None:
        problem = "does not say who judged; expected --annotator NAME"
    if problem:
        raise InputError(problem, path=where)
    content = msgspec.to_builtins(row, builtin_types=[datetime])
    content |= {"annotator": who, "time": row.time or now, "question": question}
    try:
        # An empty name or note of a file is none.
        return msgspec.convert({name: each for name, each in content.items() if each not in ("", None)}, Judgment)
    except msgspec.ValidationError as error:
        raise InputError(str(error), path=where) from None
