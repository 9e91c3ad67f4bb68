"""The tests of ``check``, by name, and the report of their findings and of the figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from builders.check.count import Figures


ERROR, WARNING, INFO = "error", "warning", "info"

# A passage of the paper has 360 to 400 characters, its longest collection (news) 1,431; a question 9 to 48.
LONGEST_PASSAGE = 50_000
LONGEST_QUERY = 1_000

EXAMPLES = 3

# Name -> (class, what is counted). An error makes scores wrong, or is no release; a warning is what a reader of the
# scores should know, and what real web text has; info is for comparison.
TESTS = {
    "manifest": (ERROR, "files that are missing or unreadable, or not what the manifest says"),
    "unlisted-files": (WARNING, "files that the manifest does not list (publish refuses them)"),
    "ids-not-md5": (ERROR, "ids that are not the lower-case hex MD5 of their text"),
    "one-id-two-texts": (ERROR, "ids that stand for several texts"),
    "duplicate-texts": (ERROR, "texts that come again in the same split"),
    "empty-texts": (ERROR, "texts without a visible character"),
    "dangling-ids": (ERROR, "ids of a query or passage that is not there"),
    "duplicate-judgments": (ERROR, "judgments that come again"),
    "queries-without-positives": (ERROR, "queries of a labelled split without a positive passage"),
    "no-positives-left": (WARNING, "queries whose positive passages people have all refuted: no mean counts them"),
    "joined-rows": (ERROR, "joined rows that disagree with queries and qrels"),
    "similar-queries": (ERROR, "removed training queries that are still there, duplicated and others not told apart"),
    "samples": (ERROR, "samples of the collection that list a passage twice, or one that is not there"),
    "stats": (ERROR, "figures of stats.json that are not those of the rows"),
    "long-texts": (WARNING, f"passages over {LONGEST_PASSAGE:,} and queries over {LONGEST_QUERY:,} characters"),
    "control-characters": (WARNING, "texts with control characters other than tab and line ends"),
    "replacement-characters": (WARNING, "texts with U+FFFD, the trace of a wrong decoding"),
    "shared-queries": (WARNING, "queries that stand in two splits, such as train and dev"),
    "split-sizes": (WARNING, "sizes that are not those of the paper's Table 3"),
    "not-tested": (INFO, "tests that need what is not there, or could not be read"),
}


@dataclass(frozen=True)
class Finding:
    """One place where a test found something; at most ``EXAMPLES`` examples."""

    test: str  # a name of TESTS
    where: str  # config/split, or a file
    count: int
    what: str
    examples: list[str] = field(default_factory=list)
    level: str = ""  # where it is not the test's own class


@dataclass
class Report:
    """All findings on one release, and its figures.

    Attributes:
        accepted: the tests whose errors count as warnings.
        drawn: the label overlap of sets for interpolation and extrapolation, a row each.
    """

    findings: list[Finding]
    accepted: frozenset[str]
    figures: Figures
    drawn: list[dict[str, Any]]

    def level(self, finding: Finding) -> str:
        level = finding.level or TESTS[finding.test][0]
        return WARNING if level == ERROR and finding.test in self.accepted else level

    def of(self, test: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.test == test]

    @property
    def errors(self) -> list[Finding]:
        """The findings of class error, in the order of ``TESTS``."""
        return [finding for test in TESTS for finding in self.of(test) if self.level(finding) == ERROR]

    def as_json(self) -> dict[str, Any]:
        tests = [
            {
                **{"test": name, "level": level, "counts": counts, "count": sum(each.count for each in self.of(name))},
                "findings": [
                    {"level": self.level(each)}
                    | {key: getattr(each, key) for key in ("where", "count", "what", "examples")}
                    for each in self.of(name)
                ],
            }
            for name, (level, counts) in TESTS.items()
        ]
        from builders.check.paper import published  # pyarrow is slow to import: `--help` needs the names of tests alone

        figures = {"release": self.figures.stats, "overlap": self.drawn, "paper": published()}
        return {"errors": sum(finding.count for finding in self.errors), "tests": tests, **figures}

    def text(self) -> str:
        from builders.check.paper import side_by_side
        from builders.store.judgments import overlap_table

        lines = []
        for name, (_, counts) in TESTS.items():
            found = self.of(name)
            level = min(map(self.level, found), key=(ERROR, WARNING, INFO).index, default="ok")
            lines.append(f"{level:<8} {name:<26} {sum(finding.count for finding in found):>9,}  {counts}")
            for finding in found:
                examples = f": {', '.join(finding.examples)}" if finding.examples else ""
                more = ", ..." if examples and finding.count > len(finding.examples) else ""
                lines.append(f"{'':<9}{finding.where}: {finding.what}{examples}{more}")
        lines += ["", side_by_side(self.figures.stats)]
        if self.drawn:
            lines += ["", "label overlap with training queries", overlap_table(self.drawn)]
        return "\n".join(lines)
