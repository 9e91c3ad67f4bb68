"""ERNIE 1.0 as the official code saved it: Paddle parameters, configuration and vocabulary, under BERT's names.

The parameters are a folder with a file for each, named as the parameter. A file, little endian: uint32 version (0);
uint64 number of LoD levels, each a uint64 of bytes and so many bytes; uint32 version (0); int32 size of a protobuf
TensorDesc (field 1: data type, field 2: the dimensions); the numbers.

ERNIE 1.0 and BERT are one architecture: embeddings of words, positions and types added, a layer norm, post-layer-norm
layers. Only the activation (relu) and the layer norms' epsilon (Paddle's default) are values of the configuration.
transformers' ErnieModel would add embeddings of tasks, which ERNIE 1.0 has not. Names: the official code.
"""

from __future__ import annotations

import fnmatch
import hashlib
import math
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from builders.core.errors import InputError, log
from builders.core.files import read_utf8, sha256_of
from builders.core.progress import progress
from builders.core.typed import read_json

Floats = npt.NDArray[np.float32]
Kind = Literal["dual", "cross", "encoder"]
QUERY, PASSAGE = "query_", "titlepara_"  # what the names of the dual-encoder's two encoders begin with
_NUMBERS: dict[int, np.dtype[Any]] = {4: np.dtype("<f2"), 5: np.dtype("<f4")}
_TYPES = {0: "BOOL", 1: "INT16", 2: "INT32", 3: "INT64", 4: "FP16", 5: "FP32", 6: "FP64", 20: "UINT8", 22: "BF16"}
_Size = Annotated[int, Meta(ge=1)]
_Dropout = Annotated[float, Meta(ge=0, lt=1)]
# Values that BERT's configuration has under the same names.
_SAME = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings"),
    *("hidden_act", "initializer_range", "hidden_dropout_prob", "attention_probs_dropout_prob"),
)
_SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]")
# The heads of ERNIE's pre-training, what Adam keeps beside each parameter, and the counters of Paddle's optimizers.
_NO_PART = re.compile(
    rf"(?:{QUERY}|{PASSAGE})?(?:mask_lm|next_sent)_.+|.+_(?:moment[12]|beta[12]_pow_acc)_\d+|learning_rate_\d+"
    r"|@LR_DECAY_COUNTER@|loss_scaling_\d+|num_(?:good|bad)_steps_\d+"
)


