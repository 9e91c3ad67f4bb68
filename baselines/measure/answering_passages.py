"""Passages of a run that answer their question, so that they can be removed from the run.

A passage answers a question if it is

- a positive of the question,
- a near-duplicate of a positive, by the methods of `errors duplicates`, or
- a passage that contains one of the question's answers (config ``answers``), by Algorithm 1 of Section 2.2.2.

A passage that people judged negative does not answer the question, whatever its text.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from baselines.measure.measures import LIST_DEPTH
from baselines.measure.qrels import Qrels
from baselines.measure.run_origin import expect_passages
from builders.core.progress import slices_with_progress
from builders.store.reader import Release
from builders.store.runs import Hit, Run
from builders.text.answer_spans import AT_ONCE, contain_answer
from builders.text.likeness import LikeTexts
from builders.text.span_options import SpanOptions

POSITIVE = "positive"
COPY = "near-duplicate"
ANSWER = "answer"
REASONS = (POSITIVE, COPY, ANSWER)
_METHODS = ("exact", "normalised", "n-gram")  # of builders.text.likeness

# Question -> passage -> one of REASONS.
Answering = dict[str, dict[str, str]]


@dataclass(frozen=True)
class AnsweringRule:
    """The rule for passages that answer a question.

    Attributes:
        release: the release with the texts of the passages.
        corpus: the config with these texts.
        ngram: number of characters of an n-gram of near-duplicates.
        jaccard: smallest Jaccard similarity of near-duplicates.
        answers: the answers of each question, by query id. Questions may be missing.
        spans: the unit, threshold and segmenter of span-F1.
    """

    release: Release
    corpus: str
    ngram: int
    jaccard: float
    answers: Mapping[str, Sequence[str]]
    spans: SpanOptions


def unique_hits(run: Run, query_id: str) -> list[Hit]:
    """Return the hits of a question, each passage at its first rank."""
    first_hits: dict[str, float] = {}
    for passage_id, score in run.lazy_hits.get(query_id, ()):
        first_hits.setdefault(passage_id, score)
    return list(first_hits.items())


def find_answering(run: Run, qrels: Qrels, rule: AnsweringRule, *, needed: int | None) -> Answering:
    """Find the passages of each list that answer the question of the list.

    Lists are examined in blocks of 50 ranks, until ``needed`` other passages remain (None: to their ends). Every
    examined passage that answers its question is in the result, in the order of the list.

    Raises:
        InputError: the release lacks a passage of the run.
    """
    finder = _Finder(run, qrels, rule)
    rankings = {}
    for query_id in qrels.positives:
        rankings[query_id] = [passage_id for passage_id, _ in unique_hits(run, query_id)]
    answering: Answering = {query_id: {} for query_id in rankings}
    examined_depth = 0
    unfinished = [query_id for query_id, ranking in rankings.items() if ranking]
    while unfinished:
        parts = {query_id: rankings[query_id][examined_depth:][:LIST_DEPTH] for query_id in unfinished}
        for query_id, reasons in finder.explain(parts):
            answering[query_id].update(reasons)
        examined_depth += LIST_DEPTH
        still_unfinished = []
        for query_id in unfinished:
            is_at_end = len(rankings[query_id]) <= examined_depth
            remaining_count = examined_depth - len(answering[query_id])
            has_enough = needed is not None and remaining_count >= needed
            if not is_at_end and not has_enough:
                still_unfinished.append(query_id)
        unfinished = still_unfinished
    return answering


class _Finder:
    """Finds the answering passages in parts of the lists of a run."""

    def __init__(self, run: Run, qrels: Qrels, rule: AnsweringRule) -> None:
        self._run = run
        self._qrels = qrels
        self._rule = rule
        positive_ids = set[str]().union(*qrels.positives.values())
        # The release may lack a positive.
        self._positive_texts = rule.release.texts(rule.corpus, "corpus", positive_ids)

    def explain(self, parts: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield each question with the reasons of its answering passages, in the order of the part of its list.

        ``parts`` has the passage ids of a part of each question's list. A reason is one of REASONS, by passage id.
        """
        retrieved_ids = set(chain.from_iterable(parts.values()))
        texts = self._rule.release.texts(self._rule.corpus, "corpus", retrieved_ids)
        expect_passages(self._run, sorted(retrieved_ids), texts, self._rule.corpus)
        query_ids = list(parts)
        for block in slices_with_progress(len(query_ids), AT_ONCE, unit="query", label="answering passages"):
            block_parts = {query_id: parts[query_id] for query_id in query_ids[block]}
            yield from self._explain_block(block_parts, texts)

    def _explain_block(
        self, parts: Mapping[str, Sequence[str]], texts: Mapping[str, str]
    ) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the same as :meth:`explain` for one block of questions. ``texts`` are the passages' texts by id."""
        reasons_by_query: Answering = {}
        open_ids: dict[str, list[str]] = {}  # passages that no judgment and no positive explains
        for query_id, passage_ids in parts.items():
            reasons = self._explain_by_positives(query_id, passage_ids, texts)
            reasons_by_query[query_id] = reasons
            negatives = self._qrels.negatives.get(query_id, ())
            open_ids[query_id] = [
                passage_id for passage_id in passage_ids if passage_id not in reasons and passage_id not in negatives
            ]
        answered_ids = [query_id for query_id in parts if self._rule.answers.get(query_id)]
        open_texts = []
        for query_id in answered_ids:
            open_texts.append([texts[passage_id] for passage_id in open_ids[query_id]])
        query_answers = [self._rule.answers[query_id] for query_id in answered_ids]
        labels = contain_answer(open_texts, query_answers, self._rule.spans)
        for query_id, query_labels in zip(answered_ids, labels, strict=True):
            for passage_id, contains in zip(open_ids[query_id], query_labels, strict=True):
                if contains:
                    reasons_by_query[query_id][passage_id] = ANSWER
        for query_id, passage_ids in parts.items():
            reasons = reasons_by_query[query_id]
            yield query_id, {passage_id: reasons[passage_id] for passage_id in passage_ids if passage_id in reasons}

    def _explain_by_positives(
        self, query_id: str, passage_ids: Sequence[str], texts: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the reasons of the positives, and of the unjudged passages that are near-duplicates of positives."""
        positives = self._qrels.positives[query_id]
        negatives = self._qrels.negatives.get(query_id, ())
        reasons = {passage_id: POSITIVE for passage_id in passage_ids if passage_id in positives}
        unjudged_ids = [
            passage_id for passage_id in passage_ids if passage_id not in positives and passage_id not in negatives
        ]
        positive_texts = {}
        for passage_id in positives:
            if passage_id in self._positive_texts:
                positive_texts[passage_id] = self._positive_texts[passage_id]
        if positive_texts and unjudged_ids:
            index = LikeTexts(positive_texts, _METHODS, self._rule.ngram, self._rule.jaccard)
            unjudged_texts = [texts[passage_id] for passage_id in unjudged_ids]
            for passage_id, likes in zip(unjudged_ids, index.find(unjudged_texts), strict=True):
                if likes:
                    reasons[passage_id] = COPY
        return reasons


def remove_answering(run: Run, answering: Answering) -> dict[str, list[Hit]]:
    """Return the hits of the questions in ``answering`` without their answering passages."""
    remaining_hits = {}
    for query_id, reasons in answering.items():
        hits = unique_hits(run, query_id)
        remaining_hits[query_id] = [hit for hit in hits if hit[0] not in reasons]
    return remaining_hits
