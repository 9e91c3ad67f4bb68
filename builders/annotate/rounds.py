"""The directory of an annotation round: packages with their pairs, versions and states, and people's judgments.

    round.json                  release, rule, and packages with version, state and verdicts
    packages/PACKAGE.jsonl      pairs with their texts; PACKAGE.csv has the same rows as a sheet to fill in
    label-studio/               config.xml, PACKAGE.json: labelling interface and tasks of Label Studio
    reviews/, adjudication/     sheets and tasks of `annotate review` and `annotate adjudicate`
    judgments/                  judgments with person, pair, time, package and version, as JSON lines

A file of judgments is named by the SHA-256 of its content, so a changed file is detected. Files are only added. Two
copies of a round can therefore be merged by copying the files of judgments of one copy into the other copy.

A package that was sent back has a new version, whose files are called PACKAGE.v2.csv and so on. Only judgments of a
package's present version count. If a person judged a pair twice, the latest judgment counts.

A round asks one question about each pair. The question ``relevance`` leads to qrels (Section 2.3, A.3). The question
``errors`` asks why a passage ranks high although it has no positive label (Section 3.5, Table 10).
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from builders.annotate.annotate_options import REVIEW_ITEMS
from builders.core.errors import InputError, make_visible
from builders.core.locks import hold_lock
from builders.core.read_files import sha256_of
from builders.core.typed import Count, Sha256, json_lines, read_json
from builders.core.write_files import write_bytes
from builders.store.reader import Release

# Names in a round's directory.
ROUND = "round.json"
PACKAGES = "packages"
STUDIO = "label-studio"
JUDGMENTS = "judgments"

Kind = Literal["annotation", "review", "adjudication", "model"]
Asked = Literal["relevance", "errors"]
Id = Annotated[str, Meta(min_length=1, max_length=1_000, pattern=r"\A[^\s\x00]+\Z")]
_LONGEST_NAME = 200  # characters
Name = Annotated[str, Meta(min_length=1, max_length=_LONGEST_NAME)]
# A package's version increases by 1 when it is sent back.
Version = Annotated[int, Meta(ge=1, le=1_000_000)]
Label = Annotated[int, Meta(ge=0, le=8)]
Time = Annotated[datetime, Meta(tz=True)]
# Years of judgments.
_EARLIEST_YEAR = 1971
_LATEST_YEAR = 2999
Pair = tuple[str, str]  # query id, passage id

# Answers that people write into a sheet.
_POSITIVE_ANSWERS = ("1", "yes", "true", "对", "是", "相关")
_NEGATIVE_ANSWERS = ("0", "no", "false", "错", "否", "不相关")


def answer_of(cell: str) -> int | None:
    """Return the label of an answer in a sheet, such as "1" or "yes": 1 or 0, or None for an unknown answer."""
    answer = cell.strip().lower()
    if answer in _POSITIVE_ANSWERS:
        return 1
    if answer in _NEGATIVE_ANSWERS:
        return 0
    return None


class LabelChoice(NamedTuple):
    """A possible answer. ``label`` is also the keyboard key. ``name`` is Chinese, and ``means`` explains the answer."""

    label: int
    name: str
    means: str = ""
    english: str = ""

    @property
    def key(self) -> str:
        """The English name with underscores, as in ``published.toml`` and in JSON output."""
        return self.english.replace(" ", "_")


@dataclass(frozen=True)
class LabelQuestion:
    """A question of a round: its text, its choices, and a ``hint`` for people who submit no answer.

    ``highest`` has the highest label of a person and of a model. A model's grades go up to 3, as in UMBRELA.
    """

    name: Asked
    text: str
    hint: str
    choices: tuple[LabelChoice, ...]
    highest: tuple[int, int]

    @property
    def expected(self) -> str:
        """The range of labels, for error messages."""
        return "1 or 0" if self.name == "relevance" else f"1 to {len(self.choices)}"

    def label_of(self, text: str) -> int | None:
        """Return the label of the choice whose number or name is ``text``, or None if no choice fits."""
        if self.name == "relevance":
            return answer_of(text)
        # English names are accepted in any spelling: False negative, false_negative, false-negative.
        answer = text.strip().lower().replace("_", " ").replace("-", " ")
        for choice in self.choices:
            if answer in (str(choice.label), choice.name, choice.english):
                return choice.label
        return None


RELEVANCE = LabelQuestion(
    "relevance",
    "这个段落能回答这个查询吗？",
    "请选择：相关（1）或不相关（0）",
    (LabelChoice(1, "相关"), LabelChoice(0, "不相关")),
    (1, 3),
)
ERRORS = LabelQuestion(
    "errors",
    "这个段落排在前几名，却没有标为相关：主要错在哪里？",
    "请选择一类（1 至 8）",
    (
        LabelChoice(1, "实体不符", "查询和段落说的不是同一个人、地方、机构或东西", "entity mismatch"),
        LabelChoice(2, "数字不符", "年份、数量、型号等数字不同", "numeral mismatch"),
        LabelChoice(3, "修饰语不符", "说的是同一件东西，条件、时间、方式等修饰不同", "modifier mismatch"),
        LabelChoice(4, "句法不符", "词都相同，主语和宾语等关系反了", "syntactic mismatch"),
        LabelChoice(5, "错别字", "查询或段落里的错字使意思难认", "typos"),
        LabelChoice(6, "仅词语重合", "有少见的词重合，意思并不相关", "term overlap"),
        LabelChoice(7, "漏标的正例", "段落其实能回答查询", "false negative"),
        LabelChoice(8, "其他", "以上都不是", "other"),
    ),
    (8, 8),
)
QUESTIONS: Mapping[str, LabelQuestion] = {question.name: question for question in (RELEVANCE, ERRORS)}


class PairIds(msgspec.Struct, frozen=True, rename="kebab"):
    """A pair of query and passage."""

    query_id: Id
    corpus_id: Id

    @property
    def pair(self) -> Pair:
        return self.query_id, self.corpus_id


class Judgment(PairIds, frozen=True, rename="kebab", omit_defaults=True, forbid_unknown_fields=True):
    """One judgment of one pair, with person, time (UTC), package, and version of the package (from 1).

    ``label`` is 1 if the passage answers the query, otherwise 0. A model's label is a grade from 0 to 3. In a round
    about errors, ``label`` is a category from 1 to 8. A judgment of kind ``model`` never counts as a person's.
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
        is_by_model = self.kind == "model"
        lowest = 1 if self.question == "errors" else 0
        highest_of_person, highest_of_model = QUESTIONS[self.question].highest
        highest = highest_of_model if is_by_model else highest_of_person
        if not lowest <= self.label <= highest:
            raise ValueError(f"label: expected {lowest} to {highest} for the kind {self.kind}")
        if (self.model is not None) != is_by_model:
            raise ValueError("model: expected for the kind model and for no other")
        # The type Name is checked only when a file is read, not for a judgment that Python code makes.
        if not 0 < len(self.annotator) <= _LONGEST_NAME:
            raise ValueError(f"annotator: expected a name of at most {_LONGEST_NAME} characters")
        if make_visible(self.annotator) != self.annotator:
            raise ValueError("annotator: expected a name without control characters")
        if not _EARLIEST_YEAR <= self.time.year <= _LATEST_YEAR:
            raise ValueError(f"time: expected a year from {_EARLIEST_YEAR} to {_LATEST_YEAR}")

    @property
    def identity(self) -> tuple[str, int, str, str, Pair]:
        """The key of a judgment. If several judgments have the same key, only the latest judgment counts."""
        return self.package, self.version, self.kind, self.annotator, self.pair


