"""A round of annotation as a directory: its packages with their pairs, versions and states, and what people said.

    round.json                  what the round is of, its rule, and its packages with version, state and verdicts
    packages/PACKAGE.jsonl      the pairs with their texts; PACKAGE.csv the same as a sheet to fill in
    label-studio/               config.xml, PACKAGE.json: Label Studio's labelling interface and tasks
    reviews/, adjudication/     sheets and tasks that `annotate review` and `annotate adjudicate` draw
    judgments/                  who judged which pair, when, in which version of which package, as JSON lines

A file of judgments is named by the SHA-256 of its content, and files are only ever added: what is there cannot change
unseen, and the folders of two copies of a round can be put together by copying files.

A package that was sent back has a further version, whose files are called PACKAGE.v2 and so on. Only people's judgments
of a package's present version count. Of one person's on the same pair the latest does.

A round asks one question of each pair: ``relevance`` for the qrels (Section 2.3, A.3), or ``errors``: what went wrong
where a passage that is no positive was ranked so high (Section 3.5, Table 10).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from builders.core.errors import InputError, visible
from builders.core.files import alone, sha256_of, write_bytes
from builders.core.typed import Count, Sha256, json_lines, read_json
from builders.store.reader import Release

ROUND, PACKAGES, STUDIO, JUDGMENTS = "round.json", "packages", "label-studio", "judgments"
PACKAGE = 1_000  # pairs
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
    """A question: its text, a ``hint`` for people who hand in nothing, its choices.

    ``highest``: the highest label a person may give, and a model (UMBRELA's grades of relevance go to 3).
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
    """One judgment of one pair: who judged it, when (UTC), in which version (from 1) of which package.

    ``label``: 1 where the passage answers the query, 0 where not; a model's may go to 3. In an analysis of errors one
    of its categories, from 1 to 8. A judgment of the kind ``model`` names the model, and never counts as a person's.
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
        for is_right, problem in (
            (lowest <= self.label <= highest, f"label: expected {lowest} to {highest} in a judgment of {self.kind}"),
            (
                (self.model is not None) == (self.kind == "model"),
                "model: expected where the kind is model, and only there",
            ),
            (0 < len(self.annotator) <= 200, "annotator: expected a name of at most 200 characters"),
            (visible(self.annotator) == self.annotator, "annotator: expected a name without control characters"),
            (1970 < self.time.year < 3000, "time: expected a year from 1971 to 2999"),
        ):
            if not is_right:
                raise ValueError(problem)

    @property
    def place(self) -> tuple[str, int, str, str, Pair]:
        """The key of what a person judges once: whoever judges it again changes their mind, and the latest counts."""
        return self.package, self.version, self.kind, self.annotator, self.pair


def encoded(judgment: Judgment) -> bytes:
    """Return the line of a judgment."""
    return msgspec.json.encode(msgspec.structs.replace(judgment, time=judgment.time.astimezone(timezone.utc))) + b"\n"


def read_judgments(round_: Path) -> list[Judgment]:
    """Return every judgment of a round, each once, in the order of their times.

    Raises :class:`InputError` for a file that is not what its name says, and for a line that is no judgment.
    """
    found: dict[Judgment, None] = {}
    for path in sorted(path for path in (round_ / JUDGMENTS).glob("*.jsonl") if not path.name.startswith(".")):
        if sha256_of(path) != path.stem:
            raise InputError("was changed: its SHA-256 is not its name; put the original back", path=path)
        found |= dict.fromkeys(judgment for _, judgment in json_lines(path, Judgment))
    return sorted(found, key=lambda judgment: judgment.time)


def add_judgments(round_: Path, judgments: Sequence[Judgment], timed: bool = True) -> int:
    """Add what is new to a round, as one file that appears when it is whole; return the number of judgments added.

    Two processes take turns; the same import changes nothing. Judgments that are not ``timed`` have no times of their
    own: one is new where the latest of the same person on the same pair, package and version says something else.
    """
    folder = round_ / JUDGMENTS
    with alone(folder, folder, wait=True):
        folder.mkdir(exist_ok=True)
        known = dict.fromkeys(read_judgments(round_))
        if timed:
            new = [each for each in dict.fromkeys(judgments) if each not in known]
        else:
            said = {each.place: (each.label, each.note) for each in known}
            given = {each.place: each for each in judgments}  # of a pair twice, the last
            new = [each for each in given.values() if said.get(each.place) != (each.label, each.note)]
        for left in folder.glob(".*.tmp*"):  # files and locks of a killed process: nobody else is at it
            left.unlink()
        if new:
            content = b"".join(map(encoded, new))
            write_bytes(folder / f"{hashlib.sha256(content).hexdigest()}.jsonl", content)
    return len(new)


State = Literal["open", "sent back", "accepted"]
Votes = dict[Pair, dict[str, int]]  # by pair and person: the label


class Rule(msgspec.Struct, frozen=True, rename="kebab"):
    """When a package is accepted (A.3), and the seed of the reviewers' draws; the defaults are the paper's."""

    reviewers: Count = 2
    review_pairs: Count = 100
    min_accuracy: Annotated[str, Meta(pattern=r"\A(100|\d\d?(\.\d{1,20})?)\Z")] = "93"  # percent
    seed: int = 0

    @property
    def accuracy(self) -> Fraction:
        return Fraction(self.min_accuracy) / 100


class Reviewed(msgspec.Struct, frozen=True):
    """A decision about one version: by reviewer, the pairs judged as the annotators did, and all judged."""

    version: Version
    accepted: bool
    reviews: dict[str, tuple[Count, Count]]


class Package(msgspec.Struct, frozen=True):
    """One package: the version that is being worked on or was accepted, and the digest of the accepted labels."""

    name: Annotated[str, Meta(pattern=r"\A\w{1,20}-\d{1,9}\Z")]
    pairs: Count
    version: Version = 1
    state: State = "open"
    verdicts: list[Reviewed] = []
    labels: str = ""

    @property
    def stem(self) -> str:
        """The name of the files of its version, without their suffix."""
        return self.name if self.version == 1 else f"{self.name}.v{self.version}"


class Round(msgspec.Struct, frozen=True):
    """The content of ``round.json``.

    ``fingerprint`` changes when the release's queries or passages do; ``pool``: the SHA-256 of the pool, or of the run
    whose errors are judged.
    """

    format: Literal[1]
    release: str
    fingerprint: Sha256
    split: Annotated[str, Meta(pattern=r"\A(train|dev|test)\Z")]
    pool: Sha256
    rule: Rule
    packages: list[Package]
    question: Asked = "relevance"

    def __post_init__(self) -> None:
        if len({package.name for package in self.packages}) < len(self.packages):
            raise ValueError("packages: expected each once")

    @property
    def asked(self) -> Question:
        return QUESTIONS[self.question]


class Item(Ids, frozen=True, rename="kebab"):
    """A pair with its texts, as a package lists it."""

    query: str
    passage: str


def fingerprint_of(release: Release, split: str) -> str:
    """Return a hash that changes when the texts that people judge do: the queries of the split, the passages."""
    parts = release.fingerprint("queries", split) + release.fingerprint("corpus", "corpus")
    return hashlib.sha256(parts.encode()).hexdigest()


def open_round(path: Path, question: Asked | None = None) -> Round:
    """Return the round of a directory; :class:`InputError` where there is none, or it asks another ``question``."""
    try:
        found = read_json(path / ROUND, Round)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"not a round (no {ROUND}); `annotate export` makes one", path=path) from None
    if question not in (None, found.question):
        raise InputError(f"asks for {found.question}; expected a round that asks for {question}", path=path)
    return found


def write_round(path: Path, found: Round) -> None:
    """Write ``round.json`` into the directory ``path``."""
    write_bytes(path / ROUND, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


def items_of(path: Path, package: Package) -> list[Item]:
    """Return the pairs of a package with their texts, in order.

    :class:`InputError` where its file is missing, or has not the pairs that ``round.json`` says, each once.
    """
    file = path / PACKAGES / f"{package.name}.jsonl"
    found = [item for _, item in json_lines(file, Item)]
    pairs = {item.pair for item in found}
    if not len(found) == len(pairs) == package.pairs:
        expected = f"holds {len(pairs):,} different pairs in {len(found):,} lines; expected {package.pairs:,}"
        raise InputError(expected, path=file)
    return found


@dataclass
class Standing:
    """The judgments of one package in its present version: labels by pair and person; adjudications by pair."""

    package: Package
    pairs: Collection[Pair]
    annotations: Votes = field(default_factory=dict)
    reviews: Votes = field(default_factory=dict)
    adjudications: dict[Pair, int] = field(default_factory=dict)

    @property
    def missing(self) -> list[Pair]:
        """The pairs that no annotator has judged."""
        return [pair for pair in self.pairs if pair not in self.annotations]

    @property
    def disputed(self) -> list[Pair]:
        """The pairs that have both labels of annotators and reviewers, be they one person's, and nobody has decided."""
        return [
            pair
            for pair in self.pairs
            if pair not in self.adjudications
            and len({*self.annotations.get(pair, {}).values(), *self.reviews.get(pair, {}).values()}) > 1
        ]

    @property
    def ties(self) -> list[Pair]:
        """The pairs on which as many annotators say one thing as another, and that nobody has decided."""
        return [pair for pair in self.pairs if pair in self.annotations and self.label(pair) is None]

    @property
    def digest(self) -> str:
        """A hash that changes when a label that annotators gave does: what was accepted is what was reviewed."""
        lines = (f"{' '.join(pair)} {self.annotated(pair)}" for pair in self.pairs)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def votes(self, pair: Pair) -> dict[str, int]:
        """Return the label of a pair by annotator or reviewer; of a person who was both, that of the review."""
        return self.annotations.get(pair, {}) | self.reviews.get(pair, {})

    def annotated(self, pair: Pair) -> int | None:
        """Return the label that most annotators of a pair gave; None where there is none, or as many gave another."""
        first, second = [*Counter(self.annotations.get(pair, {}).values()).most_common(2), (None, 0), (None, 0)][:2]
        return first[0] if first[1] > second[1] else None

    def reviewed(self, pair: Pair) -> int | None:
        """Return the label that reviews are compared with: that of most annotators; of a tie, the adjudicator's.

        Where annotators agree, an adjudicator's label does not count: the rest of the package would seem as good.
        """
        label = self.annotated(pair)
        return self.adjudications.get(pair) if label is None else label

    def label(self, pair: Pair) -> int | None:
        """Return the label that counts: the adjudicator's, else that of most annotators.

        Reviewers say whether a package is good enough; their labels change none (A.3).
        """
        return self.adjudications.get(pair, self.annotated(pair))


def standings(round_: Path, found: Round) -> list[Standing]:
    """Return the standing of each package of a round."""
    every = {
        package.name: Standing(package, dict.fromkeys(item.pair for item in items_of(round_, package)))
        for package in found.packages
    }
    for each in read_judgments(round_):  # the latest of each person comes last, and counts
        standing = every.get(each.package)
        if not standing or each.question != found.question:
            continue
        if each.version != standing.package.version or each.pair not in standing.pairs:
            continue
        if each.kind == "adjudication":
            standing.adjudications[each.pair] = each.label
        elif each.kind != "model":
            votes = standing.annotations if each.kind == "annotation" else standing.reviews
            votes.setdefault(each.pair, {})[each.annotator] = each.label
    return list(every.values())
