"""What the judgments of a round come to: a label a pair, where people agree or somebody has decided.

Only people's judgments of a package's present version count. Of one person's on the same pair the latest does.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from builders.annotate.judgments import Judgment, Pair, latest, read_judgments
from builders.annotate.rounds import Package, Round, of_version, pairs_of
from builders.core.errors import InputError

Votes = dict[Pair, dict[str, int]]  # by pair and person: the label


@dataclass
class Standing:
    """The judgments of one package in its present version.

    Attributes:
        pairs: all of its pairs, in order.
        annotations, reviews: by pair and person, the label.
        adjudications: by pair, the label that the last adjudicator gave.
    """

    package: Package
    pairs: Sequence[Pair]
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
        open_ = (pair for pair in self.pairs if pair not in self.adjudications)
        return [pair for pair in open_ if len(self._labels(pair)) > 1]

    def _labels(self, pair: Pair) -> set[int]:
        return {*self.annotations.get(pair, {}).values(), *self.reviews.get(pair, {}).values()}

    def votes(self, pair: Pair) -> dict[str, int]:
        """By person, the label that each annotator and reviewer of a pair gave; of one who was both, the review's."""
        return self.annotations.get(pair, {}) | self.reviews.get(pair, {})

    def annotated(self, pair: Pair) -> int | None:
        """The label that most annotators of a pair gave; None where there is none, or as many gave another."""
        first, second = [*Counter(self.annotations.get(pair, {}).values()).most_common(2), (None, 0), (None, 0)][:2]
        return first[0] if first[1] > second[1] else None

    def reviewed(self, pair: Pair) -> int | None:
        """The label that reviews are compared with: that of most annotators; of a tie, the adjudicator's.

        Where annotators agree, an adjudicator's label does not count here: such pairs are corrected where a reviewer
        saw them, and the rest of the package would seem as good.
        """
        label = self.annotated(pair)
        return self.adjudications.get(pair) if label is None else label

    @property
    def ties(self) -> list[Pair]:
        """The pairs on which as many annotators say one thing as another, and that nobody has decided."""
        return [pair for pair in self.pairs if pair in self.annotations and self.label(pair) is None]

    def label(self, pair: Pair) -> int | None:
        """What counts: the adjudicator's label, else that of most annotators. Reviewers say whether a package is good
        enough; their labels change none (A.3)."""
        return self.adjudications.get(pair, self.annotated(pair))


def standings(round_: Path, found: Round) -> list[Standing]:
    """The standing of each package of a round."""
    by_package: dict[str, list[Judgment]] = {package.name: [] for package in found.packages}
    for judgment in latest(read_judgments(round_)).values():
        if judgment.question == found.question:
            by_package.setdefault(judgment.package, []).append(judgment)
    return [_standing(package, pairs_of(round_, package), by_package[package.name]) for package in found.packages]


def _standing(package: Package, pairs: Sequence[Pair], judgments: Sequence[Judgment]) -> Standing:
    standing, inside = Standing(package, pairs), set(pairs)
    counted = [each for each in judgments if of_version(each, package) and each.pair in inside]
    for each in sorted(counted, key=lambda each: each.time):
        if each.kind == "annotation":
            standing.annotations.setdefault(each.pair, {})[each.annotator] = each.label
        elif each.kind == "review":
            standing.reviews.setdefault(each.pair, {})[each.annotator] = each.label
        elif each.kind == "adjudication":
            standing.adjudications[each.pair] = each.label
    return standing


def labels_digest(standing: Standing) -> str:
    """Changes when a label that annotators gave does: what was accepted is what was reviewed."""
    lines = (f"{' '.join(pair)} {standing.annotated(pair)}" for pair in standing.pairs)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@dataclass(frozen=True)
class Settled:
    """What a round has decided: of its accepted packages, the label of each pair, and the pairs without one."""

    labels: Mapping[Pair, int]
    undecided: Sequence[Pair]


def settled_labels(round_: Path, found: Round) -> Settled:
    """The labels of the accepted packages of a round: what changes a release's qrels. Models' judgments never do.

    :class:`InputError` where annotators have changed labels since their package was accepted.
    """
    labels: dict[Pair, int] = {}
    undecided = []
    for standing in standings(round_, found):
        if standing.package.state != "accepted":
            continue
        if standing.package.labels != labels_digest(standing):
            what = f"labels of the package {standing.package.name} have changed since it was accepted"
            raise InputError(f"{what}; `annotate check` looks at it again", path=round_)
        for pair in standing.pairs:
            label = standing.label(pair)
            if label is None:
                undecided.append(pair)
            else:
                labels[pair] = label
    return Settled(labels, undecided)
