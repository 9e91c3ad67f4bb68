"""ERNIE 1.0's parameters, vocabulary and configuration, as BERT's in transformers.

The two are one architecture: embeddings of words, positions and types added, a layer norm, post-layer-norm layers; only
the activation (relu) and the layer norms' epsilon (Paddle's default) are values of the configuration. transformers'
ErnieModel would add embeddings of tasks, which ERNIE 1.0 has not. Names: the official code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from builders.core.errors import InputError
from builders.core.files import read_utf8
from builders.core.typed import read_json

_Size = Annotated[int, Meta(ge=1)]
_Dropout = Annotated[float, Meta(ge=0, lt=1)]
_EPSILON = 1e-5  # of paddle's layer_norm
_SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]")


class Config(Struct, frozen=True):
    """What is read of an `ernie_config.json`."""

    hidden_size: _Size
    num_hidden_layers: _Size
    num_attention_heads: _Size
    vocab_size: _Size
    max_position_embeddings: _Size
    hidden_act: Literal["relu", "gelu"]
    type_vocab_size: int = 0
    sent_type_vocab_size: int = 0
    initializer_range: float = 0.02
    hidden_dropout_prob: _Dropout = 0.1
    attention_probs_dropout_prob: _Dropout = 0.1
    use_task_id: bool = False

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"hidden_size: expected a multiple of num_attention_heads ({self.num_attention_heads})")
        if self.types < 1:
            raise ValueError("lacks type_vocab_size (or sent_type_vocab_size)")
        if self.use_task_id:
            raise ValueError("use_task_id: that is of ERNIE 2.0; expected ERNIE 1.0")

    @property
    def types(self) -> int:
        """How many types of segments there are: under either name, as in the official code."""
        return self.sent_type_vocab_size or self.type_vocab_size

    def of_bert(self, pad: int) -> dict[str, Any]:
        """The same as arguments of transformers' BertConfig; ``pad``: the id of [PAD]."""
        return {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "intermediate_size": 4 * self.hidden_size,
            "hidden_act": self.hidden_act,
            "hidden_dropout_prob": self.hidden_dropout_prob,
            "attention_probs_dropout_prob": self.attention_probs_dropout_prob,
            "max_position_embeddings": self.max_position_embeddings,
            "type_vocab_size": self.types,
            "initializer_range": self.initializer_range,
            "layer_norm_eps": _EPSILON,
            "pad_token_id": pad,
        }


@dataclass(frozen=True)
class Name:
    """A parameter's name in Paddle and in transformers, and the shape of its file.

    ``weight``: of a dense layer, stored [in, out] by Paddle and [out, in] by PyTorch.
    """

    paddle: str
    torch: str
    shape: tuple[int, ...]
    weight: bool = False


def read_config(path: Path) -> Config:
    """Read an `ernie_config.json`; :class:`InputError` naming the key where it is not ERNIE 1.0's."""
    try:
        return read_json(path, Config)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError("no such file; expected ERNIE's ernie_config.json", path=path) from None


def read_vocabulary(path: Path, size: int) -> dict[str, int]:
    """Read a `vocab.txt`: token -> id, which is its line's number, counted from 0, or stands after a tab.

    Raises:
        InputError: naming the line, where it has more, or an id of ``size`` or above; a special token is missing.
    """
    found: dict[str, int] = {}
    lines = read_utf8(path).split("\n")
    for number, line in enumerate(lines[: len(lines) - (not lines[-1])]):
        token, *given = line.strip().split("\t")
        if len(given) > 1 or (given and not given[0].strip().isdecimal()):
            raise InputError("expected a token, or a token, a tab and its id", path=path, line=number + 1)
        found[token.strip()] = own = int(given[0]) if given else number
        if own >= size:
            raise InputError(f"expected ids below vocab_size, {size:,}, found {own:,}", path=path, line=number + 1)
    found.pop("", None)  # an empty line has a number and no token
    if missing := [token for token in _SPECIAL if token not in found]:
        raise InputError(f"lacks {', '.join(missing)}", path=path)
    return found


def encoder_names(config: Config, prefix: str) -> Iterator[Name]:
    """The parameters of an encoder whose names begin with ``prefix``."""
    size = config.hidden_size
    for paddle, torch, rows in (
        ("word_embedding", "word_embeddings", config.vocab_size),
        ("pos_embedding", "position_embeddings", config.max_position_embeddings),
        ("sent_embedding", "token_type_embeddings", config.types),
    ):
        yield Name(f"{prefix}{paddle}", f"embeddings.{torch}.weight", (rows, size))
    yield from _norm(f"{prefix}pre_encoder", "embeddings", size)
    for number in range(config.num_hidden_layers):
        paddle, torch = f"{prefix}encoder_layer_{number}", f"encoder.layer.{number}"
        for part in ("query", "key", "value"):
            yield from _dense(f"{paddle}_multi_head_att_{part}_fc", f"{torch}.attention.self.{part}", size, size)
        yield from _dense(f"{paddle}_multi_head_att_output_fc", f"{torch}.attention.output.dense", size, size)
        yield from _norm(f"{paddle}_post_att", f"{torch}.attention.output", size)
        yield from _dense(f"{paddle}_ffn_fc_0", f"{torch}.intermediate.dense", size, 4 * size)
        yield from _dense(f"{paddle}_ffn_fc_1", f"{torch}.output.dense", 4 * size, size)
        yield from _norm(f"{paddle}_post_ffn", f"{torch}.output", size)


def pooler_names(config: Config) -> Iterator[Name]:
    """The layer of tanh over the last layer's [CLS]."""
    yield from _dense("pooled_fc", "pooler.dense", config.hidden_size, config.hidden_size)


def output_names(config: Config) -> Iterator[Name]:
    """The cross-encoder's two outputs."""
    yield Name("_cls_out_w", "classifier.weight", (config.hidden_size, 2), weight=True)
    yield Name("_cls_out_b", "classifier.bias", (2,))


def _dense(paddle: str, torch: str, inner: int, outer: int) -> Iterator[Name]:
    yield Name(f"{paddle}.w_0", f"{torch}.weight", (inner, outer), weight=True)
    yield Name(f"{paddle}.b_0", f"{torch}.bias", (outer,))


def _norm(paddle: str, torch: str, size: int) -> Iterator[Name]:
    yield Name(f"{paddle}_layer_norm_scale", f"{torch}.LayerNorm.weight", (size,))
    yield Name(f"{paddle}_layer_norm_bias", f"{torch}.LayerNorm.bias", (size,))
