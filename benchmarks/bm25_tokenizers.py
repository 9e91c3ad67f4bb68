"""Tokenizers for `bm25 --tokenizer`, which bm25_analyzers.py compares with this project's analyzers."""

import functools
import os
from typing import Any

import rjieba

from builders.core.word_tokens import word_tokens

MODEL_VARIABLE = "WORD_PIECES"  # folder or name of the model whose word pieces are the tokens


def search_mode(text: str) -> list[str]:
    """Return jieba's words for search: long words, and the shorter words inside them."""
    return word_tokens(text, rjieba.cut_for_search)


@functools.cache
def _open_word_pieces() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(os.environ[MODEL_VARIABLE])


def word_pieces(text: str) -> list[str]:
    """Return the pieces of words that a model reads, except special tokens and pieces without a letter or digit."""
    pieces = _open_word_pieces().tokenize(text.lower())
    # A mark before a piece shows that the piece begins a word, or in BERT's vocabularies, that it does not.
    plain_pieces = [piece.strip("▁").removeprefix("##") for piece in pieces]
    return [piece for piece in plain_pieces if any(map(str.isalnum, piece))]
