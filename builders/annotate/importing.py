"""Judgments into a round: from Label Studio, from sheets, from JSON lines.

FILE is Label Studio's JSON export, a sheet that was filled in (CSV or TSV), JSON lines of the same, or a file of
judgments of another copy of the round; what it is, its content says. Label Studio's export has no addresses: people are
called user-1 and so on. Rows without a label are not judged yet and are passed over. Nothing is taken where one row is
wrong. The same import again changes nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from builders.core.errors import InputError, log

if TYPE_CHECKING:
    from builders.annotate.judgments import Judgment, Pair
    from builders.annotate.questions import Question
    from builders.annotate.rounds import Round
    from builders.annotate.sheets import Row

_START = 1 << 16  # bytes that tell what a file is


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what people have judged")
    parser.add_argument("--annotator", metavar="NAME", help="who judged, where a file does not say it")


def run(args: argparse.Namespace) -> None:
    from builders.annotate.judgments import add_judgments
    from builders.annotate.rounds import open_round, pairs_of

    found = open_round(args.round)
    pairs = {package.name: set(pairs_of(args.round, package)) for package in found.packages}
    now = datetime.now(timezone.utc)
    judged = []
    for path in args.files:
        for place, row in _read(path, found.asked):
            if row.label is not None:
                made = _judgment(row, f"{path}:{place}", found, pairs, args.annotator, now)
                judged.append((row.time is not None, made))
    # All of one call is added by one file where all have their times, as Label Studio's have; sheets have none.
    timed = [judgment for has_time, judgment in judged if has_time]
    untimed = [judgment for has_time, judgment in judged if not has_time]
    new = add_judgments(args.round, timed) if timed else 0
    new += add_judgments(args.round, untimed, timed=False) if untimed else 0
    versions = {package.name: package.version for package in found.packages}
    if old := sum(judgment.version < versions[judgment.package] for _, judgment in judged):
        log.warning("%d judgments are of versions that were sent back: they are kept, and count no more", old)
    print(f"{new:,} new judgments of {len(judged):,}: {args.round}")


def _read(path: Path, question: Question) -> Iterator[tuple[int, Row]]:
    from builders.annotate.sheets import read_lines, read_sheet
    from builders.annotate.studio import read_export

    try:
        with open(path, "rb") as file:
            start = file.read(_START).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=path) from error
    if start == b"{":
        return read_lines(path)
    return read_export(path, question) if start == b"[" else read_sheet(path, question)


def _judgment(
    row: Row, where: str, found: Round, pairs: dict[str, set[Pair]], annotator: str | None, now: datetime
) -> Judgment:
    """The row as a judgment. :class:`InputError` where it is of no pair of the round, or nobody's."""
    import msgspec

    from builders.annotate.judgments import Judgment

    package = next((package for package in found.packages if package.name == row.package), None)
    who = row.annotator or annotator
    problem = ""
    if package is None:
        problem = f"the round has no package {row.package!r}"
    elif (row.query_id, row.corpus_id) not in pairs[package.name]:
        problem = f"the package {row.package} has no pair of query {row.query_id!r} and passage {row.corpus_id!r}"
    elif row.version > package.version:
        problem = f"version {row.version} of the package {row.package}, which is at version {package.version}"
    elif who is None:
        problem = "does not say who judged; expected --annotator NAME"
    if problem:
        raise InputError(problem, path=where)
    content = {
        **{"query-id": row.query_id, "corpus-id": row.corpus_id, "label": row.label, "annotator": who},
        **{"time": row.time or now, "package": row.package, "version": row.version, "kind": row.kind},
        **{name: value for name, value in (("model", row.model), ("note", row.note)) if value},
        "question": found.question,
    }
    try:
        return msgspec.convert(content, Judgment)
    except msgspec.ValidationError as error:
        raise InputError(str(error), path=where) from None
