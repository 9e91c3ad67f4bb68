"""Find pairs of similar texts by equality, normalised equality, n-grams, or a model's scores.

Two texts can match in four ways, the strongest first:

- ``exact``: the texts are equal.
- ``normalised``: their letters and digits are equal (:func:`normalise_text`).
- ``n-gram``: the Jaccard similarity of their character n-grams is at least a threshold, and the longer text adds no
  meaning (:func:`adds_meaning`). MinHash finds candidates with a recall of at least 99.9 %. Similarities are exact.
- ``model``: the score of a model is above a threshold (:func:`read_scores`).
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from builders.core.errors import InputError
from builders.store.names import TESTED_SPLITS
from builders.store.reader import Release
from builders.store.runs import Run
from builders.text.ngram_options import HOW, NGRAM, SHARE

if TYPE_CHECKING:
    from rensa import RMinHash

THRESHOLD = 0.5  # threshold of the probability that two questions mean the same (Section 2.3)
_VALUES = 128  # values of a MinHash
_SEED = 42  # seed of the MinHash's hash functions
_BLOCK = 1_024  # texts whose n-grams are in memory together
_SHORT = 64  # letters of the longest text that adds_meaning compares
_FILLERS = set("的了吗呢啊吧呀嘛么那请问谢您你我好是什怎样有会")  # letters that add no meaning to a question
_RECALL = 0.999  # least recall for pairs whose similarity is equal to the threshold


class LikeText(NamedTuple):
    """A match: the matching text's id, the strongest way of ``HOW``, and the similarity (1 for equal texts)."""

    id: str
    how: str
    score: float


# Training question's id -> questions that are similar by a model's scores.
Scores = dict[str, list[LikeText]]


class _FoldedCharacters(dict[int, str]):
    """Cache of normalised characters, by code point. ``str.translate`` looks up each character here."""

    def __missing__(self, code_point: int) -> str:
        folded = unicodedata.normalize("NFKC", chr(code_point)).casefold()
        self[code_point] = "".join(filter(str.isalnum, folded))
        return self[code_point]


_FOLDED_CHARACTERS = _FoldedCharacters()


def normalise_text(text: str) -> str:
    """Return the letters and digits of a text in one width and case, normalised character by character."""
    return text.translate(_FOLDED_CHARACTERS)


def adds_meaning(first_text: str, second_text: str) -> bool:
    """True if the longer of two short texts has all letters of the shorter text, in order, and a new letter.

    The texts are normalised (:func:`normalise_text`). If one is longer than ``_SHORT``, the result is False. Fillers
    are not new letters. 孕妇不能吃什么 and 孕妇不能吃什么肉 share most n-grams, but ask different questions.

    The rule favours precision. At a Jaccard similarity of 0.8, the rule skips 94 labelled pairs of LCQMC (68 ask the
    same), 10 of ATEC (8) and 30 of cMedQQ (30).
    """
    short, long = sorted((first_text, second_text), key=len)
    if len(long) > _SHORT:
        return False
    # `in` consumes the iterator up to the letter, so each letter must come after the letter before it.
    long_letters = iter(long)
    has_all_letters = all(letter in long_letters for letter in short)
    return has_all_letters and not set(long) <= set(short) | _FILLERS


def character_ngrams(text: str, length: int) -> list[str]:
    """Return the character n-grams of a normalised text, in order. A text of fewer characters is one n-gram."""
    count = max(1, len(text) - length + 1)
    return [text[start : start + length] for start in range(count)]


def count_bands(share: float) -> int:
    """Return the least number of MinHash bands that finds pairs of similarity ``share`` with recall ``_RECALL``.

    The values of a MinHash are divided into bands. Two texts are candidates if all values of one band are equal. Fewer
    bands give fewer candidates to compare. A value is equal with the probability ``share``, so a band of r values is
    equal with the probability share^r, and one of b bands with the probability 1 - (1 - share^r)^b (Leskovec, Rajaraman
    and Ullman, Mining of Massive Datasets, Section 3.4). The number of bands is a power of two, which divides the 128
    values.
    """
    for power in range(_VALUES.bit_length()):
        band_count = 1 << power
        band_values = _VALUES // band_count
        recall = 1 - (1 - share**band_values) ** band_count
        if recall >= _RECALL:
            return band_count
    return _VALUES


