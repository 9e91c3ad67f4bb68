"""The models that are trained: from the hub, from a checkpoint, or from nothing.

A dual-encoder is a SentenceTransformer whose one encoder cuts queries and passages at lengths of their own; a
cross-encoder is a CrossEncoder with one output. Both are saved so that plain ``SentenceTransformer(DIR)`` and
``CrossEncoder(DIR)`` load them, lengths included.
"""

from __future__ import annotations

import collections
import contextlib
import string
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertTokenizer, PreTrainedModel
from transformers import BertForMaskedLM as _BertForMaskedLM

from baselines.passages import Passages
from baselines.train.recipe import Recipe
from builders.common.command import InputError, log
from builders.common.files import write_text
from builders.common.folders import build_once

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_TEXTS_AT_ONCE = 1_000
_CHINESE = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))
POSITIONS = 512  # of a scratch model, as BERT's


class BertForMaskedLM(_BertForMaskedLM):  # type: ignore[no-untyped-call]
    """BERT that guesses at the masked places alone: in a small model, the vocabulary is most of the arithmetic.

    The loss is the same. Saved under transformers' own class name, so that AutoModel finds that one.
    """

    def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> dict[str, torch.Tensor]:
        states = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state
        masked = labels != -100
        guesses = self.cls(states[masked])
        # A batch without a masked place has a loss of 0, not of 0 / 0.
        total = torch.nn.functional.cross_entropy(guesses.float(), labels[masked], reduction="sum")
        return {"loss": total / masked.sum().clamp(min=1)}


def build_dual(recipe: Recipe, start: str, device: str) -> SentenceTransformer:
    """The dual-encoder to train, from ``start`` (a directory or a hub name)."""
    with _clear_errors(start):
        if _is_sentence_transformer(start):
            model = SentenceTransformer(start, device=device)
            encoder: Any = model[0]
        else:
            encoder = Transformer(start)
            parts: list[Any] = [encoder, Pooling(encoder.get_embedding_dimension(), recipe.model.pooling)]
            if recipe.model.similarity == "cos":
                parts.append(Normalize())  # so that dot products, which every index can do, are cosines
            model = SentenceTransformer(modules=parts, device=device, similarity_fn_name="dot")
    pooler = getattr(encoder.auto_model, "pooler", None)
    if pooler is not None:
        pooler.requires_grad_(False)  # no part of the vector; several processes would wait for its gradients
    encoder.query_length, encoder.document_length = recipe.data.query_length, recipe.data.passage_length
    return model


def build_cross(recipe: Recipe, start: str, device: str) -> CrossEncoder:
    """The cross-encoder to train, from ``start`` (a directory or a hub name); one output, a logit."""
    with _clear_errors(start):
        return CrossEncoder(start, num_labels=1, max_length=recipe.data.passage_length, device=device)


def build_mlm(recipe: Recipe, start: str) -> tuple[PreTrainedModel, Any]:
    """(masked language model, tokenizer) to train on."""
    with _clear_errors(start):
        kind = BertForMaskedLM if AutoConfig.from_pretrained(start).model_type == "bert" else AutoModelForMaskedLM
        return kind.from_pretrained(start), AutoTokenizer.from_pretrained(start)


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
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.feed_forward,
        hidden_dropout_prob=sizes.dropout,
        attention_probs_dropout_prob=sizes.dropout,
        max_position_embeddings=POSITIONS,
        initializer_range=0.02 * (768 / sizes.hidden) ** 0.5,  # BERT's, at its width: a narrower one needs more
    )
    torch.manual_seed(recipe.train.seed)
    tokenizer.save_pretrained(folder)
    BertForMaskedLM(config).save_pretrained(folder)
    log.info("a vocabulary of %d word pieces and random weights", len(vocabulary))


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


def _is_sentence_transformer(start: str) -> bool:
    from sentence_transformers.util import is_sentence_transformer_model

    if Path(start).is_dir():
        return (Path(start) / "modules.json").is_file()
    return bool(is_sentence_transformer_model(start))


@contextlib.contextmanager
def _clear_errors(start: str) -> Iterator[None]:
    """What a missing or broken model raises, as one :class:`InputError`."""
    try:
        yield
    except (OSError, ValueError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"cannot start from the model {start!r}: {said[0]}") from error
