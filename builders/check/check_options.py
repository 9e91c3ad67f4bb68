"""Options of `check`, which `publish` shares."""

from collections.abc import Sequence
from typing import Annotated

from builders.check.findings import ERROR, TESTS
from builders.core.options import Help, OneOf, Placeholder


def _acceptable_tests() -> tuple[str, ...]:
    error_tests = [test for test, (level, _) in TESTS.items() if level == ERROR]
    # A release with files that differ from the manifest is never accepted.
    error_tests.remove("manifest")
    return tuple(sorted(error_tests))


ACCEPTABLE_TESTS = _acceptable_tests()
AcceptedTests = Annotated[
    Sequence[str],
    OneOf(ACCEPTABLE_TESTS),
    Placeholder("TEST"),
    Help("count the errors of these tests as warnings (default: no test)"),
]
