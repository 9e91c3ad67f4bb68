"""A round of annotation as a directory: which pairs lie in which package, in which version and state each package is.

    round.json                  what the round is of, its rule, and its packages with version, state and verdicts
    packages/PACKAGE.jsonl      the pairs with their texts; PACKAGE.csv the same as a sheet to fill in
    label-studio/               config.xml, PACKAGE.json: Label Studio's labelling interface and tasks
    reviews/, adjudication/     sheets and tasks that `annotate review` and `annotate adjudicate` draw
    judgments/                  see :mod:`.judgments`

A package that was sent back has a further version, whose files are called PACKAGE.v2 and so on.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from builders.annotate.judgments import Id, Judgment, Name, Pair, Version
from builders.annotate.quality import Acceptance, Verdict
from builders.annotate.questions import QUESTIONS, Asked, Question
from builders.core.errors import InputError
from builders.core.files import read_whole, write_bytes
from builders.core.typed import Count, Sha256, json_of, name_within, problem_of, read_json
from builders.store.layout import SPLITS
from builders.store.reader import Release

ROUND, PACKAGES, STUDIO = "round.json", "packages", "label-studio"
State = Literal["open", "sent back", "accepted"]


class Reviewed(msgspec.Struct, frozen=True):
    """What was decided about one version: by reviewer, the pairs judged as the annotators did, and all judged."""

    version: Version
    accepted: bool
    reviews: dict[str, tuple[Count, Count]]


class Package(msgspec.Struct, frozen=True):
    """One package.

    Attributes:
        version: the one that is being worked on, or was accepted.
        labels: what tells the labels that were accepted from others (:func:`.labels.labels_digest`).
    """

    name: Name
    pairs: Count
    version: Version = 1
    state: State = "open"
    verdicts: list[Reviewed] = []
    labels: str = ""

    def __post_init__(self) -> None:
        name_within(self.name)
        if "/" in self.name:
            raise ValueError("name: expected a name without slashes")

    @property
    def stem(self) -> str:
        """What the files of its version are called, without their suffix."""
        return self.name if self.version == 1 else f"{self.name}.v{self.version}"


class Rule(msgspec.Struct, frozen=True, rename="kebab"):
    """The bounds of :class:`.quality.Acceptance`, and the seed of the draws."""

    reviewers: Count = Acceptance.reviewers
    review_pairs: Count = Acceptance.items
    min_accuracy: str = str(100 * Acceptance.accuracy)  # percent
    seed: int = 0

    def __post_init__(self) -> None:
        try:
            share = Fraction(self.min_accuracy) if len(self.min_accuracy) < 30 else None
        except (ValueError, ZeroDivisionError):
            share = None
        if share is None or not 0 <= share <= 100:
            raise ValueError(f"min-accuracy: expected percent from 0 to 100, found {self.min_accuracy[:30]!r}")

    @property
    def acceptance(self) -> Acceptance:
        return Acceptance(self.reviewers, self.review_pairs, Fraction(self.min_accuracy) / 100)


class Round(msgspec.Struct, frozen=True):
    """What ``round.json`` says.

    Attributes:
        release, fingerprint: the name of the release's directory; changes when its queries or passages do.
        split: whose queries are judged.
        pool: SHA-256 of the pool; of the run, where its errors are judged.
        question: what is asked of each pair.
    """

    format: Literal[1]
    release: str
    fingerprint: Sha256
    split: str
    pool: Sha256
    rule: Rule
    packages: list[Package]
    question: Asked = "relevance"

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ValueError(f"split: expected one of {', '.join(SPLITS)}")
        if len({package.name for package in self.packages}) < len(self.packages):
            raise ValueError("packages: expected each once")

    @property
    def asked(self) -> Question:
        return QUESTIONS[self.question]


class Ids(msgspec.Struct, frozen=True, rename="kebab"):
    """A pair."""

    query_id: Id
    corpus_id: Id

    @property
    def pair(self) -> Pair:
        return self.query_id, self.corpus_id


class Item(Ids, frozen=True, rename="kebab"):
    """A pair with its texts, as a package lists it."""

    query: str
    passage: str


_Row = TypeVar("_Row", bound=Ids)


def safe_name(name: str) -> str:
    """A person's name as that of a file or folder. :class:`InputError` for one that cannot be."""
    if "/" in name or problem_of(name):
        raise InputError(f"expected a name that a file can have, found {name[:80]!r}")
    return name


def fingerprint_of(release: Release, split: str) -> str:
    """Changes when the texts that people judge do: the queries of the split, the passages."""
    parts = release.fingerprint("queries", split) + release.fingerprint("corpus", "corpus")
    return hashlib.sha256(parts.encode()).hexdigest()


def open_round(path: Path, question: Asked | None = None) -> Round:
    """The round of a directory; :class:`InputError` where there is none, or it asks another ``question``."""
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
    """The pairs of a package with their texts, in order; errors as of :func:`pairs_of`."""
    return _checked(path, package, Item)


def pairs_of(path: Path, package: Package) -> list[Pair]:
    """The pairs of a package, in order, without their texts.

    :class:`InputError` where its file is missing, or has not the pairs that ``round.json`` says, each once.
    """
    return [ids.pair for ids in _checked(path, package, Ids)]


def _checked(path: Path, package: Package, kind: type[_Row]) -> list[_Row]:
    file = path / PACKAGES / f"{package.name}.jsonl"
    lines = [line for line in enumerate(read_whole(file).split(b"\n"), 1) if line[1]]
    found = [json_of(line, kind, file, number) for number, line in lines]
    pairs = {row.pair for row in found}
    if not len(found) == len(pairs) == package.pairs:
        expected = f"holds {len(pairs):,} different pairs in {len(found):,} lines; expected {package.pairs:,}"
        raise InputError(expected, path=file)
    return found


def sent_back(package: Package, verdict: Verdict) -> Package:
    """The package after a review that refused it: to be judged anew, as the next version."""
    known = [*package.verdicts, Reviewed(package.version, False, dict(verdict.reviews))]
    return msgspec.structs.replace(package, version=package.version + 1, state="sent back", verdicts=known)


def accepted(package: Package, verdict: Verdict, labels: str) -> Package:
    """The package after a review that accepted it, with these labels."""
    known = [*package.verdicts, Reviewed(package.version, True, dict(verdict.reviews))]
    return msgspec.structs.replace(package, state="accepted", verdicts=known, labels=labels)


def reopened(package: Package) -> Package:
    """An accepted package whose labels have changed since."""
    return msgspec.structs.replace(package, state="open", labels="")


def of_version(judgment: Judgment, package: Package) -> bool:
    """Whether a judgment is of the package as it stands: earlier versions' are kept, and count no more."""
    return judgment.package == package.name and judgment.version == package.version
