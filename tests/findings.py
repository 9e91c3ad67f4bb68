"""What `check` found, in a form that tests compare."""

from __future__ import annotations

from builders.check.findings import TESTS, Report


def found(report: Report) -> dict[str, tuple[str, int, list[tuple[str, int]]]]:
    """Test -> (class, count, [(where, count)]), of the tests that found something; sizes apart."""
    tests = {}
    for name in TESTS:
        findings = report.of(name)
        if findings and name not in ("split-sizes", "not-tested"):
            places = sorted((finding.where, finding.count) for finding in findings)
            tests[name] = (report.level(findings[0]), sum(count for _, count in places), places)
    return tests