def encode_judgment(judgment: Judgment) -> bytes:
    """Encode a judgment as a JSON line."""
    # The same time in two zones must give the same bytes, because a file is named by its SHA-256.
    in_utc = msgspec.structs.replace(judgment, time=judgment.time.astimezone(UTC))
    return msgspec.json.encode(in_utc) + b"\n"


def read_judgments(round_path: Path) -> list[Judgment]:
    """Return every judgment of a round once, ordered by time.

    Raises :class:`InputError` if a file's SHA-256 differs from its name, or if a line is not a judgment.
    """
    # A judgment may be in several files of two copies of the round.
    judgments: dict[Judgment, None] = {}
    for path in sorted((round_path / JUDGMENTS).glob("*.jsonl")):
        if path.name.startswith("."):  # a temporary file
            continue
        if sha256_of(path) != path.stem:
            raise InputError("was changed: its SHA-256 differs from its name; restore the original", path=path)
        for _, judgment in json_lines(path, Judgment):
            judgments[judgment] = None
    return sorted(judgments, key=lambda judgment: judgment.time)


def add_judgments(round_path: Path, judgments: Sequence[Judgment], timed: bool = True) -> int:
    """Add new judgments to a round as one file, and return their number.

    The file appears when it is complete. A lock makes two processes take turns. Adding judgments a second time changes
    nothing. If ``timed`` is False, the times of ``judgments`` are only the time of the import, and do not count. An
    untimed judgment is new only if its label or note differs from the person's latest judgment of the pair in this
    version of the package.
    """
    folder = round_path / JUDGMENTS
    with hold_lock(folder, folder, wait=True):
        folder.mkdir(exist_ok=True)
        earlier_judgments = read_judgments(round_path)
        if timed:
            new_judgments = _new_timed(judgments, earlier_judgments)
        else:
            new_judgments = _new_untimed(judgments, earlier_judgments)
        # Killed processes leave temporary files. No other process writes now, because this process has the lock.
        for temporary_path in folder.glob(".*.tmp*"):
            temporary_path.unlink()
        if new_judgments:
            content = b"".join(map(encode_judgment, new_judgments))
            write_bytes(folder / f"{hashlib.sha256(content).hexdigest()}.jsonl", content)
    return len(new_judgments)


