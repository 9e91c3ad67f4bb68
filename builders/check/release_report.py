"""Run all tests of ``check``: compare the files with the manifest, then test the rows of the intact configs."""

import concurrent.futures
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from builders.check.count import ReleaseFigures, count_survey
from builders.check.findings import ERROR, EXAMPLES, INFO, TESTS, WARNING, Finding
from builders.check.paper import side_by_side
from builders.check.rules import check_rows
from builders.check.survey import Survey, open_survey
from builders.core.cache import FileEntry
from builders.core.errors import InputError
from builders.core.limits import usable_cores
from builders.core.progress import show_progress
from builders.store.judgments import drawn_overlaps, overlap_table, overlaps_with_train
from builders.store.layout import MANIFEST, SETS
from builders.store.published import published_figures
from builders.store.reader import Release
from builders.store.shards import wrong_file
from builders.store.stored_answers import answer_counts

_WORST_FIRST = (ERROR, WARNING, INFO)


@dataclass
class CheckedRelease:
    """The findings on a release in the order of ``TESTS``, and its statistics.

    Every finding has its level. ``drawn_overlaps`` are the rows of :func:`.judgments.drawn_overlaps`: one for the label
    overlap of each interpolation or extrapolation set.
    """

    findings: list[Finding]
    figures: ReleaseFigures
    drawn_overlaps: list[dict[str, Any]]

    def of(self, test_name: str) -> list[Finding]:
        """Return the findings of a test."""
        return [finding for finding in self.findings if finding.test == test_name]

    @property
    def errors(self) -> list[Finding]:
        """The findings that make the release invalid."""
        return [finding for finding in self.findings if finding.level == ERROR]

    def results(self) -> list[tuple[str, str, int, str]]:
        """Return (test, result, fault count, description of the counted faults) of every test.

        The result is ok, or the worst level of the test's findings.
        """
        results = []
        for test, (_, counted_faults) in TESTS.items():
            levels = [finding.level for finding in self.of(test)]
            result = min(levels, key=_WORST_FIRST.index, default="ok")
            results.append((test, result, self._count_faults(test), counted_faults))
        return results

    def _count_faults(self, test_name: str) -> int:
        return sum(finding.count for finding in self.of(test_name))

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON: the tests with their findings, the statistics, and the paper's figures.

        ``errors`` is the number of faults. The ``level`` of a test is the severity in ``TESTS``. Only its findings have
        the level that counts, which is lower for an accepted test.
        """
        tests = []
        for name, (level, counted_faults) in TESTS.items():
            tests.append(
                {
                    "test": name,
                    "level": level,
                    "counts": counted_faults,
                    "count": self._count_faults(name),
                    "findings": [asdict(finding) for finding in self.of(name)],
                }
            )
        return {
            "errors": sum(finding.count for finding in self.errors),
            "tests": tests,
            "release": self.figures.stats,
            "overlap": self.drawn_overlaps,
            "paper": published_figures(),
        }

    def text(self) -> str:
        """Return the result for people: a line for each test and finding, and the statistics beside the paper's."""
        lines = []
        for test, result, fault_count, counted_faults in self.results():
            lines.append(f"{result:<8} {test:<26} {fault_count:>9,}  {counted_faults}")
            lines += [f"{'':<9}{_describe(finding)}" for finding in self.of(test)]
        lines += ["", side_by_side(self.figures.stats)]
        if self.drawn_overlaps:
            lines += ["", "label overlap with training queries", overlap_table(self.drawn_overlaps)]
        return "\n".join(lines)


def _describe(finding: Finding) -> str:
    line = f"{finding.where}: {finding.what}"
    if finding.examples:
        line += f": {', '.join(finding.examples)}"
        if finding.count > len(finding.examples):
            line += ", ..."
    return line


