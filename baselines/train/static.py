"""A static model: a text's vector is the mean of its words' vectors, which a card is not needed for.

It is sentence-transformers' StaticEmbedding, loaded by plain ``SentenceTransformer(DIR)``. With ``start = "words"`` it
is made from the collection: the words that jieba finds there, in a Unigram tokenizer, which cuts a text into the
likeliest of them as jieba does, and into characters where it knows none. A word begins as a random vector times its
inverse document frequency, and the same of its characters: texts are then as like as what they share weighs, to within
the dimensions' noise. What is learned is which words matter, and which stand for each other.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding

from baselines.retrieve.passages import Passages
from baselines.train.recipe import Recipe
from baselines.train.recipe import Words as Sizes
from builders.core.errors import log
from builders.core.folders import build_once

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_UNKNOWN = "[UNK]"
_TEXTS_AT_ONCE = 1_000
_LONGEST = 16  # characters of a word; longer runs of letters and digits are names of files and the like
_UNSEEN = 0.5  # how often a character counts that was never a word by itself


def is_static(model: SentenceTransformer) -> bool:
    """Whether it has one vector a word, and no transformer."""
    return any(isinstance(module, StaticEmbedding) for module in model)


def make_words(recipe: Recipe, passages: Passages, folder: Path) -> Path:
    """A static model of the collection's words, as a directory to start from.

    Made once in ``folder`` (the first process makes it, the others wait); the same recipe and collection give the
    same bytes.
    """
    build_once(folder, (folder / "modules.json").is_file, lambda new: _write(recipe, passages, new))
    return folder


def _write(recipe: Recipe, passages: Passages, folder: Path) -> None:
    counts = Counts(passages, recipe.words.vocabulary_passages)
    tokenizer, words = words_tokenizer(counts, recipe.words.vocabulary)
    vectors = start_vectors(words, counts, recipe.words, recipe.train.seed)
    modules = [StaticEmbedding(tokenizer, embedding_weights=vectors), Normalize()]
    SentenceTransformer(modules=modules, device="cpu", similarity_fn_name="cosine").save(
        str(folder), create_model_card=False
    )
    log.info("vectors of %d words and characters, %d dimensions", len(words), vectors.shape[1])


class Counts:
    """What is counted in ``most`` passages, evenly spaced over a collection.

    Attributes:
        passages: how many they are.
        words: how often each word comes.
        found: in how many of the passages a word, or a single character, is.
    """

    def __init__(self, passages: Passages, most: int) -> None:
        from baselines.bm25.tokens import tokens

        self.passages = min(most, len(passages))
        self.words: collections.Counter[str] = collections.Counter()
        self.found: collections.Counter[str] = collections.Counter()
        for text in self._texts(passages):
            words = [word for word in tokens(text) if word.isalnum()]
            self.words.update(words)
            self.found.update({*words, *(character for word in words for character in word)})

    def _texts(self, passages: Passages) -> Iterator[str]:
        normalise = _normalizer().normalize_str
        rows = [n * len(passages) // self.passages for n in range(self.passages)]
        for start in range(0, len(rows), _TEXTS_AT_ONCE):
            yield from map(normalise, passages.texts(rows[start : start + _TEXTS_AT_ONCE]))

    def idf(self, word: str) -> float:
        """The inverse document frequency of a word or character."""
        return math.log((self.passages + 1) / (self.found[word] + 1))


def _normalizer() -> Any:
    from tokenizers import normalizers

    return normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])


def words_tokenizer(counts: Counts, size: int) -> tuple[Tokenizer, list[str]]:
    """(a tokenizer of the ``size`` most frequent words and of all characters, its words by number).

    Runs of letters and digits are cut from each other and from what is around them; the rest is dropped.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    order = sorted((word for word in counts.words if len(word) <= _LONGEST), key=lambda w: (-counts.words[w], w))
    characters = {character for character in counts.found if len(character) == 1}
    words = [_UNKNOWN, *order[:size], *sorted(characters.difference(order[:size]))]
    every = math.log(sum(counts.words.values()))
    scores = [(word, math.log(counts.words[word] or _UNSEEN) - every) for word in words[1:]]
    tokenizer = Tokenizer(models.Unigram([(_UNKNOWN, 0.0), *scores], unk_id=0, byte_fallback=False))
    tokenizer.normalizer = _normalizer()
    split = pre_tokenizers.Split
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split(Regex(r"[^\p{L}\p{N}]+"), "removed"), split(Regex("[a-z]+|[0-9]+"), "isolated")]
    )
    return tokenizer, words


def start_vectors(words: list[str], counts: Counts, sizes: Sizes, seed: int) -> npt.NDArray[np.float32]:
    """The vectors that the words begin with, shape (words, dimensions).

    A random vector of unit length, times the word's inverse document frequency; and, times ``characters``, the same of
    each of its characters, so that words are alike that share some.
    """
    generator = np.random.default_rng(seed)

    def weighted(every: list[str]) -> npt.NDArray[np.float32]:
        signs = generator.integers(0, 2, (len(every), sizes.dimensions), dtype=np.int8) * 2 - 1
        weights = np.array([0.0 if each == _UNKNOWN else counts.idf(each) for each in every], np.float32)
        return signs.astype(np.float32) * (weights / math.sqrt(sizes.dimensions))[:, None]

    vectors = weighted(words)
    characters = sorted({character for word in words[1:] for character in word})
    own, number = weighted(characters) * sizes.characters, {each: n for n, each in enumerate(characters)}
    for place, word in enumerate(words[1:], 1):
        vectors[place] += own[[number[character] for character in word]].sum(axis=0)
    return vectors
