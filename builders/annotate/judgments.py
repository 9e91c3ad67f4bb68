"""Judgments of people (and of models, marked so), in files that are only ever added, and the questions they answer.

A judgment says who judged which pair of query and passage, when, in which version of which package. ``ROUND/judgments``
holds them as JSON lines; a file's name is the SHA-256 of its content, so that what is there cannot change unseen, the
same content never comes twice, and the folders of two copies of a round can be put together by copying files.

A round asks one question of each pair: ``relevance`` is what people judge for the qrels (Section 2.3, A.3); ``errors``
is the paper's analysis of errors (Section 3.5, Table 10): what went wrong where a passage that is no positive was
ranked so high.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from builders.core.errors import InputError, visible
from builders.core.files import alone, new_file, read_whole
from builders.core.typed import json_of

JUDGMENTS = "judgments"
Kind = Literal["annotation", "review", "adjudication", "model"]
Asked = Literal["relevance", "errors"]
Id = Annotated[str, Meta(min_length=1, max_length=1_000, pattern=r"\A[^\s\x00]+\Z")]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Version = Annotated[int, Meta(ge=1, le=1_000_000)]  # of a package: one more each time it was sent back
Label = Annotated[int, Meta(ge=0, le=8)]
Time = Annotated[datetime, Meta(tz=True)]
Pair = tuple[str, str]  # query id, passage id

# What people write into a sheet.
_ANSWERS = {
    **dict.fromkeys(("1", "yes", "true", "对", "是", "相关"), 1),
    **dict.fromkeys(("0", "no", "false", "错", "否", "不相关"), 0),
}


def answer_of(cell: str) -> int | None:
    """Return the answer in a cell of a sheet, 1 or 0 or a word for it; None where it is none of these."""
    return _ANSWERS.get(cell.strip().lower())


class Choice(NamedTuple):
    """One answer: its label, which is also its key, its name in Chinese, what it means, and its English name."""

    label: int
    name: str
    means: str = ""
    english: str = ""

    @property
    def key(self) -> str:
        """The name in files."""
        return self.english.replace(" ", "_")


@dataclass(frozen=True)
class Question:
    """A question.

    Attributes:
        text: as it is put to people; ``hint`` is what they are told who hand in nothing.
        highest: the highest label a person may give, and a model (UMBRELA's grades of relevance go to 3).
    """

    name: Asked
    text: str
    hint: str
    choices: tuple[Choice, ...]
    highest: tuple[int, int]

    @property
    def expected(self) -> str:
        """The labels, for errors."""
        return "1 or 0" if self.name == "relevance" else f"1 to {len(self.choices)}"

    def label_of(self, text: str) -> int | None:
        """Return the label that somebody has written, as a number or a name; None where it is none of the choices."""
        if self.name == "relevance":
            return answer_of(text)
        said = text.strip().lower().replace("_", " ").replace("-", " ")
        return next((c.label for c in self.choices if said in (str(c.label), c.name, c.english)), None)


RELEVANCE = Question(
    "relevance",
    "这个段落能回答这个查询吗？",
    "请选择：相关（1）或不相关（0）",
    (Choice(1, "相关"), Choice(0, "不相关")),
    (1, 3),
)
ERRORS = Question(
    "errors",
    "这个段落排在前几名，却没有标为相关：主要错在哪里？",
    "请选择一类（1 至 8）",
    (
        Choice(1, "实体不符", "查询和段落说的不是同一个人、地方、机构或东西", "entity mismatch"),
        Choice(2, "数字不符", "年份、数量、型号等数字不同", "numeral mismatch"),
        Choice(3, "修饰语不符", "说的是同一件东西，条件、时间、方式等修饰不同", "modifier mismatch"),
        Choice(4, "句法不符", "词都相同，主语和宾语等关系反了", "syntactic mismatch"),
        Choice(5, "错别字", "查询或段落里的错字使意思难认", "typos"),
        Choice(6, "仅词语重合", "有少见的词重合，意思并不相关", "term overlap"),
        Choice(7, "漏标的正例", "段落其实能回答查询", "false negative"),
        Choice(8, "其他", "以上都不是", "other"),
    ),
    (8, 8),
)
QUESTIONS: Mapping[str, Question] = {question.name: question for question in (RELEVANCE, ERRORS)}


class Ids(msgspec.Struct, frozen=True, rename="kebab"):
    """A pair of query and passage."""

    query_id: Id
    corpus_id: Id

    @property
    def pair(self) -> Pair:
        return self.query_id, self.corpus_id


class Judgment(Ids, frozen=True, rename="kebab", omit_defaults=True, forbid_unknown_fields=True):
    """One judgment of one pair.

    Attributes:
        label: 1 where the passage answers the query, 0 where not; a model's may go to 3. In an analysis of errors
            one of its categories, from 1 to 8.
        annotator: who judged; a model's judgment names the model in ``model``, too.
        time: when, in UTC.
        package, version: the package and its version, from 1.
        kind: an annotator's, a reviewer's, an adjudicator's, or a model's, which never counts as a person's.
        question: what was asked.
    """

    label: Label
    annotator: Name
    time: Time
    package: Name
    version: Version
    kind: Kind
    model: str | None = None
    note: str | None = None
    question: Asked = "relevance"

    def __post_init__(self) -> None:
        lowest, highest = int(self.question == "errors"), QUESTIONS[self.question].highest[self.kind == "model"]
        right = (
            lowest <= self.label <= highest,
            (self.model is not None) == (self.kind == "model"),
            visible(self.annotator) == self.annotator,
            1970 < self.time.year < 3000,
        )
        if not all(right):
            problems = (
                f"label: expected {lowest} to {highest} in a judgment of kind {self.kind}",
                "model: expected the model's name where the kind is model, and nowhere else",
                "annotator: expected a name without control characters",
                "time: expected a year from 1971 to 2999",
            )
            raise ValueError(problems[right.index(False)])

    @property
    def place(self) -> tuple[str, int, str, str, Pair]:
        """The key of what a person judges once: whoever judges it again changes their mind, and the latest counts."""
        return self.package, self.version, self.kind, self.annotator, self.pair


def encoded(judgment: Judgment) -> bytes:
    """Return the line of a judgment, without the line's end."""
    return msgspec.json.encode(msgspec.structs.replace(judgment, time=judgment.time.astimezone(timezone.utc)))


def read_judgments(round_: Path) -> list[Judgment]:
    """Return every judgment of a round, each once, in the order of their times.

    Raises :class:`InputError` for a file that is not what its name says, and for a line that is no judgment.
    """
    found: dict[bytes, Judgment] = {}
    for path in sorted(path for path in (round_ / JUDGMENTS).glob("*.jsonl") if not path.name.startswith(".")):
        content = read_whole(path)
        if hashlib.sha256(content).hexdigest() != path.stem:
            raise InputError("was changed: its SHA-256 is not its name; put the original back", path=path)
        found.update(judgments_in(content, path))
    return [found[line] for line in sorted(found, key=lambda line: (found[line].time, line))]


def judgments_in(content: bytes, path: Path) -> Iterator[tuple[bytes, Judgment]]:
    """Yield (line, judgment) of JSON lines; ``path`` for errors (:class:`InputError`)."""
    for number, line in enumerate(content.split(b"\n"), 1):
        if line:
            yield line, json_of(line, Judgment, path, number)


def latest(judgments: Iterable[Judgment]) -> dict[tuple[str, int, str, str, Pair], Judgment]:
    """Return the latest judgment of each person on the same pair, of judgments in the order of their times."""
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
