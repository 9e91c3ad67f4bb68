"""The tests of ``check`` by name, and one finding of a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    examples: Sequence[str] = ()
    level: str = ""  # the class; empty: the test's own