class LikeTexts:
    """Index of ``texts`` (id -> text). :meth:`find` returns the indexed texts that match other texts.

    ``ways`` has the enabled ways of ``HOW``. ``ngram_length`` is the number of characters of an n-gram. ``share`` is
    the threshold of the Jaccard similarity.
    """

    def __init__(
        self, texts: Mapping[str, str], ways: Container[str] = HOW, ngram_length: int = NGRAM, share: float = SHARE
    ) -> None:
        self._ngram_length = ngram_length
        self._share = share
        self._ways = ways
        # Equal texts share one entry, so that each distinct text is compared only once.
        self._ids_by_text: defaultdict[str, list[str]] = defaultdict(list)
        self._ids_by_letters: defaultdict[str, list[str]] = defaultdict(list)
        for text_id, text in texts.items():
            self._ids_by_text[text].append(text_id)
            self._ids_by_letters[normalise_text(text)].append(text_id)
        self._ids_by_letters.pop("", None)  # texts of only punctuation must not match each other
        # A text's place here is its number in the MinHash index.
        self._distinct = list(self._ids_by_letters)
        if "n-gram" in ways:
            from rensa import RMinHashLSH

            self._lsh = RMinHashLSH(share, _VALUES, count_bands(share))
            # In blocks, because n-grams need much memory.
            for block_start in range(0, len(self._distinct), _BLOCK):
                block = self._distinct[block_start : block_start + _BLOCK]
                self._lsh.insert_many(self._minhashes(block), block_start)

    def find(self, texts: Sequence[str]) -> Iterator[list[LikeText]]:
        """Yield, for each text, the matching indexed texts: each id once, the strongest way first."""
        letters_of_texts = [normalise_text(text) for text in texts]
        if "n-gram" in self._ways:
            candidates_of_texts = self._lsh.query_all(self._minhashes(letters_of_texts))
        else:
            candidates_of_texts = [()] * len(texts)
        for text, letters, candidates in zip(texts, letters_of_texts, candidates_of_texts, strict=True):
            # An id keeps its first match, so the strongest way comes first.
            likes: dict[str, LikeText] = {}
            if "exact" in self._ways:
                for text_id in self._ids_by_text.get(text, ()):
                    likes[text_id] = LikeText(text_id, "exact", 1.0)
            if "normalised" in self._ways:
                for text_id in self._ids_by_letters.get(letters, ()):
                    likes.setdefault(text_id, LikeText(text_id, "normalised", 1.0))
            if candidates and letters:
                for like in self._find_near(letters, candidates):
                    likes.setdefault(like.id, like)
            yield list(likes.values())

    def _find_near(self, letters: str, candidates: Iterable[int]) -> Iterator[LikeText]:
        """Yield the candidates whose n-grams match, the most similar first.

        ``letters`` is the normalised text, and ``candidates`` are numbers of the MinHash index.
        """
        text_ngrams = set(character_ngrams(letters, self._ngram_length))
        ranked: list[tuple[float, str]] = []
        for candidate_letters in {self._distinct[candidate] for candidate in candidates}:
            candidate_ngrams = set(character_ngrams(candidate_letters, self._ngram_length))
            similarity = len(text_ngrams & candidate_ngrams) / len(text_ngrams | candidate_ngrams)
            ranked.append((-similarity, candidate_letters))
        # By falling similarity, and by text among equal similarities, because a set has no order.
        for negative_similarity, candidate_letters in sorted(ranked):
            if -negative_similarity >= self._share and not adds_meaning(letters, candidate_letters):
                for text_id in self._ids_by_letters[candidate_letters]:
                    yield LikeText(text_id, "n-gram", -negative_similarity)

    def _minhashes(self, texts: Iterable[str]) -> list[RMinHash]:
        """Return the MinHash of the n-grams of each normalised text."""
        from rensa import RMinHash

        ngram_lists = [character_ngrams(text, self._ngram_length) for text in texts]
        minhashes: list[RMinHash] = RMinHash.from_token_sets(ngram_lists, _VALUES, _SEED)
        return minhashes


def is_similar(score: float, threshold: float = THRESHOLD) -> bool:
    """True if a model's score is above the threshold. Section 2.3 removes questions above 0.5."""
    return score > threshold


