"""What a dual-encoder needs of sentence-transformers: a sentence of its card, and an entry of its configuration.

The library reads that entry (``requirements`` of ``config_sentence_transformers.json``, since 6.0.0) before it opens a
model: another tool's environment that is too old says so, in place of other numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from baselines.hub.checkpoint import SETTINGS, Checkpoint, open_checkpoint
from builders.core.files import write_text
from builders.core.typed import read_object

_LIBRARY = "sentence-transformers"


@dataclass(frozen=True)
class Need:
    """The lowest version that was tried and gives today's numbers, and what is wrong with earlier ones."""

    version: str
    reason: str

    def __str__(self) -> str:
        return f"{_LIBRARY} {self.version} or later ({self.reason})"


# sentence-transformers 6 wants transformers 5.
_ONE_TOWER = Need("6.0.0", "earlier ones do not know lengths of queries and of passages")
_TWO_TOWERS = Need("6.0.1", "6.0.0 cuts queries at the passages' length")
_STATIC = Need("6.0.0", "earlier ones were not tried")


class _Any(Struct):
    """An object, whatever is in it."""


def need_of(checkpoint: Checkpoint) -> Need:
    """Of a dual-encoder."""
    if checkpoint.is_static:
        return _STATIC
    return _TWO_TOWERS if checkpoint.towers == 2 else _ONE_TOWER


def write_needs(folder: Path) -> None:
    """Have the configuration of the checkpoint in ``folder`` say what it needs, where it is a dual-encoder.

    One without a transformer (static embeddings) has no lengths, and no need of this.
    """
    checkpoint = open_checkpoint(folder)
    if checkpoint.kind == "dual" and (checkpoint.towers == 2 or (folder / "sentence_bert_config.json").is_file()):
        need, path = need_of(checkpoint), folder / SETTINGS
        settings = read_object(path, _Any)
        settings["requirements"] = {_LIBRARY: {"specifier": f">={need.version}", "reason": f"({need.reason})"}}
        write_text(path, json.dumps(settings, ensure_ascii=False, indent=2))
