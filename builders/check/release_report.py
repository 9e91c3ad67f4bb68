"""Run all tests of ``check``: compare the files with the manifest, then test the rows of the intact configs."""

import concurrent.futures
from dataclasses import asdict, dataclass, replace
from typing import Any

from builders.check.count import Figures, count_survey
from builders.check.findings import ERROR, EXAMPLES, INFO, TESTS, WARNING, Finding
from builders.check.paper import side_by_side
from builders.check.rules import check_rows
from builders.check.survey import survey
from builders.core.errors import InputError
from builders.core.limits import usable_cores
from builders.core.progress import progress
from builders.store.judgments import drawn_overlaps, overlap_table, overlaps_with_train
from builders.store.layout import MANIFEST, SETS
from builders.store.published import published
from builders.store.reader import Release
from builders.store.shards import wrong_file
from builders.store.stored_answers import answer_counts


@dataclass
class CheckedRelease:
    """The findings on a release in the order of ``TESTS``, and its statistics.

    ``drawn`` has a row for the label overlap of each interpolation or extrapolation set.
    """

    findings: list[Finding]
    figures: Figures
    drawn: list[dict[str, Any]]

    def of(self, test: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.test == test]

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.level == ERROR]

    def results(self) -> list[tuple[str, str, int, str]]:
        """Return (test, result, fault count, counted faults) of every test. The result is ok, or the worst level."""
        results = []
        for test, (_, counted) in TESTS.items():
            findings = self.of(test)
            result = min((finding.level for finding in findings), key=(ERROR, WARNING, INFO).index, default="ok")
            results.append((test, result, sum(finding.count for finding in findings), counted))
        return results

    def as_json(self) -> dict[str, Any]:
        tests = [
            {
                **{"test": name, "level": level, "counts": counts, "count": sum(one.count for one in self.of(name))},
                "findings": [asdict(finding) for finding in self.of(name)],
            }
            for name, (level, counts) in TESTS.items()
        ]
        return {
            **{"errors": sum(finding.count for finding in self.errors), "tests": tests},
            **{"release": self.figures.stats, "overlap": self.drawn, "paper": published()},
        }

    def text(self) -> str:
        lines = []
        for test, result, faults, counted in self.results():
            lines.append(f"{result:<8} {test:<26} {faults:>9,}  {counted}")
            for finding in self.of(test):
                examples = f": {', '.join(finding.examples)}" if finding.examples else ""
                more = ", ..." if examples and finding.count > len(finding.examples) else ""
                lines.append(f"{'':<9}{finding.where}: {finding.what}{examples}{more}")
        lines += ["", side_by_side(self.figures.stats)]
        if self.drawn:
            lines += ["", "label overlap with training queries", overlap_table(self.drawn)]
        return "\n".join(lines)


def check(release: Release, accepted: frozenset[str] = frozenset()) -> CheckedRelease:
    """Test a release. ``accepted`` are names of tests whose errors count as warnings."""
    findings = check_files(release)
    # The rows of a config with a wrong file are not tested, because the file could be the cause of their faults.
    broken = {finding.where.split("/")[0] for finding in findings if finding.test == "manifest"}
    with survey(release, broken) as tables:
        figures = count_survey(tables)
        figures.stats["table2"] = {
            name: {
                "queries": sum(release.rows(found.queries, split) for split in tables.splits(found.queries)),
                "passages": release.rows(found.corpus, "corpus"),
            }
            for name, found in SETS.items()
            if not found.translated and tables.splits(found.corpus) and tables.splits(found.queries)
        }
        if answers := answer_counts(tables.loaded, release.table):
            figures.stats["answers"] = answers
        findings += check_rows(tables, figures.stats)
        if overlap := overlaps_with_train(tables.loaded, release.table):
            figures.stats["label_overlap"] = overlap
        drawn = drawn_overlaps(tables.loaded, release.table)
    if broken & {config for config, _ in release.splits()}:
        names = ", ".join(sorted(broken))
        findings.append(Finding("not-tested", str(release.path), len(broken), f"configs with a wrong file: {names}"))
    levels = {name: WARNING if name in accepted else level for name, (level, _) in TESTS.items()}
    findings = [replace(finding, level=finding.level or levels[finding.test]) for finding in findings]
    return CheckedRelease(sorted(findings, key=lambda finding: [*TESTS].index(finding.test)), figures, drawn)


def check_files(release: Release) -> list[Finding]:
    """Compare every file with the manifest (size, SHA-256, rows, columns), and find unlisted files."""
    entries = release.manifest.files
    with concurrent.futures.ThreadPoolExecutor(usable_cores()) as pool:
        # ``again`` ignores the cache of verified files, because `check` must read every file.
        reasons = pool.map(lambda entry: wrong_file(release.path / entry.path, entry, again=True), entries)
        wrong = []
        with progress(total=sum(entry.bytes for entry in entries), unit="B", label="files") as bar:
            for entry, reason in zip(entries, reasons, strict=True):
                if reason:
                    wrong.append((entry.path, reason))
                bar.update(entry.bytes)
    for config, split in release.splits():
        try:
            release.shards(config, split)
        except InputError as error:
            wrong.append((f"{config}/{split}", str(error)))
    findings = [Finding("manifest", where, 1, reason) for where, reason in wrong]
    if unlisted := unlisted_files(release):
        what = f"{len(unlisted):,} files that the manifest does not list"
        findings.append(Finding("unlisted-files", str(release.path), len(unlisted), what, unlisted[:EXAMPLES]))
    return findings


def unlisted_files(release: Release) -> list[str]:
    """Return the relative paths of all unlisted files in a release, including links and hidden files, sorted."""
    listed = {entry.path for entry in release.manifest.files} | {MANIFEST}
    found = (path for path in release.path.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted({path.relative_to(release.path).as_posix() for path in found} - listed)
