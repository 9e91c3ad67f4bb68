"""All tests of ``check`` on a release: its files, then the rows of those that are whole."""

from __future__ import annotations

from pathlib import Path

from builders.check.files import check_files
from builders.check.findings import Finding, Report
from builders.check.rows import check_rows
from builders.stats.count import count_survey
from builders.stats.survey import survey
from builders.store.reader import Release


def check(release: Release, accepted: frozenset[str] = frozenset(), tmp: Path | None = None) -> Report:
    """Test a release. ``accepted``: names of tests whose errors count as warnings; ``tmp``: see :func:`survey`."""
    findings = check_files(release)
    # A config of which one file is wrong is not read further: what its rows say would be said of the wrong rows.
    broken = {finding.where.split("/")[0] for finding in findings if finding.test == "manifest"}
    with survey(release, lambda config, _: config not in broken, tmp) as tables:
        figures = count_survey(tables)
        findings += check_rows(tables, figures.stats)
    if broken & {config for config, _ in release.splits()}:
        names = ", ".join(sorted(broken))
        findings.append(Finding("not-tested", str(release.path), len(broken), f"configs with a wrong file: {names}"))
    return Report(findings, accepted, figures)