def run_check(release: Release, accepted: frozenset[str] = frozenset()) -> CheckedRelease:
    """Test a release. ``accepted`` are names of tests whose errors count as warnings."""
    findings = check_files(release)
    # The rows of a config with a wrong file are not tested, because the file could be the cause of their faults. For a
    # wrong file outside of the configs, such as README.md, the set has the file's name, which no config has.
    broken_configs = {finding.where.split("/")[0] for finding in findings if finding.test == "manifest"}
    with open_survey(release, broken_configs) as tables:
        figures = count_survey(tables)
        figures.stats["table2"] = _count_table2(tables)
        answers = answer_counts(tables.loaded, release.table)
        if answers:
            figures.stats["answers"] = answers
        findings += check_rows(tables, figures.stats)
        overlap = overlaps_with_train(tables.loaded, release.table)
        if overlap:
            figures.stats["label_overlap"] = overlap
        drawn_rows = drawn_overlaps(tables.loaded, release.table)
    release_configs = {config for config, _ in release.splits()}
    # A broken file may also lie outside of the configs.
    untested_configs = broken_configs & release_configs
    if untested_configs:
        what = f"configs with a wrong file: {', '.join(sorted(untested_configs))}"
        findings.append(Finding("not-tested", str(release.path), len(untested_configs), what))

    # Set the levels, and sort by test.
    levels = {test: level for test, (level, _) in TESTS.items()}
    levels |= dict.fromkeys(accepted, WARNING)
    graded_findings = []
    for finding in findings:
        level = finding.level or levels[finding.test]
        graded_findings.append(replace(finding, level=level))
    test_order = list(TESTS)
    graded_findings.sort(key=lambda finding: test_order.index(finding.test))
    return CheckedRelease(graded_findings, figures, drawn_rows)


def _count_table2(survey_tables: Survey) -> dict[str, dict[str, int]]:
    """Return ``{set: {"queries", "passages"}}``, the sizes of the sets for Table 2.

    Sets of translated or perturbed queries, which have an ``original_column``, are not in Table 2.
    """
    release = survey_tables.release
    counts = {}
    for set_name, dataset_set in SETS.items():
        # A set without queries or passages has nothing to compare.
        query_splits = survey_tables.splits(dataset_set.queries)
        if dataset_set.original_column or not query_splits or not survey_tables.splits(dataset_set.corpus):
            continue
        counts[set_name] = {
            "queries": sum(release.rows(dataset_set.queries, split) for split in query_splits),
            "passages": release.rows(dataset_set.corpus, "corpus"),
        }
    return counts


def check_files(release: Release) -> list[Finding]:
    """Compare every file with the manifest (size, SHA-256), test the rows and values of shards, find unlisted files.

    The findings have no level yet.
    """
    entries = release.manifest.files
    with concurrent.futures.ThreadPoolExecutor(usable_cores()) as pool:
        reasons = pool.map(partial(_wrong_entry, release), entries)
        wrong_files = []
        with show_progress(total=sum(entry.bytes for entry in entries), unit="B", label="files") as bar:
            for entry, reason in zip(entries, reasons, strict=True):
                if reason:
                    wrong_files.append((entry.path, reason))
                bar.update(entry.bytes)
    # If the manifest lacks a shard, too, the comparison above finds no fault. The numbers in the shards' names show it.
    for config, split in release.splits():
        try:
            release.shards(config, split)
        except InputError as error:
            wrong_files.append((f"{config}/{split}", str(error)))
    findings = [Finding("manifest", where, 1, reason) for where, reason in wrong_files]
    unlisted = unlisted_files(release)
    if unlisted:
        what = f"{len(unlisted):,} files that the manifest does not list"
        findings.append(Finding("unlisted-files", str(release.path), len(unlisted), what, unlisted[:EXAMPLES]))
    return findings


def _wrong_entry(release: Release, entry: FileEntry) -> str:
    """Describe the first difference between a file and its manifest entry; empty if they agree."""
    # ``again`` ignores the cache of verified files, because `check` must read every file.
    return wrong_file(release.path / entry.path, entry, again=True)


def unlisted_files(release: Release) -> list[str]:
    """Return the relative paths of all unlisted files in a release, including links and hidden files, sorted."""
    listed_names = {entry.path for entry in release.manifest.files}
    listed_names.add(MANIFEST)
    unlisted_names = []
    for path in release.path.rglob("*"):
        name = path.relative_to(release.path).as_posix()
        is_file = path.is_symlink() or not path.is_dir()
        if is_file and name not in listed_names:
            unlisted_names.append(name)
    return sorted(unlisted_names)
