"""What a model answers, kept as it comes, until it is a file of the round's judgments."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from builders.annotate.judgments import Judgment, add_judgments, encoded, judgments_in
from builders.core.files import alone, fsync, read_whole


class Answers:
    """A file of judgments that grows, a line each; threads may share it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._lock = file, Lock()

    def keep(self, judgment: Judgment) -> None:
        """Write a judgment; it is on the disk when this returns."""
        with self._lock:
            self._file.write(encoded(judgment) + b"\n")
            self._file.flush()
        os.fsync(self._file.fileno())  # a disk writes those of several threads at once


@contextmanager
def answers_of(round_: Path, model: str) -> Iterator[Answers]:
    """What a model answers about a round, for one process at a time; judgments of the round when the block ends.

    However it ends: what a killed process has kept becomes judgments at the beginning of the next block. It lies in
    ``ROUND/.answers.KEY.jsonl`` meanwhile. :class:`InputError` where another process asks the same model.
    """
    path = round_ / f".answers.{hashlib.sha256(model.encode()).hexdigest()[:16]}.jsonl"
    with alone(path, round_):
        _take_in(round_, path)
        try:
            with open(path, "wb") as file:
                fsync(round_)
                yield Answers(file)
        finally:
            _take_in(round_, path)


def _take_in(round_: Path, path: Path) -> None:
    """Make judgments of the round of what is kept. Killed in between, the next one finds that they are there."""
    kept = read_whole(path) if path.exists() else b""
    whole = kept.rpartition(b"\n")[0]  # a line that a kill has broken off was never kept
    add_judgments(round_, judgments_in(whole, path))  # none, too: what a kill has left beside them goes
    path.unlink(missing_ok=True)
