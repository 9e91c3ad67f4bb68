"""What does not agree in the official archives: counted, and shown by the first few."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from builders.common.command import log
from builders.official.numbered import Keys, hex_ids

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

    def add_ids(self, what: str, ids: Keys, wrong: npt.NDArray[np.bool_]) -> None:
        """Count those of the ids that are ``wrong``, if any is, with the first as the example."""
        if wrong.any():
            self.add(what, int(wrong.sum()), hex_ids(ids[wrong][:1])[0])

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
