"""Tokenizers that reproduce the inputs of the official code's readers. A saved tokenizer loads without this project.

Spaces (U+0020) are removed from a text. Then BERT's basic tokenisation lowercases letters, strips accents, removes
control characters, and splits at other white space and around every Chinese character. Greedy WordPiece follows. A word
of more than 100 characters becomes [UNK]. The inputs and their token types are

  query    [CLS] query [SEP]          0 0 0       at most 32 tokens
  passage  [CLS] [SEP] text [SEP]     0 0 1 1     at most 384 tokens; the title is the first segment, and empty
  pair     [CLS] query [SEP] text [SEP]  0 0 0 1 1   at most 384 tokens: the longer text is cut, token by token

The name of a special token inside a text ("[SEP]") is ordinary text.

Two differences from the official readers remain. In pairs with a query of more than 190 tokens, the cut query may be
one token shorter, and the passage one token longer. Characters newer than Unicode 8 may be classified differently.
"""

import json
from typing import Any, Literal

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from transformers import PreTrainedTokenizerFast

from builders.core.errors import InputError

Kind = Literal["query", "passage", "pair"]
QUERY_LENGTH = 32
PASSAGE_LENGTH = 384
# Templates of the tokenizers library: "$A" is the first text, "$B" the second, and ":0" or ":1" the token type.
_ONE_TEXT_TEMPLATE = "[CLS]:0 $A:0 [SEP]:0"
_TWO_TEXTS_TEMPLATE = "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
_TEMPLATES: dict[Kind, str] = {
    "query": _ONE_TEXT_TEMPLATE,
    "passage": "[CLS]:0 [SEP]:0 $A:1 [SEP]:1",
    "pair": _ONE_TEXT_TEMPLATE,
}
_SPECIAL_TOKENS = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LONGEST_WORD = 100  # characters; a longer word becomes [UNK]


class _Tokenizer(PreTrainedTokenizerFast):  # type: ignore[no-untyped-call]
    """A tokenizer that is saved under a class name of transformers 4 and 5."""


# Both versions save the name of the tokenizer's class, and load the class by this name.
_Tokenizer.__name__ = "PreTrainedTokenizerFast"


def official_tokenizer(start_tokenizer: Any, kind: Kind, max_length: int) -> PreTrainedTokenizerFast:
    """Return the official tokenizer of a ``kind`` of input, with the vocabulary of ``start_tokenizer``.

    ``max_length`` is the longest input in tokens, special tokens included. Raises :class:`InputError` if the vocabulary
    is not a WordPiece vocabulary, or lacks the unk, sep, pad or cls token.
    """
    start_backend = getattr(start_tokenizer, "backend_tokenizer", None)
    if start_backend is None or not isinstance(start_backend.model, WordPiece):
        tokenizer_name = getattr(start_tokenizer, "name_or_path", "") or type(start_tokenizer).__name__
        raise InputError(
            "official inputs need a WordPiece vocabulary, for example BERT's or ERNIE's", path=tokenizer_name
        )
    special_tokens = _read_special_tokens(start_tokenizer)
    vocabulary = json.loads(start_backend.to_str())["model"]["vocab"]
    backend = Tokenizer(
        WordPiece(vocabulary, unk_token=special_tokens["unk_token"], max_input_chars_per_word=_LONGEST_WORD)
    )
    backend.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(" ", ""),
            # In Python, the lower case of Σ at the end of a word is ς. In BertNormalizer, it is σ.
            normalizers.Replace(Regex(r"(?<=[\p{Lu}\p{Ll}])Σ(?![\p{Lu}\p{Ll}])"), "ς"),
            normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=True, lowercase=True),
        ]
    )
    # BERT splits around these Chinese characters, but the library's BertNormalizer does not.
    rare_characters = pre_tokenizers.Split(Regex("[\U0002b820-\U0002b91f]"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([rare_characters, pre_tokenizers.BertPreTokenizer()])
    backend.post_processor = processors.TemplateProcessing(
        single=_TEMPLATES[kind],
        pair=_TWO_TEXTS_TEMPLATE,
        special_tokens=[
            ("[CLS]", backend.token_to_id(special_tokens["cls_token"])),
            ("[SEP]", backend.token_to_id(special_tokens["sep_token"])),
        ],
    )
    backend.decoder = decoders.WordPiece(prefix="##")
    tokenizer = _Tokenizer(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        model_max_length=max_length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        padding_side="right",
        truncation_side="right",
        split_special_tokens=True,
        **special_tokens,
    )
    return tokenizer


def _read_special_tokens(tokenizer: Any) -> dict[str, str]:
    """Return the special tokens that a tokenizer has, by attribute, for example "[CLS]" by "cls_token".

    Raises :class:`InputError` if another token than the mask token is missing.
    """
    special_tokens = {}
    missing_tokens = []
    for attribute in _SPECIAL_TOKENS:
        token = getattr(tokenizer, attribute)
        if token is not None:
            special_tokens[attribute] = token
        elif attribute != "mask_token":
            missing_tokens.append(attribute)
    if missing_tokens:
        raise InputError(f"official inputs need a vocabulary with {', '.join(missing_tokens)}")
    return special_tokens
