"""The names and severities of the tests of ``check``, and the findings of a test."""

from collections.abc import Sequence
from dataclasses import dataclass

ERROR = "error"
WARNING = "warning"
INFO = "info"

# In Table 3, positive passages have 101 to 1,431 characters on average, and queries 9 to 48.
LONGEST_PASSAGE = 50_000
LONGEST_QUERY = 1_000

EXAMPLES = 3  # examples of a finding

# Test name -> (severity, the faults that the test counts). An error makes scores wrong or a release unreadable. A
# warning may affect the scores, but also occurs in sound web data. An info is only for comparison.
TESTS = {
    "manifest": (ERROR, "files that are missing, unreadable or different from the manifest"),
    "unlisted-files": (WARNING, "files that the manifest does not list (publish refuses them)"),
    "ids-not-md5": (ERROR, "ids that are not the lower-case hex MD5 of their text"),
    "one-id-two-texts": (ERROR, "ids with more than one text"),
    "duplicate-texts": (ERROR, "texts that are repeated in the same split"),
    "empty-texts": (ERROR, "texts without a visible character"),
    "dangling-ids": (ERROR, "ids of queries or passages that do not exist"),
    "duplicate-judgments": (ERROR, "repeated judgments"),
    "queries-without-positives": (ERROR, "queries of a labelled split without a positive passage"),
    "no-positives-left": (WARNING, "queries whose positives people all judged negative; averages skip these queries"),
    "joined-rows": (ERROR, "joined rows that disagree with queries and qrels"),
    "similar-queries": (ERROR, "similar training queries that are not removed; wrong configs duplicated or others"),
    "samples": (ERROR, "samples that list a passage twice, or a passage that does not exist"),
    "original-ids": (ERROR, "original ids that are listed twice"),
    "perturbed-queries": (ERROR, "perturbed queries that are another query, or share their original"),
    "answers": (ERROR, "answers that do not fit their question, its type or its judged passages"),
    "stats": (ERROR, "values of stats.json that differ from the rows"),
    "long-texts": (WARNING, f"passages over {LONGEST_PASSAGE:,} and queries over {LONGEST_QUERY:,} characters"),
    "control-characters": (WARNING, "texts with control characters other than tab and line ends"),
    "replacement-characters": (WARNING, "texts with U+FFFD, the result of a wrong decoding"),
    "shared-queries": (WARNING, "queries in two splits, for example train and dev"),
    "split-sizes": (WARNING, "sizes that differ from the paper's Table 3"),
    "not-tested": (INFO, "tests that were skipped, because a config is missing or unreadable"),
}


@dataclass(frozen=True)
class Finding:
    """The faults that a test found in a file or split, with at most ``EXAMPLES`` examples."""

    test: str  # a name of TESTS
    where: str  # config/split, a config, a file, or the release directory
    count: int  # the number of faults
    what: str  # a description of the faults, usually with their number
    examples: Sequence[str] = ()  # ids, or other short descriptions of single faults
    level: str = ""  # the severity; empty for the severity of the test
