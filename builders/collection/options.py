"""What cmedqa and ccovid have in common on the command line, and how they know the files of a set."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from builders.common.command import InputError, add_format, log, whole_number
from builders.sources.encoding import CHOICES
from builders.sources.files import Source
from builders.sources.tables import header_of


def add_options(parser: argparse.ArgumentParser, test_size: int | None) -> None:
    """The options that both sets have."""
    parser.add_argument(
        "--source", nargs="+", type=Path, required=True, metavar="PATH", help="folders, files, .gz and .zip as they are"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the release directory to write")
    parser.add_argument("--release", type=Path, metavar="DIR", help="a release that --out holds as well")
    parser.add_argument(
        "--test-size",
        type=whole_number(1),
        default=test_size,
        metavar="N",
        help=f"test queries, drawn at random; the others go to train (default: {test_size or 'all'})",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random choice (default: 0)")
    parser.add_argument("--encoding", choices=CHOICES, default="auto", help="default: told by the bytes")
    add_format(parser)


def files_of(
    whose: str, files: Sequence[Source], given: Sequence[Path], kind_of: Callable[[list[str]], str | None], header: str
) -> Iterator[tuple[str, Source]]:
    """(kind, file) of the files that are of a set, as ``kind_of`` knows them by their header.

    Others are passed over, but for those that the user gave by name: an :class:`InputError`, with a ``header`` that was
    expected.
    """
    for source in files:
        if kind := kind_of(header_of(source)):
            yield kind, source
        elif source.member is None and source.path in given:
            raise InputError(f"none of {whose} files; expected a header such as {header}", path=source.shown, line=1)
        else:
            log.info("%s: not one of %s files, passed over", source.name, whose)


def kind_by(headers: Mapping[str, Sequence[str]], header: Sequence[str]) -> str | None:
    """The kind of table whose columns these are, in any order."""
    return next((kind for kind, columns in headers.items() if sorted(columns) == sorted(header)), None)


def check_found(found: Any, what: str, example: str) -> None:
    """:class:`InputError` where the files hold nothing of a kind that is needed; ``example``: the file that has it."""
    if not found:
        raise InputError(f"no {what} in what --source names; expected {example}")