def _new_timed(judgments: Sequence[Judgment], earlier_judgments: Sequence[Judgment]) -> list[Judgment]:
    """Return the judgments that are not in ``earlier_judgments``, each once."""
    unique_judgments = dict.fromkeys(judgments)
    earlier_set = set(earlier_judgments)
    return [judgment for judgment in unique_judgments if judgment not in earlier_set]


def _new_untimed(
    judgments: Sequence[Judgment],
    earlier_judgments: Sequence[Judgment],
) -> list[Judgment]:
    """Return the judgments whose label or note differs from the latest earlier judgment of the same identity.

    ``earlier_judgments`` are ordered by time.
    """
    latest = {judgment.identity: (judgment.label, judgment.note) for judgment in earlier_judgments}
    # The last of a repeated pair wins.
    last_judgments = {judgment.identity: judgment for judgment in judgments}
    new_judgments = []
    for identity, judgment in last_judgments.items():
        if latest.get(identity) != (judgment.label, judgment.note):
            new_judgments.append(judgment)
    return new_judgments


State = Literal["open", "sent back", "accepted"]
Votes = dict[Pair, dict[str, int]]  # pair -> person -> label


class QualityRule(msgspec.Struct, frozen=True, rename="kebab"):
    """The rule for accepting a package, and the seed of the reviewers' draws. The defaults are the paper's (A.3)."""

    reviewers: Count = 2
    review_pairs: Count = REVIEW_ITEMS
    min_accuracy: Annotated[str, Meta(pattern=r"\A(100|\d\d?(\.\d{1,20})?)\Z")] = "93"  # percent
    seed: int = 0

    @property
    def accuracy(self) -> Fraction:
        return Fraction(self.min_accuracy) / 100


