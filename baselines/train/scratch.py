"""A model to start from on a machine without pretrained weights: random weights, and a vocabulary of its own."""

from __future__ import annotations

import collections
import string
import unicodedata
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertTokenizer

from baselines.retrieve.passages import Passages
from baselines.train.models import BertForMaskedLM
from baselines.train.recipe import Recipe, Scratch
from builders.core.errors import log
from builders.core.files import write_text
from builders.core.folders import build_once

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_TEXTS_AT_ONCE = 1_000
_CHINESE = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))
POSITIONS = 512  # as BERT's


def make_scratch(recipe: Recipe, passages: Passages, folder: Path) -> Path:
    """A BERT with random weights and a vocabulary from the collection, as a directory to start from.

    Made once in ``folder`` (the first process makes it, the others wait); the same recipe and collection give the
    same bytes.
    """
    build_once(folder, (folder / "model.safetensors").is_file, lambda new: _write_scratch(recipe, passages, new))
    return folder


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

    count = min(most, len(passages))
    rows = [n * len(passages) // count for n in range(count)]

    def texts() -> Any:
        for start in range(0, count, _TEXTS_AT_ONCE):
            yield from passages.texts(rows[start : start + _TEXTS_AT_ONCE])

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    characters: collections.Counter[str] = collections.Counter()
    for text in texts():
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
    tokenizer.train_from_iterator(texts(), trainer)
    found = tokenizer.get_vocab()
    return sorted(found, key=found.__getitem__)


def _stands_alone(character: str) -> bool:
    """Whether BERT's tokenizers set a character apart from its neighbours: Chinese ones and punctuation."""
    chinese = any(low <= ord(character) <= high for low, high in _CHINESE)
    return chinese or character in string.punctuation or unicodedata.category(character).startswith("P")
