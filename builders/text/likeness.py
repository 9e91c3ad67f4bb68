"""Find pairs of similar texts by equality, normalised equality, n-grams, or a model's scores.

Two texts can match in four ways, the strongest first:

- ``exact``: the texts are equal.
- ``normalised``: their letters and digits are equal (:func:`normalised`).
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
_VALUES, _SEED = 128, 42  # number of values of a MinHash, and its seed
_BLOCK = 1_024  # texts whose n-grams are in memory together
_SHORT = 64  # letters of the longest text that adds_meaning compares
_FILLERS = set("的了吗呢啊吧呀嘛么那请问谢您你我好是什怎样有会")  # letters that add no meaning to a question
_RECALL = 0.999  # least recall for pairs whose similarity is equal to the threshold


class Like(NamedTuple):
    """A match: the matching text's id, the strongest way of ``HOW``, and the similarity (1 for equal texts)."""

    id: str
    how: str
    score: float


Scores = dict[str, list[Like]]  # training question's id -> questions that are similar by a model's scores


class _Folded(dict[int, str]):
    """Cache of normalised characters, by code point."""

    def __missing__(self, code: int) -> str:
        self[code] = "".join(filter(str.isalnum, unicodedata.normalize("NFKC", chr(code)).casefold()))
        return self[code]


_FOLDED = _Folded()


def normalised(text: str) -> str:
    """Return the letters and digits of a text in one width and case, normalised character by character."""
    return text.translate(_FOLDED)


def adds_meaning(one: str, other: str) -> bool:
    """True if the longer of two short texts has all letters of the shorter text, in order, and a new letter.

    Fillers are not new letters. 孕妇不能吃什么 and 孕妇不能吃什么肉 share most n-grams, but ask different questions.

    The rule favours precision. At a Jaccard similarity of 0.8, the rule skips 94 labelled pairs of LCQMC (68 ask the
    same), 10 of ATEC (8) and 30 of cMedQQ (30).
    """
    short, long = sorted((one, other), key=len)
    rest = iter(long)
    return len(long) <= _SHORT and all(letter in rest for letter in short) and not set(long) <= set(short) | _FILLERS


def ngrams(text: str, length: int) -> list[str]:
    """Return the character n-grams of a normalised text, in order. A text of fewer characters is one n-gram."""
    return [text[start : start + length] for start in range(max(1, len(text) - length + 1))]


