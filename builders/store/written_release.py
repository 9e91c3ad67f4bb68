"""The result of a verb that writes a release: the open release, and the figures that the command line prints."""

from dataclasses import dataclass
from pathlib import Path

from builders.core.results import Report
from builders.store.reader import Release, open_release


@dataclass(frozen=True)
class WrittenRelease(Release):
    """A release that a verb has written, with its report."""

    report: Report

    def _repr_markdown_(self) -> str:
        return self.report._repr_markdown_()


def open_written(out: Path, report: Report) -> WrittenRelease:
    """Open the release that a verb has written to ``out``."""
    release = open_release(out)
    return WrittenRelease(release.path, release.manifest, report)
