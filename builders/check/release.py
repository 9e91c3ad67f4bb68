"""All tests of ``check`` on a release: its files against its manifest, then the rows of those that are whole."""

from __future__ import annotations

import concurrent.futures
import re
from collections.abc import Iterator
from pathlib import Path

from builders.check.count import count_survey
from builders.check.findings import EXAMPLES, Finding, Report
from builders.check.rows import check_rows
from builders.check.survey import survey
from builders.core.limits import usable_cores
from builders.core.progress import progress
from builders.store.layout import MANIFEST
from builders.store.manifest import FileEntry
from builders.store.overlap import drawn_overlaps, overlaps_with_train
from builders.store.reader import Release
from builders.store.shards import wrong_file

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)*")
_SHARD = re.compile(r"([\w.-]+)/([\w.-]+)-(\d{5})-of-(\d{5})\.parquet")


def check(release: Release, accepted: frozenset[str] = frozenset(), tmp: Path | None = None) -> Report:
    """Test a release. ``accepted``: names of tests whose errors count as warnings; ``tmp``: see :func:`survey`."""
    findings = check_files(release)
    # A config of which one file is wrong is not read further: what its rows say would be said of the wrong rows.
    broken = {finding.where.split("/")[0] for finding in findings if finding.test == "manifest"}
    with survey(release, lambda config, _: config not in broken, tmp) as tables:
        figures = count_survey(tables)
        findings += check_rows(tables, figures.stats)
        if overlap := overlaps_with_train(tables.loaded, release.table):
            figures.stats["label_overlap"] = overlap
        drawn = drawn_overlaps(tables.loaded, release.table)
    if broken & {config for config, _ in release.splits()}:
        names = ", ".join(sorted(broken))
        findings.append(Finding("not-tested", str(release.path), len(broken), f"configs with a wrong file: {names}"))
    return Report(findings, accepted, figures, drawn)


def check_files(release: Release) -> list[Finding]:
    """Every file against the manifest: size, SHA-256, rows, columns; and the files that it does not list."""
    entries = release.manifest.files
    with concurrent.futures.ThreadPoolExecutor(usable_cores()) as pool:
        reasons = list(
            progress(
                pool.map(lambda entry: _wrong(release, entry), entries), total=len(entries), unit="file", label="files"
            )
        )
    findings = [
        Finding("manifest", entry.path, 1, reason) for entry, reason in zip(entries, reasons, strict=True) if reason
    ]
    findings += _incomplete(entries)
    if unlisted := unlisted_files(release):
        findings.append(
            Finding("unlisted-files", str(release.path), len(unlisted), "is not listed", unlisted[:EXAMPLES])
        )
    return findings


def unlisted_files(release: Release) -> list[str]:
    """The files below a release, links and hidden ones too, that its manifest does not list; sorted, relative."""
    listed = {entry.path for entry in release.manifest.files} | {MANIFEST}
    found = (path for path in release.path.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted({path.relative_to(release.path).as_posix() for path in found} - listed)


def _wrong(release: Release, entry: FileEntry) -> str:
    name = entry.path
    if not _NAME.fullmatch(name):
        return "is no path inside a release"
    if name.endswith(".parquet") and not _SHARD.fullmatch(name):
        return "is not named CONFIG/SPLIT-NNNNN-of-NNNNN.parquet"
    # Read again, whatever is known of it: that is what is asked for here.
    return wrong_file(release.path / name, entry, again=True)


def _incomplete(entries: list[FileEntry]) -> Iterator[Finding]:
    """Splits of which the manifest does not list every shard, once and in order, or two numbers of shards."""
    shards: dict[str, list[tuple[int, int]]] = {}
    for entry in entries:
        if match := _SHARD.fullmatch(entry.path):
            shards.setdefault(f"{match[1]}/{match[2]}", []).append((int(match[3]), int(match[4])))
    for where, found in shards.items():
        expected = [(number, found[0][1]) for number in range(found[0][1])]
        if sorted(found) != expected:
            yield Finding("manifest", where, 1, f"the manifest lists {len(found)} of {found[0][1]} shards")
        elif found != expected:
            yield Finding("manifest", where, 1, "the manifest does not list the shards in their order")
