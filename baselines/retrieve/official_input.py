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
QUERY_LENGTH, PASSAGE_LENGTH = 32, 384
_ONE, _TWO = "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
_SINGLE: dict[Kind, str] = {"query": _ONE, "passage": "[CLS]:0 [SEP]:0 $A:1 [SEP]:1", "pair": _ONE}
_SPECIAL = ("unk", "sep", "pad", "cls", "mask")


class _Tokenizer(PreTrainedTokenizerFast):  # type: ignore[no-untyped-call]
    """A tokenizer that is saved under a class name of transformers 4 and 5."""


_Tokenizer.__name__ = "PreTrainedTokenizerFast"


def official_tokenizer(start_tokenizer: Any, kind: Kind, length: int) -> PreTrainedTokenizerFast:
    """Return the official tokenizer of a ``kind`` of input, with the vocabulary of another tokenizer.

    ``length`` is the longest input in tokens, special tokens included. Raises :class:`InputError` if the vocabulary is
    not a WordPiece vocabulary, or lacks the unk, sep, pad or cls token.
    """
    backend = getattr(start_tokenizer, "backend_tokenizer", None)
    if backend is None or not isinstance(backend.model, WordPiece):
        name = getattr(start_tokenizer, "name_or_path", "") or type(start_tokenizer).__name__
        raise InputError("official inputs need a WordPiece vocabulary, for example BERT's or ERNIE's", path=name)
    special = {f"{name}_token": getattr(start_tokenizer, f"{name}_token") for name in _SPECIAL}
    if missing := [name for name, token in special.items() if token is None and name != "mask_token"]:
        raise InputError(f"official inputs need a vocabulary with {', '.join(missing)}")
    tokenizer = Tokenizer(
        WordPiece(
            json.loads(backend.to_str())["model"]["vocab"],
            unk_token=special["unk_token"],
            max_input_chars_per_word=100,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(" ", ""),
            # In Python, the lower case of Σ at the end of a word is ς. In BertNormalizer, it is σ.
            normalizers.Replace(Regex(r"(?<=[\p{Lu}\p{Ll}])Σ(?![\p{Lu}\p{Ll}])"), "ς"),
            normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=True, lowercase=True),
        ]
    )
    # BERT splits around these Chinese characters, but the library's BertNormalizer does not.
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
