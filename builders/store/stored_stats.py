"""The types of the values of a release's ``stats.json`` that cards, reports and later builds read.

A release may come from a stranger. Values of other types would end as errors of the card's template. Builders may add
other keys, which are not validated.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from builders.core.typed import Count, NotNegativeNumber, PlainName, Proportion

Split = Literal["train", "dev", "test"]


class StoredBar(Struct, rename={"low": "from", "high": "to"}):
    """A bar of a histogram with inclusive limits. The last bar may have no upper limit."""

    low: Count
    high: Count | None
    count: Count


class Table3Column(Struct):
    """A column of Table 3. A figure without values is null."""

    queries: Count | None = None
    positive_passages: Count | None = None
    passages_per_query: NotNegativeNumber | None = None
    chars_per_query: NotNegativeNumber | None = None
    chars_per_passage: NotNegativeNumber | None = None


class Lengths(Struct):
    """The lengths of the passages of a collection in characters."""

    passages: Count
    mean_chars: NotNegativeNumber | None
    median_chars: Count | None
    min_chars: Count | None = None
    max_chars: Count | None = None
    histogram: list[StoredBar] = []


class EnglishQueries(Struct):
    queries: Count
    words_per_query: NotNegativeNumber | None


class Crosslingual(Struct):
    """Counts of `add crosslingual`."""

    machine: Count = 0


class StressCounts(Struct):
    """Counts of `add stress` for a kind and a split.

    Attributes:
        queries: the perturbed queries.
        unchanged: the queries that the rule cannot change.
        taken: the queries whose every perturbation is another query.
    """

    queries: Count
    unchanged: Count = 0
    taken: Count = 0


class AnswerCounts(Struct):
    """Counts of the config ``answers`` for a split."""

    queries: Count
    answered: Count
    answers: Count
    in_passages: Count
    unanswered: Count = 0
    question_type: dict[str, Count] = {}
    fact_or_opinion: dict[str, Count] = {}
    source: dict[str, Count] = {}


class Relabelled(Struct):
    """Counts of positives before and after people's judgments of a split."""

    queries: Count
    per_query_before: NotNegativeNumber
    per_query_after: NotNegativeNumber
    false_negatives: Count
    false_positives: Count
    share_with_false_negatives: Proportion
    share_with_false_positives: Proportion
    without_positives: Count


class SimilarSplit(Struct):
    queries: Count
    duplicated: Count


class SimilarPaper(Struct):
    removed: Count
    duplicated: Count
    share: Proportion


class Similar(Struct):
    """Counts of `similar`: the removed training questions, and the questions that are similar to them."""

    removed: Count
    duplicated: Count
    queries: Count
    share: Proportion | None
    paper: SimilarPaper
    by: dict[PlainName, Count] = {}
    splits: dict[PlainName, SimilarSplit] = {}


class LabelOverlap(Struct):
    overlapping: Count
    test_queries: Count
    overlapping_share: Proportion | None


class ExtrapolationSet(Struct):
    """Figures of a set for interpolation or extrapolation. A cosine is null without a training query."""

    config: str
    test: str
    train_queries: Count
    test_queries: Count
    # A rounded cosine may exceed 1.
    nearest_cosine: Annotated[float, Meta(ge=-1.001, le=1.001)] | None
    overlapping: Count | None


class Copy(Struct):
    """Counts of `official --copy` by finding."""

    findings: dict[str, Count] = {}


class Nano(Struct):
    """Figures of `add samples --nano`."""

    split: Split
    queries: Count
    passages: Count
    judged: Count
    hard: Count


class Sample(Struct):
    """Figures of a config of `add samples`, and the splits from which the sample was drawn."""

    config: str
    passages: Count
    positives: Count
    hard: Count | None
    split: Annotated[list[Split], Meta(min_length=1)]


class Stats(Struct):
    table3: dict[PlainName, Table3Column] = {}
    collections: dict[PlainName, Lengths] = {}
    positives_per_query: dict[PlainName, list[StoredBar]] = {}
    english: dict[PlainName, EnglishQueries] = {}
    crosslingual: Crosslingual | UnsetType = UNSET
    stress: dict[PlainName, StressCounts] = {}
    answers: dict[PlainName, AnswerCounts] = {}
    relabelled: dict[PlainName, Relabelled] = {}
    similar: Similar | UnsetType = UNSET
    copy: Copy | UnsetType = UNSET
    label_overlap: dict[str, LabelOverlap] = {}
    extrapolation: dict[PlainName, ExtrapolationSet | list[ExtrapolationSet]] = {}
    nano: Nano | UnsetType = UNSET
    samples: dict[PlainName, Sample] = {}