class Reviewed(msgspec.Struct, frozen=True):
    """The decision on one version of a package. ``reviews`` has each reviewer's numbers of right and judged pairs."""

    version: Version
    accepted: bool
    reviews: dict[str, tuple[Count, Count]]


class Package(msgspec.Struct, frozen=True):
    """One package of a round.

    ``pairs`` is the number of its pairs. ``version`` is the present version. ``verdicts`` has the decisions on all
    versions so far. ``labels`` is the hash of the accepted labels (:attr:`PackageStanding.digest`), or "" if the
    package is not accepted.
    """

    name: Annotated[str, Meta(pattern=r"\A\w{1,20}-\d{1,9}\Z")]
    pairs: Count
    version: Version = 1
    state: State = "open"
    verdicts: list[Reviewed] = []
    labels: str = ""

    @property
    def stem(self) -> str:
        """The name of the present version's files, without the suffix."""
        return self.name if self.version == 1 else f"{self.name}.v{self.version}"


class AnnotationRound(msgspec.Struct, frozen=True):
    """The content of ``round.json``.

    ``release`` is the name of the release's directory. ``fingerprint`` changes with the release's queries or passages.
    ``pool`` is the SHA-256 of the file with the pairs.
    """

    format: Literal[1]
    release: str
    fingerprint: Sha256
    split: Annotated[str, Meta(pattern=r"\A(train|dev|test)\Z")]
    pool: Sha256
    rule: QualityRule
    packages: list[Package]
    question: Asked = "relevance"

    def __post_init__(self) -> None:
        if len({package.name for package in self.packages}) < len(self.packages):
            raise ValueError("packages: expected each name once")

    @property
    def label_question(self) -> LabelQuestion:
        return QUESTIONS[self.question]


class PackageItem(PairIds, frozen=True, rename="kebab"):
    """A pair of a package, with its texts."""

    query: str
    passage: str


def fingerprint_of(release: Release, split: str) -> str:
    """Return a hash of the texts that people judge: the queries of the split, and the passages."""
    parts = release.fingerprint("queries", split) + release.fingerprint("corpus", "corpus")
    return hashlib.sha256(parts.encode()).hexdigest()


def open_round(round_path: Path, expected_question: Asked | None = None) -> AnnotationRound:
    """Return the round in ``round_path``. Raises :class:`InputError` for no round, and for another question."""
    try:
        annotation_round = read_json(round_path / ROUND, AnnotationRound)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"not a round (no {ROUND}); create a round with `annotate export`", path=round_path) from None
    if expected_question not in (None, annotation_round.question):
        raise InputError(
            f"asks for {annotation_round.question}; expected a round that asks for {expected_question}", path=round_path
        )
    return annotation_round


def write_round(round_path: Path, annotation_round: AnnotationRound) -> None:
    """Write ``round.json`` into the directory ``round_path``."""
    indented = msgspec.json.format(msgspec.json.encode(annotation_round), indent=1)
    write_bytes(round_path / ROUND, indented + b"\n")


def items_of(round_path: Path, package: Package) -> list[PackageItem]:
    """Return the pairs of a package with their texts, in order.

    Raises :class:`InputError` if the file is missing, repeats a pair, or has another size than in ``round.json``.
    """
    # The pairs of all versions of a package are the same, so only version 1 is read.
    package_path = round_path / PACKAGES / f"{package.name}.jsonl"
    items = [item for _, item in json_lines(package_path, PackageItem)]
    distinct_pairs = {item.pair for item in items}
    if not len(items) == len(distinct_pairs) == package.pairs:
        raise InputError(
            f"has {len(distinct_pairs):,} pairs in {len(items):,} lines; expected {package.pairs:,}", path=package_path
        )
    return items