def bands(share: float) -> int:
    """Return the least number of MinHash bands that finds pairs of similarity ``share`` with recall ``_RECALL``.

    Two texts are candidates if all values of one band are equal. Fewer bands give fewer candidates to compare.
    """
    counts = (1 << power for power in range(_VALUES.bit_length()))
    return next((n for n in counts if 1 - (1 - share ** (_VALUES // n)) ** n >= _RECALL), _VALUES)


class LikeTexts:
    """Index of ``texts`` (id -> text). :meth:`find` returns the indexed texts that match other texts.

    ``by`` has the enabled ways of ``HOW``. ``length`` and ``share`` are the n-gram length and the Jaccard threshold.
    """

    def __init__(
        self, texts: Mapping[str, str], by: Container[str] = HOW, length: int = NGRAM, share: float = SHARE
    ) -> None:
        self._length, self._share, self._by = length, share, by
        self._exact: defaultdict[str, list[str]] = defaultdict(list)
        self._normalised: defaultdict[str, list[str]] = defaultdict(list)
        for each, text in texts.items():
            self._exact[text].append(each)
            self._normalised[normalised(text)].append(each)
        self._normalised.pop("", None)  # texts of only punctuation must not match each other
        self._distinct = list(self._normalised)
        if "n-gram" in by:
            from rensa import RMinHashLSH

            self._lsh = RMinHashLSH(share, _VALUES, bands(share))
            for start in range(0, len(self._distinct), _BLOCK):  # in blocks, because n-grams need much memory
                self._lsh.insert_many(self._minhashes(self._distinct[start : start + _BLOCK]), start)

    def find(self, texts: Sequence[str]) -> Iterator[list[Like]]:
        """Yield, for each text, the matching indexed texts: each id once, the strongest way first."""
        folded = [normalised(text) for text in texts]
        near = self._lsh.query_all(self._minhashes(folded)) if "n-gram" in self._by else [()] * len(texts)
        for text, letters, candidates in zip(texts, folded, near, strict=True):
            found: dict[str, Like] = {}
            if "exact" in self._by:
                found |= {each: Like(each, "exact", 1.0) for each in self._exact.get(text, ())}
            if "normalised" in self._by:
                for each in self._normalised.get(letters, ()):
                    found.setdefault(each, Like(each, "normalised", 1.0))
            for like in self._near(letters, candidates) if candidates and letters else ():
                found.setdefault(like.id, like)
            yield list(found.values())

    def _near(self, letters: str, candidates: Iterable[int]) -> Iterator[Like]:
        mine, others = set(ngrams(letters, self._length)), {self._distinct[candidate] for candidate in candidates}
        both = ((other, set(ngrams(other, self._length))) for other in others)
        scored = sorted((-len(mine & theirs) / len(mine | theirs), other) for other, theirs in both)
        for negated, other in scored:
            if -negated >= self._share and not adds_meaning(letters, other):
                yield from (Like(each, "n-gram", -negated) for each in self._normalised[other])

    def _minhashes(self, texts: Iterable[str]) -> list[RMinHash]:
        from rensa import RMinHash

        found: list[RMinHash] = RMinHash.from_token_sets([ngrams(t, self._length) for t in texts], _VALUES, _SEED)
        return found


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
    best: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for run in runs:
        for question, hits in run.hits.items():
            for trained, score in hits:
                if not 0 <= score <= 1:
                    found = f"found {score} for {question} and {trained}"
                    raise InputError(f"expected scores from 0 to 1, {found}; use `baselines match`", path=run.path)
                if is_similar(score, threshold):
                    best[trained][question] = max(score, best[trained].get(question, 0.0))
    likes = {trained: [Like(each, "model", found[each]) for each in found] for trained, found in best.items()}
    return {trained: sorted(found, key=lambda like: (-like.score, like.id)) for trained, found in likes.items()}


def with_scores(likes: Sequence[Like], scored: Iterable[Like]) -> list[Like]:
    """Return the matches of a question: ``likes``, then the matches in ``scored`` that ``likes`` lacks."""
    known = {like.id for like in likes}
    return [*likes, *(like for like in scored if like.id not in known)]


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


class Tested(NamedTuple):
    """Development and test questions to compare with other questions, and the rule of the comparison.

    ``asked`` maps a split to its questions (id -> text). ``options`` are written to the manifest and the report.
    """

    release: Release
    rule: LikenessRule
    asked: dict[str, dict[str, str]]
    options: dict[str, Any]
    scores: Scores

    def questions(self) -> dict[str, str]:
        """Return the texts of all splits, by id."""
        return {each: text for texts in self.asked.values() for each, text in texts.items()}


def read_tested(release: Release, rule: LikenessRule, splits: Sequence[str] = ()) -> Tested:
    """Read the questions of ``splits`` (default: those of dev and test that the release has), and the rule's scores.

    Raises :class:`InputError` if the release lacks the splits, or for a score of a question that is not in the splits.
    """
    tested_splits = [split for split in TESTED_SPLITS if split in (splits or TESTED_SPLITS)]
    if not splits:
        tested_splits = [split for split in tested_splits if ("queries", split) in release.splits()]
    if not tested_splits:
        raise InputError("has no config 'queries' with a split dev or test to compare with", path=release.path)
    asked = {split: release.texts("queries", split) for split in tested_splits}
    options: dict[str, Any] = {"splits": tested_splits, "by": rule.active_ways}
    if "n-gram" in rule.active_ways:
        options |= {"ngram": rule.ngram, "jaccard": rule.jaccard}
    scores: Scores = {}
    if "model" in rule.active_ways:
        threshold = THRESHOLD if rule.threshold is None else rule.threshold
        options["threshold"] = threshold
        scores = read_scores(rule.score_runs, threshold)
    tested = Tested(release, rule, asked, options, scores)
    scored_ids = {like.id for likes in scores.values() for like in likes}
    if lost := scored_ids - tested.questions().keys():
        where = rule.score_names
        raise InputError(
            f"has a score for {min(lost)}; expected only questions of {', '.join(tested_splits)}", path=where
        )
    return tested
