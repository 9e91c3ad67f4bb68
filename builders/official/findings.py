"""What does not agree in the official archives, and the bad lines that ``--skip-bad-lines`` leaves out.

Both are counted in ``stats.json`` and shown by the first few; bad lines are listed in the release, too. A line is bad
where its file's format does not allow it (:mod:`.formats`), or where it gives a question's id another text. What is
wrong with a file as a whole (empty, a byte order mark, CR LF, an object of JSON that is none) is an error all the same.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from builders.core.errors import InputError, log
from builders.core.files import write_text
from builders.store.draft import Draft

_EXAMPLES = 3


@dataclass
class Findings:
    """How often each kind of disagreement was found, in the order in which they were looked for, and examples."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, what: str, times: int = 1, example: str | None = None) -> None:
        self.counts[what] = self.counts.get(what, 0) + times
        if example is not None and len(shown := self.examples.setdefault(what, [])) < _EXAMPLES:
            shown.append(example)

    def add_ids(self, what: str, ids: npt.NDArray[np.uint64], wrong: npt.NDArray[np.bool_]) -> None:
        """Count those of the ids that are ``wrong``, if any is, with the first as the example."""
        if wrong.any():
            self.add(what, int(wrong.sum()), ids[wrong][:1].tobytes().hex())

    def described(self) -> dict[str, Any]:
        """As ``stats.json`` has them."""
        found = {what: times for what, times in self.counts.items() if times}
        return {"findings": found, "examples": self.examples}

    def report(self) -> None:
        """Log what was found. That both releases hold the same rows is no disagreement."""
        for what, times in self.counts.items():
            if times:
                level = logging.INFO if what.endswith("came before") else logging.WARNING
                log.log(level, "%s: %s", what, "; ".join([f"{times:,}", *self.examples.get(what, [])]))


SKIPPED = "official/skipped.tsv"
MOST = 100_000  # bad lines of a file: with more it is another file than its name says
_LOGGED, _EXAMPLES = 5, 3  # of a file


@dataclass
class Skipped:
    """``wanted``: whether bad lines are skipped at all. ``lines``: by file, (line, from 1; what is wrong with it)."""

    wanted: bool = False
    lines: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def add(self, name: str, shown: str, line: int, message: str) -> None:
        """Leave a line of the file ``name`` out. Raises :class:`InputError` where none may be, or too many are."""
        if not self.wanted:
            raise InputError(message, path=shown, line=line)
        found = self.lines.setdefault(name, [])
        found.append((line, message))
        if len(found) > MOST:
            raise InputError(
                f"more than {MOST:,} bad lines; the first is line {found[0][0]}: {found[0][1]}", path=shown
            )
        if len(found) <= _LOGGED:
            log.warning("%s:%d: %s; skipped", shown, line, message)
        if len(found) == _LOGGED:
            log.warning("%s: its other bad lines stand in %s alone", shown, SKIPPED)

    @property
    def total(self) -> int:
        return sum(map(len, self.lines.values()))

    def described(self) -> dict[str, Any]:
        """As ``stats.json`` has them: by file how many, and the first few."""
        return {
            name: {"lines": len(found), "first": [f"line {line}: {what}" for line, what in found[:_EXAMPLES]]}
            for name, found in self.lines.items()
        }

    def write(self, draft: Draft) -> None:
        """List all of them in the release, in :data:`SKIPPED`: file, line, what is wrong with it."""
        (draft.folder / SKIPPED).parent.mkdir()
        rows = (
            f"{name}\t{line}\t{' '.join(what.split())}\n" for name, found in self.lines.items() for line, what in found
        )
        write_text(draft.folder / SKIPPED, "file\tline\twhat\n" + "".join(rows))
        draft.add_file(SKIPPED)
