"""Options of `check`, which `publish` shares."""

from collections.abc import Sequence
from typing import Annotated

from builders.check.findings import ERROR, TESTS
from builders.core.options import Help, OneOf, Shown

# A release with files that differ from the manifest is never accepted.
ACCEPTABLE_TESTS = tuple(sorted(test for test, (level, _) in TESTS.items() if level == ERROR and test != "manifest"))
AcceptedTests = Annotated[
    Sequence[str],
    OneOf(ACCEPTABLE_TESTS),
    Shown("TEST"),
    Help("count the errors of these tests as warnings (default: no test)"),
]