def read_scores(runs: Iterable[Run], threshold: float = THRESHOLD) -> Scores:
    """Return training question's id -> similar development and test questions, the highest score first.

    ``python -m baselines match`` writes the runs. The query-id is the id of a development or test question. The
    corpus-id is the id of a training question (MD5 of its text). The score is the probability that the two questions
    mean the same, or their cosine. If several runs score a pair, the highest score counts.

    Raises :class:`InputError` for a score outside of 0 to 1, for example a logit.
    """
    # The highest score of each pair.
    best_scores: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for run in runs:
        for question_id, hits in run.hits.items():
            for train_id, score in hits:
                if not 0 <= score <= 1:
                    problem = f"expected scores from 0 to 1, found {score} for {question_id} and {train_id}"
                    raise InputError(f"{problem}; use `baselines match`", path=run.path)
                if is_similar(score, threshold):
                    earlier_score = best_scores[train_id].get(question_id, 0.0)
                    best_scores[train_id][question_id] = max(score, earlier_score)
    # By falling score, and by id among equal scores, so that the result does not depend on the order of the runs.
    similar: Scores = {}
    for train_id, score_by_question in best_scores.items():
        likes = [LikeText(question_id, "model", score) for question_id, score in score_by_question.items()]
        similar[train_id] = sorted(likes, key=lambda like: (-like.score, like.id))
    return similar


def with_scores(likes: Sequence[LikeText], scored: Iterable[LikeText]) -> list[LikeText]:
    """Return the matches of a question: ``likes`` (of :meth:`LikeTexts.find`), then the other matches in ``scored``.

    ``scored`` are the question's matches by a model's scores (:func:`read_scores`).
    """
    matched_ids = {like.id for like in likes}
    return list(likes) + [like for like in scored if like.id not in matched_ids]


@dataclass(frozen=True)
class LikenessRule:
    """The options that decide which texts match.

    Attributes:
        ways: the enabled ways of ``HOW``. ``model`` has no effect without ``score_runs``.
        ngram: characters of an n-gram.
        jaccard: lowest Jaccard similarity of n-grams.
        score_runs: runs of ``baselines match``.
        threshold: questions with a score above this number match. It may be None if there are no scores.
    """

    ways: Sequence[str] = HOW
    ngram: int = NGRAM
    jaccard: float = SHARE
    score_runs: Sequence[Run] = ()
    threshold: float | None = None

    @property
    def active_ways(self) -> list[str]:
        """The enabled ways, without ``model`` if there are no scores."""
        return [way for way in self.ways if way != "model" or self.score_runs]

    @property
    def score_names(self) -> str:
        """The names of the runs with scores, for an error."""
        return ", ".join(str(run.path) for run in self.score_runs)


class TestedQuestions(NamedTuple):
    """Development and test questions to compare with other questions, and the rule of the comparison.

    ``texts_by_split`` maps a split to its questions (id -> text). ``options`` are the splits and the rule as JSON, for
    the manifest and the report. ``scores`` are those of the rule's runs (:func:`read_scores`).
    """

    release: Release
    rule: LikenessRule
    texts_by_split: dict[str, dict[str, str]]
    options: dict[str, Any]
    scores: Scores

    def questions(self) -> dict[str, str]:
        """Return the texts of all splits, by id."""
        all_texts: dict[str, str] = {}
        for texts in self.texts_by_split.values():
            all_texts |= texts
        return all_texts


def read_tested(release: Release, rule: LikenessRule, splits: Sequence[str] = ()) -> TestedQuestions:
    """Read the questions of ``splits`` (default: those of dev and test that the release has), and the rule's scores.

    Raises :class:`InputError` if the release lacks the splits, or for a score of a question that is not in the splits.
    """
    if splits:
        tested_splits = [split for split in TESTED_SPLITS if split in splits]
    else:
        tested_splits = [split for split in TESTED_SPLITS if ("queries", split) in release.splits()]
    if not tested_splits:
        raise InputError("has no config 'queries' with a split dev or test to compare with", path=release.path)
    # The options that have an effect are written to the manifest.
    texts_by_split = {split: release.texts("queries", split) for split in tested_splits}
    options: dict[str, Any] = {"splits": tested_splits, "by": rule.active_ways}
    if "n-gram" in rule.active_ways:
        options |= {"ngram": rule.ngram, "jaccard": rule.jaccard}
    scores: Scores = {}
    if "model" in rule.active_ways:
        threshold = rule.threshold
        if threshold is None:
            threshold = THRESHOLD
        options["threshold"] = threshold
        scores = read_scores(rule.score_runs, threshold)
    tested = TestedQuestions(release, rule, texts_by_split, options, scores)
    # Refuse scores of another release or split.
    scored_ids: set[str] = set()
    for likes in scores.values():
        scored_ids.update(like.id for like in likes)
    unknown_ids = scored_ids - tested.questions().keys()
    if unknown_ids:
        problem = f"has a score for {min(unknown_ids)}; expected only questions of {', '.join(tested_splits)}"
        raise InputError(problem, path=rule.score_names)
    return tested