class Config(Struct, frozen=True):
    """The values of an `ernie_config.json` that are used."""

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
        """The number of segment types, under either name, as in the official code."""
        return self.sent_type_vocab_size or self.type_vocab_size

    def of_bert(self, pad: int) -> dict[str, Any]:
        """Return the arguments of transformers' BertConfig; ``pad``: the id of [PAD]."""
        return {name: getattr(self, name) for name in _SAME} | {
            "intermediate_size": 4 * self.hidden_size,
            "type_vocab_size": self.types,
            "layer_norm_eps": 1e-5,  # of paddle's layer_norm
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


@dataclass(frozen=True)
class Official:
    """A model's parts, each transformers' names with numbers of the files' shapes, and what they were read from.

    ``parts``: ``query`` and ``document`` of a dual-encoder; else ``model``, whose pooler is there where the folder has
    one. ``sources``: the SHA-256 of each input.
    """

    kind: Kind
    config: Config
    vocabulary: dict[str, int]
    parts: dict[str, dict[str, Floats]]
    sources: dict[str, str]


def read_official(folder: Path, config: Path, vocabulary: Path, leave_out: Sequence[str] = ()) -> Official:
    """Read a folder of parameters with its configuration and vocabulary.

    ``leave_out``: shell patterns of files that are no parameters.

    Raises:
        InputError: a file is missing, damaged, of another shape than the configuration says, or no part of the model.
    """
    files = parameter_files(folder)
    ernie = read_config(config)
    tokens = read_vocabulary(vocabulary, ernie.vocab_size)
    left = {n for n in files if _NO_PART.fullmatch(n) or any(fnmatch.fnmatchcase(n, each) for each in leave_out)}
    kind, parts = _parts(ernie, files.keys() - left)
    if kind == "dual":
        left |= files.keys() & {name.paddle for name in pooler_names(ernie)}  # the twin's: its vector is [CLS] itself
    wanted = {name.paddle for names in parts.values() for name in names}
    if missing := sorted(wanted - files.keys()):
        raise InputError(f"{_listed(missing)} missing, of {len(wanted)} parameters of a {kind}", path=folder)
    if surplus := sorted(files.keys() - wanted - left):
        raise InputError(f"{_listed(surplus)} no part of a {kind} (--leave-out passes over files)", path=folder)
    if left:
        log.info("left out, as no part of the model: %s", ", ".join(sorted(left)))
    digests: dict[str, str] = {}
    read: dict[str, dict[str, Floats]] = {part: {} for part in parts}
    every = [(part, name) for part, names in parts.items() for name in names]
    for part, name in progress(every, unit="file", label="parameters"):
        path = files[name.paddle]
        values, digests[name.paddle] = read_parameter(path)
        if values.shape != name.shape:
            problem = f"has the shape {list(values.shape)}; the configuration says {list(name.shape)}"
            raise InputError(problem, path=path)
        read[part][name.torch] = values.T if name.weight else values
    listed = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    sources = {
        "parameters": hashlib.sha256(listed.encode()).hexdigest(),
        "configuration": sha256_of(config),
        "vocabulary": sha256_of(vocabulary),
    }
    return Official(kind, ernie, tokens, read, sources)


def _parts(config: Config, names: Iterable[str]) -> tuple[Kind, dict[str, list[Name]]]:
    """Detect the model from the names in a folder: (its kind, the names of its parts' parameters)."""
    there = set(names)
    if any(name.startswith((QUERY, PASSAGE)) for name in there):
        towers = {"query": QUERY, "document": PASSAGE}
        return "dual", {part: list(encoder_names(config, prefix)) for part, prefix in towers.items()}
    encoder, pooler, outputs = list(encoder_names(config, "")), list(pooler_names(config)), list(output_names(config))
    if there & {name.paddle for name in outputs}:
        return "cross", {"model": [*encoder, *pooler, *outputs]}
    return "encoder", {"model": [*encoder, *pooler] if there & {name.paddle for name in pooler} else encoder}


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more + (" are" if len(names) > 1 else " is")


def read_config(path: Path) -> Config:
    """Read an `ernie_config.json`; :class:`InputError` naming the key where it is not ERNIE 1.0's."""
    if not path.exists():
        raise InputError("no such file; expected ERNIE's ernie_config.json", path=path)
    return read_json(path, Config)


def read_vocabulary(path: Path, size: int) -> dict[str, int]:
    """Read a `vocab.txt`: token -> id, which is its line's number, counted from 0, or stands after a tab.

    Raises:
        InputError: naming the line, where it has more, or an id of ``size`` or above; a special token is missing.
    """
    found: dict[str, int] = {}
    lines = read_utf8(path).split("\n")
    for number, line in enumerate(lines[: len(lines) - (not lines[-1])]):
        token, *given = line.strip().split("\t")
        if len(given) > 1 or (given and not re.fullmatch(r"\s*\d{1,9}\s*", given[0])):
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


def parameter_files(folder: Path) -> dict[str, Path]:
    """The files of a folder of parameters, by the parameters' names. Hidden files are none.

    Raises:
        InputError: it is no folder, or holds none, or other folders.
    """
    if not folder.is_dir():
        if folder.exists():
            raise InputError("expected a folder with a file a parameter; unpack an archive first (tar xf)", path=folder)
        raise InputError("no such folder", path=folder)
    found = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    if folders := [path.name for path in found if path.is_dir()]:
        raise InputError(f"expected files alone, a parameter each; is it the folder {folders[0]} in it?", path=folder)
    if not found:
        raise InputError("holds no file; expected a file a parameter", path=folder)
    return {path.name: path for path in found}


def read_parameter(path: Path) -> tuple[Floats, str]:
    """Read one parameter, of 16-bit or 32-bit floats: (its values in 32 bits, the SHA-256 of the file).

    Raises:
        InputError: the file is no parameter, is cut short or too long, or holds other numbers or ones that are not
            finite.
    """
    content = path.read_bytes()
    reader = _Reader(path, content)
    if reader.number("<I") != 0:
        raise reader.other()
    for _ in range(levels := reader.number("<Q")):
        if levels > len(content):
            raise reader.other()
        reader.take(reader.number("<Q"))
    if reader.number("<I") != 0:
        raise reader.other()
    kind, shape = _tensor(reader, reader.take(reader.number("<i")))
    if kind not in _NUMBERS:
        raise InputError(f"holds {_TYPES.get(kind, f'type {kind}')}; expected FP32 or FP16", path=path)
    size = math.prod(shape) * _NUMBERS[kind].itemsize
    if (left := len(content) - reader.at) != size:
        what = f"expected {size:,} bytes of numbers for the shape {list(shape)}, found {left:,}"
        raise InputError(f"cut short or damaged ({what})", path=path)
    values = np.frombuffer(reader.take(size), _NUMBERS[kind]).reshape(shape).astype(np.float32)
    if not np.isfinite(values).all():
        raise InputError("damaged: holds numbers that are not finite", path=path)
    return values, hashlib.sha256(content).hexdigest()


class _Reader:
    """Bytes of a file, taken from its beginning."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path, self.content, self.at = path, content, 0

    def take(self, size: int) -> bytes:
        if size < 0:
            raise self.other()
        if self.at + size > len(self.content):
            raise InputError(f"cut short or no parameter of Paddle's ({len(self.content):,} bytes)", path=self.path)
        self.at += size
        return self.content[self.at - size : self.at]

    def number(self, form: str) -> int:
        (found,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return int(found)

    def other(self) -> InputError:
        return InputError("no parameter of Paddle's fluid format (one file a parameter)", path=self.path)


def _tensor(reader: _Reader, message: bytes) -> tuple[int, tuple[int, ...]]:
    """(data type, dimensions) of a TensorDesc in protobuf."""
    inner, kind, shape = _Reader(reader.path, message), -1, list[int]()
    while inner.at < len(message):
        tag = _varint(inner)
        if tag == 0x08:
            kind = _varint(inner)
        elif tag == 0x10:
            shape.append(_varint(inner))
        elif tag == 0x12:  # the dimensions packed into one field
            end = _varint(inner) + inner.at
            while inner.at < end:
                shape.append(_varint(inner))
        else:
            raise reader.other()
    if kind < 0 or not shape:
        raise reader.other()
    return kind, tuple(shape)


def _varint(reader: _Reader) -> int:
    value = 0
    for place in range(10):
        (byte,) = reader.take(1)
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value
    raise reader.other()
