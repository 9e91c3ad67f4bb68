"""Read ``builders/sources.json``: the archives from which releases are built, and the models of the paper."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from builders.core.errors import UsageError
from builders.core.results import Report, Table
from builders.core.typed import Count, read_json

_SOURCES_FILE = Path(__file__).parents[1] / "sources.json"


class Archive(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An archive. A field is None if nobody has published its value. An archive without ``url`` is fetched by hand.

    Attributes:
        url: the address of the archive.
        bytes, md5, sha256: the size and the checksums (hex) of the archive.
        licence: the name of the licence.
        holds: a description of the content.
        by_hand: instructions to get the files. None for an archive with ``url``.
    """

    url: Annotated[str, msgspec.Meta(pattern="^https://")] | None
    bytes: Count | None
    md5: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")] | None
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")] | None
    licence: str | None
    holds: str
    by_hand: str | None


Archives = Mapping[str, Archive]


def read_archives(names: Sequence[str] = ()) -> Archives:
    """Return the archives ``names`` (default: all) in file order. Raise :class:`UsageError` for an unknown name."""
    all_archives = read_json(_SOURCES_FILE, dict[str, Archive])
    for name in names:
        if name not in all_archives:
            raise UsageError(f"unknown source {name!r}; expected one of {', '.join(all_archives)}")
    if not names:
        return all_archives
    return {name: archive for name, archive in all_archives.items() if name in names}


def archives_report(archives: Archives) -> Report:
    """Return the archives as a report with a row for each archive."""
    value = msgspec.to_builtins(archives)
    columns = Archive.__struct_fields__
    rows = []
    for name, fields in value.items():
        rows.append([name] + [fields[column] for column in columns])
    return Report(value, archives_text(archives), [Table(["name", *columns], rows)])


def archives_text(archives: Archives) -> str:
    """Format the archives as text, with a paragraph for each archive."""
    return "\n\n".join(_paragraph(name, archive) for name, archive in archives.items())


def _paragraph(name: str, archive: Archive) -> str:
    # An archive that is fetched by hand has no bytes and checksums to expect.
    unknown = "unknown" if archive.url else "-"
    value_by_title = {
        "holds": archive.holds,
        "from": archive.url or "-",
        "by hand": archive.by_hand or "-",
        "bytes": unknown if archive.bytes is None else f"{archive.bytes:,}",
        "md5": archive.md5 or unknown,
        "sha256": archive.sha256 or unknown,
        "licence": archive.licence or "terms of the publisher; see its page",
    }
    lines = [name]
    lines += [f"  {title:<8} {value}" for title, value in value_by_title.items()]
    return "\n".join(lines)
