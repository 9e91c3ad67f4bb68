"""A pytest plugin that prints the processor time of each file and of the slowest tests, with their child processes.

Processor time hardly depends on the machine's load, so it shows which tests are expensive::

    PYTHONPATH=tests python -m pytest -p cpu_seconds -m "not slow"

Processes that a test leaves running are not counted.
"""

import resource
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

_SLOWEST = 40
_KEY = "cpu_seconds"
_seconds_by_test: Counter[str] = Counter()
_started: list[float] = [0.0]  # its element is the processor time before the running test


def processor_seconds() -> float:
    """Return the processor time of this process and of its finished child processes."""
    seconds = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        seconds += usage.ru_utime + usage.ru_stime
    return seconds


def pytest_runtest_logstart() -> None:
    """Note the time before the fixtures of a test."""
    _started[0] = processor_seconds()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Record the test's time after its fixtures have ended. The report carries it to the process that prints."""
    yield
    item.user_properties.append((_KEY, processor_seconds() - _started[0]))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect the time of a test."""
    if report.when == "teardown":
        _seconds_by_test[report.nodeid] += dict(report.user_properties).get(_KEY, 0.0)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the total, the files and the slowest tests."""
    seconds_by_file: Counter[str] = Counter()
    for test_name, seconds in _seconds_by_test.items():
        seconds_by_file[test_name.partition("::")[0]] += seconds
    terminalreporter.write_line(f"processor time of all tests: {sum(_seconds_by_test.values()):.0f} s")
    for name, seconds in seconds_by_file.most_common() + _seconds_by_test.most_common(_SLOWEST):
        terminalreporter.write_line(f"{seconds:8.1f} s  {name}")
