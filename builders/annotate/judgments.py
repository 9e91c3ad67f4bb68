"""Judgments of people (and of models, marked so), in files that are only ever added.

A judgment says who judged which pair of query and passage, when, in which version of which package. ``ROUND/judgments``
holds them as JSON lines; a file's name is the SHA-256 of its content, so that what is there cannot change unseen, the
same content never comes twice, and the folders of two copies of a round can be put together by copying files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from builders.annotate.questions import QUESTIONS, Asked
from builders.core.errors import InputError, visible
from builders.core.files import alone, new_file, read_whole
from builders.core.typed import json_of

JUDGMENTS = "judgments"
Kind = Literal["annotation", "review", "adjudication", "model"]
Id = Annotated[str, Meta(min_length=1, max_length=1_000, pattern=r"\A[^\s\x00]+\Z")]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Version = Annotated[int, Meta(ge=1, le=1_000_000)]  # of a package: one more each time it was sent back
Pair = tuple[str, str]  # query id, passage id


class Judgment(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True, forbid_unknown_fields=True):
    """One judgment of one pair.

    Attributes:
        label: 1 where the passage answers the query, 0 where not; a model's may go to 3. In an analysis of errors
            one of its categories, from 1 to 8.
        annotator: who judged; a model's judgment names the model in ``model``, too.
        time: when, in UTC.
        package, version: the package and its version, from 1.
        kind: an annotator's, a reviewer's, an adjudicator's, or a model's, which never counts as a person's.
        question: what was asked (:mod:`.questions`).
    """

    query_id: Id
    corpus_id: Id
    label: Annotated[int, Meta(ge=0, le=8)]
    annotator: Name
    time: Annotated[datetime, Meta(tz=True)]
    package: Name
    version: Version
    kind: Kind
    model: str | None = None
    note: str | None = None
    question: Asked = "relevance"

    def __post_init__(self) -> None:
        asked = QUESTIONS[self.question]
        if not asked.lowest <= self.label <= (highest := asked.highest[self.kind == "model"]):
            raise ValueError(f"label: expected {asked.lowest} to {highest} in a judgment of kind {self.kind}")
        if (self.model is None) == (self.kind == "model"):
            raise ValueError("model: expected the model's name where the kind is model, and nowhere else")
        if visible(self.annotator) != self.annotator:
            raise ValueError("annotator: expected a name without control characters")
        if not 1970 < self.time.year < 3000:
            raise ValueError("time: expected a year from 1971 to 2999")

    @property
    def pair(self) -> Pair:
        return self.query_id, self.corpus_id

    @property
    def place(self) -> tuple[str, int, str, str, Pair]:
        """What a person judges once: whoever judges it again changes their mind, and the latest counts."""
        return self.package, self.version, self.kind, self.annotator, self.pair


def encoded(judgment: Judgment) -> bytes:
    """Its line, without the line's end."""
    return msgspec.json.encode(msgspec.structs.replace(judgment, time=judgment.time.astimezone(timezone.utc)))


def read_judgments(round_: Path) -> list[Judgment]:
    """Every judgment of a round, each once, in the order of their times.

    Raises :class:`InputError` for a file that is not what its name says, and for a line that is no judgment.
    """
    found: dict[bytes, Judgment] = {}
    for path in _files(round_):
        content = read_whole(path)
        if hashlib.sha256(content).hexdigest() != path.stem:
            raise InputError("was changed: its SHA-256 is not its name; put the original back", path=path)
        found.update(_lines(content, path))
    return [found[line] for line in sorted(found, key=lambda line: (found[line].time, line))]


def _files(round_: Path) -> list[Path]:
    return sorted(path for path in (round_ / JUDGMENTS).glob("*.jsonl") if not path.name.startswith("."))


def judgments_in(content: bytes, path: Path) -> list[Judgment]:
    """The judgments of JSON lines; ``path`` for errors (:class:`InputError`)."""
    return [judgment for _, judgment in _lines(content, path)]


def _lines(content: bytes, path: Path) -> Iterator[tuple[bytes, Judgment]]:
    for number, line in enumerate(content.split(b"\n"), 1):
        if line:
            yield line, json_of(line, Judgment, path, number)


def latest(judgments: Iterable[Judgment]) -> dict[tuple[str, int, str, str, Pair], Judgment]:
    """What counts of judgments in the order of their times: of each person's on the same, the latest."""
    return {judgment.place: judgment for judgment in judgments}


def add_judgments(round_: Path, judgments: Iterable[Judgment], timed: bool = True) -> int:
    """Add what is new to a round, as one file that appears when it is whole; returns the number of judgments added.

    Two processes take turns; what is there already is not written again, so that the same import changes nothing.

    Args:
        timed: the judgments have times of their own. Else a judgment is new where the latest of the same person on the
            same pair, package and version says something else.
    """
    folder = round_ / JUDGMENTS
    with alone(folder, folder, wait=True):
        folder.mkdir(exist_ok=True)
        known = read_judgments(round_)
        if timed:
            lines = {encoded(judgment) for judgment in known}
            new = [line for line in dict.fromkeys(map(encoded, judgments)) if line not in lines]
        else:
            said = {place: (each.label, each.note) for place, each in latest(known).items()}
            given = latest(judgments).values()
            new = [encoded(each) for each in given if said.get(each.place) != (each.label, each.note)]
        for left in folder.glob(".*.tmp*"):  # files and locks of a killed process: nobody else is at it
            left.unlink()
        if new:
            content = b"".join(line + b"\n" for line in new)
            with new_file(folder / f"{hashlib.sha256(content).hexdigest()}.jsonl") as beside:
                beside.write_bytes(content)
    return len(new)
