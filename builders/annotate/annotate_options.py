"""Options and results that steps of `annotate` share. This module imports no library, so that ``--help`` is quick."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from builders.core.options import AtLeastOne, Help, Placeholder
from builders.core.results import Report, Table

# Appendix A.3.
PACKAGE_SIZE = 1_000  # pairs or queries of a package
REVIEW_ITEMS = 100  # pairs or queries of a package that each reviewer judges

RoundPath = Annotated[Path, Placeholder("ROUND"), Help("directory of the round")]
Scale = Annotated[Literal["sigmoid", "none"], Help("conversion of each score before the mean")]
Parallel = Annotated[AtLeastOne, Placeholder("N"), Help("requests at once")]
ItemCount = Annotated[AtLeastOne, Placeholder("N")]


@dataclass(frozen=True)
class WrittenFiles:
    """The result of a step that writes files.

    Attributes:
        paths: the written files, or the directory of the round.
        text: the text that the command prints, or "" if the command prints nothing.
        counts: figures of the step by name, for example the number of packages.
    """

    paths: tuple[Path, ...]
    text: str
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def report(self) -> Report | None:
        """The paths and the figures for the command line. None if the command prints nothing."""
        if not self.text:
            return None
        path_names = [str(path) for path in self.paths]
        return Report(
            value={"paths": path_names} | self.counts,
            text=self.text,
            tables=[Table(("path",), [(name,) for name in path_names])],
        )
