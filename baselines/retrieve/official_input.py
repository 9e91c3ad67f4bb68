"""Tokenizers that cut queries and passages as the official reader does, and that load without this project.

Spaces (U+0020) are removed from a text; then BERT's basic tokenisation (lower case, accents stripped, every Chinese
character apart; control characters go, other white space parts words) and greedy WordPiece, a word of more than 100
characters being [UNK]. The inputs, with their types:

  query    [CLS] query [SEP]          0 0 0       at most 32 pieces
  passage  [CLS] [SEP] text [SEP]     0 0 1 1     at most 384: an empty title is the first segment
  pair     [CLS] query [SEP] text [SEP]  0 0 0 1 1   at most 384: the longer of the two is cut, a piece at a time

Names of special tokens inside a text ("[SEP]") are text. Source: the official code's readers.

What a tokenizer.json cannot say: where both texts of a pair are cut and a piece is left over, the official reader
leaves it to the query, and here the longer one has it. That takes a query of more than 190 pieces.
Characters that came after Unicode 8 are of the class that the library's tables know them by.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from transformers import PreTrainedTokenizerFast

from builders.core.errors import InputError

Kind = Literal["query", "passage", "pair"]
QUERY_LENGTH, PASSAGE_LENGTH = 32, 384
LONGEST_WORD = 100
_ONE, _TWO = "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
_SINGLE: dict[Kind, str] = {"query": _ONE, "passage": "[CLS]:0 [SEP]:0 $A:1 [SEP]:1", "pair": _ONE}
_SPECIAL = ("unk", "sep", "pad", "cls", "mask")


class _Tokenizer(PreTrainedTokenizerFast):  # type: ignore[no-untyped-call]
    """transformers' own, saved under the name that its versions before 5 know, too."""


_Tokenizer.__name__ = "PreTrainedTokenizerFast"


def official_tokenizer(start_tokenizer: Any, kind: Kind, length: int) -> PreTrainedTokenizerFast:
    """The official reader's tokenizer with the vocabulary of another one.

    Args:
        start_tokenizer: a tokenizer of transformers with a WordPiece vocabulary.
        kind: what it reads.
        length: pieces in all, special ones included.

    Raises:
        InputError: the vocabulary is not of WordPiece, or has no unk, sep, pad or cls token.
    """
    backend = getattr(start_tokenizer, "backend_tokenizer", None)
    if backend is None or not isinstance(backend.model, WordPiece):
        name = getattr(start_tokenizer, "name_or_path", "") or type(start_tokenizer).__name__
        raise InputError("official inputs need a WordPiece vocabulary (as BERT's and ERNIE's)", path=name)
    special = {f"{name}_token": getattr(start_tokenizer, f"{name}_token") for name in _SPECIAL}
    missing = [name for name, token in special.items() if token is None and name != "mask_token"]
    if missing:
        raise InputError(f"official inputs need a vocabulary with {', '.join(missing)}")
    tokenizer = Tokenizer(
        WordPiece(
            json.loads(backend.to_str())["model"]["vocab"],
            unk_token=special["unk_token"],
            max_input_chars_per_word=LONGEST_WORD,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(" ", ""),
            # Python lowers a word's last capital sigma so; the next rule would make it a σ.
            normalizers.Replace(Regex(r"(?<=[\p{Lu}\p{Ll}])Σ(?![\p{Lu}\p{Ll}])"), "ς"),
            normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=True, lowercase=True),
        ]
    )
    # The library's BertNormalizer forgets these of BERT's Chinese characters (it begins at U+2B920).
    forgotten = pre_tokenizers.Split(Regex("[\U0002b820-\U0002b91f]"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([forgotten, pre_tokenizers.BertPreTokenizer()])
    ids = {name: tokenizer.token_to_id(special[f"{name}_token"]) for name in ("cls", "sep")}
    tokenizer.post_processor = processors.TemplateProcessing(
        single=_SINGLE[kind], pair=_TWO, special_tokens=[("[CLS]", ids["cls"]), ("[SEP]", ids["sep"])]
    )
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return _Tokenizer(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        model_max_length=length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        padding_side="right",
        truncation_side="right",
        split_special_tokens=True,
        **{name: token for name, token in special.items() if token is not None},
    )