@dataclass
class PackageStanding:
    """People's judgments of a package's present version. The adjudications have one label for each decided pair."""

    package: Package
    pairs: Collection[Pair]
    annotations: Votes = field(default_factory=dict)
    reviews: Votes = field(default_factory=dict)
    adjudications: dict[Pair, int] = field(default_factory=dict)

    @property
    def unjudged_pairs(self) -> list[Pair]:
        """The pairs without a judgment of an annotator."""
        return [pair for pair in self.pairs if pair not in self.annotations]

    @property
    def disputed_pairs(self) -> list[Pair]:
        """The pairs that no adjudicator decided and that got different labels from annotators or reviewers."""
        disputed_pairs = []
        for pair in self.pairs:
            labels = set(self.annotations.get(pair, {}).values())
            labels.update(self.reviews.get(pair, {}).values())
            if len(labels) > 1 and pair not in self.adjudications:
                disputed_pairs.append(pair)
        return disputed_pairs

    @property
    def ties(self) -> list[Pair]:
        """The judged pairs whose annotators' votes are a tie that no adjudicator decided."""
        return [pair for pair in self.pairs if pair in self.annotations and self.label(pair) is None]

    @property
    def digest(self) -> str:
        """A hash of the labels that most annotators gave. ``Package.labels`` is the hash at the time of acceptance.

        Labels of adjudicators do not change the hash, because they may decide pairs of an accepted package.
        """
        lines = (f"{' '.join(pair)} {self.annotator_label(pair)}" for pair in self.pairs)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def votes(self, pair: Pair) -> dict[str, int]:
        """Return annotator or reviewer -> label of a pair. If a person annotated and reviewed, the review counts."""
        return self.annotations.get(pair, {}) | self.reviews.get(pair, {})

    def annotator_label(self, pair: Pair) -> int | None:
        """Return the label that most annotators of a pair gave, or None for a tie or an unjudged pair."""
        label_counts = Counter(self.annotations.get(pair, {}).values()).most_common(2)
        if not label_counts:
            return None
        top_label, top_votes = label_counts[0]
        is_tie = len(label_counts) > 1 and label_counts[1][1] == top_votes
        return None if is_tie else top_label

    def label_for_review(self, pair: Pair) -> int | None:
        """Return the label to compare with reviews: the label of most annotators or, for a tie, the adjudicator's.

        An adjudicator corrects only some pairs. If all adjudicated labels counted, the accuracy would look too high.
        """
        label = self.annotator_label(pair)
        return self.adjudications.get(pair) if label is None else label

    def label(self, pair: Pair) -> int | None:
        """Return the final label: the adjudicator's, otherwise the label of most annotators.

        Reviewers only measure the accuracy of a package. Their labels are not final labels (A.3).
        """
        return self.adjudications.get(pair, self.annotator_label(pair))


def read_standings(round_path: Path, annotation_round: AnnotationRound) -> list[PackageStanding]:
    """Return the judgments of each package's present version, in the order of ``round.json``.

    Models' judgments, and judgments of earlier versions, are skipped.
    """
    by_package: dict[str, PackageStanding] = {}
    for package in annotation_round.packages:
        pairs = dict.fromkeys(item.pair for item in items_of(round_path, package))
        by_package[package.name] = PackageStanding(package, pairs)
    # Judgments are ordered by time, so a person's latest judgment overwrites earlier judgments.
    for judgment in read_judgments(round_path):
        standing = by_package.get(judgment.package)
        if not standing or not _counts_for(judgment, standing, annotation_round):
            continue
        pair = judgment.pair
        if judgment.kind == "annotation":
            standing.annotations.setdefault(pair, {})[judgment.annotator] = judgment.label
        elif judgment.kind == "review":
            standing.reviews.setdefault(pair, {})[judgment.annotator] = judgment.label
        elif judgment.kind == "adjudication":
            standing.adjudications[pair] = judgment.label
    return list(by_package.values())


def _counts_for(judgment: Judgment, standing: PackageStanding, annotation_round: AnnotationRound) -> bool:
    """True if a judgment answers the round's question about a pair of the package's present version."""
    return (
        judgment.question == annotation_round.question
        and judgment.version == standing.package.version
        and judgment.pair in standing.pairs
    )
