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
    """Figures of the English queries of a split."""

    queries: Count
    words_per_query: NotNegativeNumber | None


class Crosslingual(Struct):
    """Counts of `add crosslingual`. ``machine``: English texts that a model translated and nobody changed."""

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
    """Counts of the config ``answers`` for a split (:func:`.stored_answers.answer_counts`)."""

    queries: Count
    answered: Count
    answers: Count
    in_passages: Count
    unanswered: Count = 0
    question_type: dict[str, Count] = {}
    fact_or_opinion: dict[str, Count] = {}
    source: dict[str, Count] = {}


class Relabelled(Struct):
    """The result of :func:`builders.check.paper.count_relabelled` for a split, before and after people's judgments."""

    queries: Count
    per_query_before: NotNegativeNumber
    per_query_after: NotNegativeNumber
    false_negatives: Count
    false_positives: Count
    share_with_false_negatives: Proportion
    share_with_false_positives: Proportion
    without_positives: Count


class SimilarSplit(Struct):
    """Counts of :class:`Similar` for one of the splits dev and test."""

    queries: Count
    duplicated: Count


class SimilarPaper(Struct):
    """The paper's counts, with the meaning that they have in :class:`Similar`."""

    removed: Count
    duplicated: Count
    share: Proportion


class Similar(Struct):
    """Counts of `similar`.

    Attributes:
        removed: the removed training questions.
        duplicated: the dev and test questions that are similar to a removed question.
        queries: all questions of the compared splits.
        share: ``duplicated`` divided by ``queries``, null without queries.
        paper: the figures of the paper.
        by: the removed questions by the way in which they match, for example exact.
        splits: the figures of each compared split.
    """

    removed: Count
    duplicated: Count
    queries: Count
    share: Proportion | None
    paper: SimilarPaper
    by: dict[PlainName, Count] = {}
    splits: dict[PlainName, SimilarSplit] = {}


class LabelOverlap(Struct):
    """The result of :func:`.judgments.overlaps_with_train` for a split."""

    overlapping: Count
    test_queries: Count
    overlapping_share: Proportion | None


class ExtrapolationSet(Struct):
    """Figures of a set for interpolation or extrapolation.

    Attributes:
        config: the drawn training set.
        test: the tested splits, joined by "+".
        train_queries, test_queries: the numbers of queries.
        nearest_cosine: mean over the test queries of the cosine to the nearest training query, null without queries.
        overlapping: see :func:`.judgments.label_overlap`.
    """

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
    """Figures of `add samples --nano`.

    Attributes:
        split: the split from which the queries were drawn.
        queries, passages: the numbers of queries and passages.
        judged: the passages with a judgment.
        hard: the passages without a judgment that a run ranks.
    """

    split: Split
    queries: Count
    passages: Count
    judged: Count
    hard: Count


class Sample(Struct):
    """Figures of a config of `add samples`.

    Attributes:
        config: the name of the config.
        passages: the number of passages.
        positives: the passages with a positive judgment.
        hard: the other passages that a run ranks, null for a sample of random passages.
        split: the splits whose positives the sample has.
    """

    config: str
    passages: Count
    positives: Count
    hard: Count | None
    split: Annotated[list[Split], Meta(min_length=1)]


class Stats(Struct):
    """The values of ``stats.json``. Keys of dictionaries are splits, sets, collections or configs."""

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
