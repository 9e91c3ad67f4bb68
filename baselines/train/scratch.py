"""Starting models that are made from the collection: a BERT of random weights, or one vector per word.

A static model (``start = "words"``) is sentence-transformers' StaticEmbedding, loaded by plain
``SentenceTransformer(DIR)``: a text's vector is the mean of its words' vectors, so that no GPU is needed. The words are
those that jieba finds in the collection. A Unigram tokenizer cuts a text into the likeliest of them, as jieba does, and
into characters where it knows none. A word begins as a random vector times its inverse document frequency, plus the
same of its characters. Two texts are then as similar as the words that they share weigh, to within the dimensions'
noise. Training learns which words matter, and which stand for each other.
"""

from __future__ import annotations

import collections
import math
import string
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from transformers import BertConfig, BertTokenizer

from baselines.retrieve.passages import Passages
from baselines.train.models import BertForMaskedLM
from baselines.train.recipe import WORDS, Recipe, Scratch, Words
from builders.core.errors import log
from builders.core.files import write_text
from builders.core.folders import build_once

if TYPE_CHECKING:
    from tokenizers import Tokenizer

POSITIONS = 512  # as BERT's
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_TEXTS_AT_ONCE = 1_000
_CHINESE = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))
_UNKNOWN = "[UNK]"
_LONGEST = 16  # characters of a word; longer runs of letters and digits are names of files and the like
_UNSEEN = 0.5  # how often a character counts that was never a word by itself


def make_start(recipe: Recipe, start: str, passages: Passages, folder: Path) -> Path:
    """Make the model ``scratch`` or ``words`` in ``folder``, unless it is there.

    The first process makes it, the others wait. The same recipe and collection give the same bytes.
    """
    last, write = ("modules.json", _write_words) if start == WORDS else ("model.safetensors", _write_scratch)
    build_once(folder, (folder / last).is_file, lambda new: write(recipe, passages, new))
    return folder


def _texts(passages: Passages, most: int) -> Iterator[str]:
    """The texts of ``most`` passages, evenly spaced over the collection."""
    count = min(most, len(passages))
    rows = [n * len(passages) // count for n in range(count)]
    for start in range(0, count, _TEXTS_AT_ONCE):
        yield from passages.texts(rows[start : start + _TEXTS_AT_ONCE])


def _write_scratch(recipe: Recipe, passages: Passages, folder: Path) -> None:
    sizes = recipe.scratch
    vocabulary = wordpieces(passages, sizes.vocabulary, sizes.vocabulary_passages)
    write_text(folder / "vocab.txt", "".join(f"{piece}\n" for piece in vocabulary))
    # The path goes first: transformers 5 ignores the keyword vocab_file, and every token becomes [UNK].
    tokenizer = BertTokenizer(str(folder / "vocab.txt"), model_max_length=POSITIONS)
    torch.manual_seed(recipe.train.seed)
    tokenizer.save_pretrained(folder)
    BertForMaskedLM(scratch_config(sizes, len(vocabulary))).save_pretrained(folder)
    log.info("a vocabulary of %d word pieces and random weights", len(vocabulary))


def scratch_config(sizes: Scratch, words: int) -> BertConfig:
    """The architecture of these sizes, for a vocabulary of so many word pieces."""
    return BertConfig(
        vocab_size=words,
        hidden_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.feed_forward,
        hidden_dropout_prob=sizes.dropout,
        attention_probs_dropout_prob=sizes.dropout,
        max_position_embeddings=POSITIONS,
        initializer_range=0.02 * (768 / sizes.hidden) ** 0.5,  # BERT's, at its width: a narrower one needs more
    )


def wordpieces(passages: Passages, size: int, most: int) -> list[str]:
    """A WordPiece vocabulary of at most ``size`` pieces from ``most`` passages, evenly spaced over the collection.

    BERT's special tokens come first. The same passages give the same list: the library breaks ties between rare
    characters by chance, so which characters are in is decided here.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    characters: collections.Counter[str] = collections.Counter()
    for text in _texts(passages, most):
        characters.update(tokenizer.normalizer.normalize_str(text))
    common = sorted((c for c in characters if not c.isspace()), key=lambda c: (-characters[c], c))
    # A character that comes inside words has a piece for that, too. The library would number those in the order of a
    # hash table, and the numbers decide ties between pieces: so they are given to it.
    alphabet: list[str] = []
    inside: list[str] = []
    for character in common:
        if len(alphabet) + len(inside) >= 0.75 * (size - len(_SPECIAL)):
            break
        alphabet.append(character)
        if not _stands_alone(character):
            inside.append(f"##{character}")
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=[*_SPECIAL, *inside],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(passages, most), trainer)
    found = tokenizer.get_vocab()
    return sorted(found, key=found.__getitem__)


def _stands_alone(character: str) -> bool:
    """True if BERT's tokenizers set a character apart from its neighbours: Chinese ones and punctuation."""
    chinese = any(low <= ord(character) <= high for low, high in _CHINESE)
    return chinese or character in string.punctuation or unicodedata.category(character).startswith("P")


def _write_words(recipe: Recipe, passages: Passages, folder: Path) -> None:
    counts = Counts(passages, recipe.words.vocabulary_passages)
    tokenizer, words = words_tokenizer(counts, recipe.words.vocabulary)
    vectors = start_vectors(words, counts, recipe.words, recipe.train.seed)
    modules = [StaticEmbedding(tokenizer, embedding_weights=vectors), Normalize()]
    SentenceTransformer(modules=modules, device="cpu", similarity_fn_name="cosine").save(
        str(folder), create_model_card=False
    )
    log.info("vectors of %d words and characters, %d dimensions", len(words), vectors.shape[1])


class Counts:
    """Counts of words in ``most`` passages, evenly spaced over a collection.

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
        normalise = _normalizer().normalize_str
        for text in _texts(passages, most):
            words = [word for word in tokens(normalise(text)) if word.isalnum()]
            self.words.update(words)
            self.found.update({*words, *(character for word in words for character in word)})

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


def start_vectors(words: list[str], counts: Counts, sizes: Words, seed: int) -> npt.NDArray[np.float32]:
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
