"""A round of annotation as a directory: its packages with their pairs, versions and states, and what people said.

    round.json                  what the round is of, its rule, and its packages with version, state and verdicts
    packages/PACKAGE.jsonl      the pairs with their texts; PACKAGE.csv the same as a sheet to fill in
    label-studio/               config.xml, PACKAGE.json: Label Studio's labelling interface and tasks
    reviews/, adjudication/     sheets and tasks that `annotate review` and `annotate adjudicate` draw
    judgments/                  see :mod:`.judgments`

A package that was sent back has a further version, whose files are called PACKAGE.v2 and so on. Only people's judgments
of a package's present version count. Of one person's on the same pair the latest does.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from builders.annotate.judgments import QUESTIONS, Asked, Ids, Name, Pair, Question, Version, latest, read_judgments
from builders.annotate.quality import Rule
from builders.core.errors import InputError
from builders.core.files import read_whole, write_bytes
from builders.core.typed import Count, Sha256, json_of, name_within, read_json
from builders.store.layout import SPLITS
from builders.store.reader import Release

ROUND, PACKAGES, STUDIO = "round.json", "packages", "label-studio"
State = Literal["open", "sent back", "accepted"]
Votes = dict[Pair, dict[str, int]]  # by pair and person: the label


class Reviewed(msgspec.Struct, frozen=True):
    """A decision about one version: by reviewer, the pairs judged as the annotators did, and all judged."""

    version: Version
    accepted: bool
    reviews: dict[str, tuple[Count, Count]]


class Package(msgspec.Struct, frozen=True):
    """One package.

    Attributes:
        version: the one that is being worked on, or was accepted.
        labels: the digest of the labels that were accepted (:attr:`Standing.digest`).
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
        """The name of the files of its version, without their suffix."""
        return self.name if self.version == 1 else f"{self.name}.v{self.version}"


class Round(msgspec.Struct, frozen=True):
    """The content of ``round.json``.

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
    lines = [line for line in enumerate(read_whole(file).split(b"\n"), 1) if line[1]]
    found = [json_of(line, Item, file, number) for number, line in lines]
    pairs = {item.pair for item in found}
    if not len(found) == len(pairs) == package.pairs:
        expected = f"holds {len(pairs):,} different pairs in {len(found):,} lines; expected {package.pairs:,}"
        raise InputError(expected, path=file)
    return found


@dataclass
class Standing:
    """The judgments of one package in its present version.

    Attributes:
        pairs: all of its pairs, in order.
        annotations, reviews: by pair and person, the label.
        adjudications: by pair, the label that the last adjudicator gave.
    """

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

        Where annotators agree, an adjudicator's label does not count here: such pairs are corrected where a reviewer
        saw them, and the rest of the package would seem as good.
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
    for each in sorted(latest(read_judgments(round_)).values(), key=lambda each: each.time):
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
