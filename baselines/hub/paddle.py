"""Read ERNIE 1.0 from the official Paddle parameters, configuration and vocabulary, and write it as a BERT model.

The parameters are a folder with one file for each parameter. The file has the parameter's name. Its numbers are little
endian: uint32 version (0), uint64 number of LoD levels (0 for a parameter), uint32 version (0), int32 size of a
protobuf TensorDesc (field 1: data type, field 2: dimensions), the TensorDesc, and the values.

ERNIE 1.0 and BERT have the same architecture: the sum of word, position and type embeddings, a layer norm, and
post-layer-norm layers. Only the configuration's activation (relu) and layer-norm epsilon (Paddle's default) differ.
transformers' ErnieModel would add task embeddings, which ERNIE 1.0 lacks. The official code defines the file names.
"""

import hashlib
import math
import re
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Meta, Struct
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizer

from baselines.retrieve.hub_models import quiet_libraries
from baselines.retrieve.official_input import PASSAGE_LENGTH, QUERY_LENGTH, official_tokenizer
from baselines.retrieve.official_input import Kind as InputKind
from builders.core.errors import InputError, log
from builders.core.files import read_utf8, sha256_of
from builders.core.progress import progress
from builders.core.typed import read_json

Floats = npt.NDArray[np.float32]
Kind = Literal["dual", "cross", "encoder"]
QUERY, PASSAGE = "query_", "titlepara_"  # prefixes of the names of the dual-encoder's two encoders
_POOLER = "pooler.dense.weight", "pooler.dense.bias"
_HEAD = "<IQIi"  # the fields of a file before the TensorDesc
_NUMBERS: dict[int, np.dtype[Any]] = {4: np.dtype("<f2"), 5: np.dtype("<f4")}
_Size = Annotated[int, Meta(ge=1)]
_Dropout = Annotated[float, Meta(ge=0, lt=1)]
# Keys with the same name in BERT's configuration.
_SAME = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings"),
    *("hidden_act", "initializer_range", "hidden_dropout_prob", "attention_probs_dropout_prob"),
)
_SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]")
# Files that are no part of a model: heads of ERNIE's pre-training, Adam's moments of each parameter, and counters of
# Paddle's optimizers.
_NO_PART = re.compile(
    rf"(?:{QUERY}|{PASSAGE})?(?:mask_lm|next_sent)_.+|.+_(?:moment[12]|beta[12]_pow_acc)_\d+|learning_rate_\d+"
    r"|@LR_DECAY_COUNTER@|loss_scaling_\d+|num_(?:good|bad)_steps_\d+"
)


class Config(Struct, frozen=True):
    """The values of an `ernie_config.json` that the conversion uses."""

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
            raise ValueError("use_task_id: this is a key of ERNIE 2.0; expected ERNIE 1.0")

    @property
    def types(self) -> int:
        """The number of segment types. sent_type_vocab_size overrides type_vocab_size, as in the official code."""
        return self.sent_type_vocab_size or self.type_vocab_size

    def of_bert(self, pad: int) -> dict[str, Any]:
        """Return the arguments of transformers' BertConfig. ``pad`` is the id of [PAD]."""
        return {name: getattr(self, name) for name in _SAME} | {
            "intermediate_size": 4 * self.hidden_size,
            "type_vocab_size": self.types,
            "layer_norm_eps": 1e-5,  # default of paddle's layer_norm
            "pad_token_id": pad,
        }


class Name(NamedTuple):
    """A parameter's name in Paddle and in transformers, and its shape in Paddle.

    Paddle stores the weights of a dense layer as [in, out], PyTorch as [out, in].
    """

    paddle: str
    bert: str
    shape: tuple[int, ...]

    @property
    def is_dense(self) -> bool:
        """True for the weights of a dense layer."""
        return len(self.shape) == 2 and not self.bert.startswith("embeddings.")


@dataclass(frozen=True)
class Official:
    """The parameters of a model under transformers' names, with its configuration and vocabulary.

    ``parts`` has the keys ``query`` and ``document`` for a dual-encoder, else ``model``. A starting checkpoint has a
    pooler if the folder has a pooler. ``sources`` has the SHA-256 of each input.
    """

    kind: Kind
    config: Config
    vocabulary: dict[str, int]
    parts: dict[str, dict[str, Floats]]
    sources: dict[str, str]


def read_official(folder: Path, config: Path, vocabulary: Path) -> Official:
    """Read a folder of parameters with its configuration and vocabulary.

    Raises:
        InputError: a file is missing, damaged or unknown, or its shape differs from the configuration.
    """
    if not folder.is_dir():
        raise InputError("expected a folder with a file for each parameter; unpack an archive (tar xf)", path=folder)
    files = {path.name: path for path in folder.iterdir() if not path.name.startswith(".")}
    ernie = read_config(config)
    tokens = read_vocabulary(vocabulary, ernie.vocab_size)
    left = {name for name in files if _NO_PART.fullmatch(name)}
    kind, parts = _parts(ernie, files.keys() - left)
    if kind == "dual":
        left |= files.keys() & {name.paddle for name in pooler_names(ernie)}  # a dual-encoder needs no pooler
    wanted = {name.paddle for names in parts.values() for name in names}
    model = kind if kind == "encoder" else f"{kind}-encoder"
    if missing := sorted(wanted - files.keys()):
        raise InputError(
            f"lacks {', '.join(missing[:3])} ({len(missing)} of the {model}'s {len(wanted)} parameters)", path=folder
        )
    if surplus := sorted(files.keys() - wanted - left):
        raise InputError(f"has {', '.join(surplus[:3])}, unknown in the {model}; remove these files", path=folder)
    if left:
        log.info("skipped, no part of the model: %s", ", ".join(sorted(left)))
    read: dict[str, dict[str, Floats]] = {part: {} for part in parts}
    for part, name in progress([(p, n) for p, names in parts.items() for n in names], unit="file", label="parameters"):
        path = files[name.paddle]
        values = read_parameter(path)
        if values.shape != name.shape:
            raise InputError(f"has the shape {[*values.shape]}; the configuration says {[*name.shape]}", path=path)
        read[part][name.bert] = values.T if name.is_dense else values
    listed = "".join(f"{sha256_of(files[name])}  {name}\n" for name in sorted(wanted))
    sources = {
        "parameters": hashlib.sha256(listed.encode()).hexdigest(),
        "configuration": sha256_of(config),
        "vocabulary": sha256_of(vocabulary),
    }
    return Official(kind, ernie, tokens, read, sources)


def _parts(config: Config, names: set[str]) -> tuple[Kind, dict[str, list[Name]]]:
    """Detect the kind of a model from the names of its files. Return (kind, parameters of each part)."""
    if any(name.startswith((QUERY, PASSAGE)) for name in names):
        return "dual", {"query": [*encoder_names(config, QUERY)], "document": [*encoder_names(config, PASSAGE)]}
    encoder, pooler, outputs = list(encoder_names(config, "")), list(pooler_names(config)), list(output_names(config))
    if names & {name.paddle for name in outputs}:
        return "cross", {"model": [*encoder, *pooler, *outputs]}
    return "encoder", {"model": [*encoder, *pooler] if names & {name.paddle for name in pooler} else encoder}


def read_config(path: Path) -> Config:
    """Read an `ernie_config.json`. Raises :class:`InputError` with the key if the model is not ERNIE 1.0."""
    return read_json(path, Config)


def read_vocabulary(path: Path, size: int) -> dict[str, int]:
    """Read a `vocab.txt` as {token: id}. A line has a token, or a token, a tab and an id (default: line number from 0).

    Raises:
        InputError: a line has another format or an id of ``size`` or above, or a special token is missing.
    """
    found: dict[str, int] = {}
    lines = read_utf8(path).split("\n")
    for number, line in enumerate(lines[: len(lines) - (not lines[-1])]):
        token, *given = line.strip().split("\t")
        if len(given) > 1 or (given and not re.fullmatch(r"\s*\d{1,9}\s*", given[0])):
            raise InputError("expected a token, or a token and its id, separated by a tab", path=path, line=number + 1)
        found[token.strip()] = own = int(given[0]) if given else number
        if own >= size:
            raise InputError(f"expected ids below vocab_size, {size:,}, found {own:,}", path=path, line=number + 1)
    found.pop("", None)  # an empty line has a number and no token
    if missing := [token for token in _SPECIAL if token not in found]:
        raise InputError(f"lacks {', '.join(missing)}", path=path)
    return found


def encoder_names(config: Config, prefix: str) -> Iterator[Name]:
    """Yield an encoder's parameters. All Paddle names begin with ``prefix``."""
    size = config.hidden_size
    for paddle, bert, rows in (
        ("word_embedding", "word_embeddings", config.vocab_size),
        ("pos_embedding", "position_embeddings", config.max_position_embeddings),
        ("sent_embedding", "token_type_embeddings", config.types),
    ):
        yield Name(f"{prefix}{paddle}", f"embeddings.{bert}.weight", (rows, size))
    yield from _norm(f"{prefix}pre_encoder", "embeddings", size)
    for number in range(config.num_hidden_layers):
        paddle, bert = f"{prefix}encoder_layer_{number}", f"encoder.layer.{number}"
        for part in ("query", "key", "value"):
            yield from _dense(f"{paddle}_multi_head_att_{part}_fc", f"{bert}.attention.self.{part}", size, size)
        yield from _dense(f"{paddle}_multi_head_att_output_fc", f"{bert}.attention.output.dense", size, size)
        yield from _norm(f"{paddle}_post_att", f"{bert}.attention.output", size)
        yield from _dense(f"{paddle}_ffn_fc_0", f"{bert}.intermediate.dense", size, 4 * size)
        yield from _dense(f"{paddle}_ffn_fc_1", f"{bert}.output.dense", 4 * size, size)
        yield from _norm(f"{paddle}_post_ffn", f"{bert}.output", size)


def pooler_names(config: Config) -> Iterator[Name]:
    """Yield the parameters of the pooler, a tanh layer over the last layer's [CLS]."""
    yield from _dense("pooled_fc", "pooler.dense", config.hidden_size, config.hidden_size)


def output_names(config: Config) -> Iterator[Name]:
    """Yield the parameters of the cross-encoder's two outputs."""
    yield Name("_cls_out_w", "classifier.weight", (config.hidden_size, 2))
    yield Name("_cls_out_b", "classifier.bias", (2,))


def _dense(paddle: str, bert: str, inner: int, outer: int) -> Iterator[Name]:
    yield Name(f"{paddle}.w_0", f"{bert}.weight", (inner, outer))
    yield Name(f"{paddle}.b_0", f"{bert}.bias", (outer,))


def _norm(paddle: str, bert: str, size: int) -> Iterator[Name]:
    yield Name(f"{paddle}_layer_norm_scale", f"{bert}.LayerNorm.weight", (size,))
    yield Name(f"{paddle}_layer_norm_bias", f"{bert}.LayerNorm.bias", (size,))


def read_parameter(path: Path) -> Floats:
    """Read one parameter of 16-bit or 32-bit floats as 32-bit floats.

    Raises:
        InputError: the file is no parameter, its length is wrong, or its values are not finite or not floats.
    """
    content, start = path.read_bytes(), struct.calcsize(_HEAD)
    *versions, size = struct.unpack(_HEAD, content[:start].ljust(start, b"\xff"))
    numbers = _varints(content[start : start + min(size, 1_000)])
    pairs = list(zip(numbers, numbers, strict=False))
    shape = [value for tag, value in pairs if tag == 0x10]
    if any(versions) or {tag for tag, _ in pairs} != {0x08, 0x10}:
        raise InputError("truncated, or not a parameter in Paddle's fluid format (one per file)", path=path)
    kind = dict(pairs)[0x08]
    if kind not in _NUMBERS:
        raise InputError(f"has values of Paddle's type {kind}; expected FP16 (4) or FP32 (5)", path=path)
    wanted, found = math.prod(shape) * _NUMBERS[kind].itemsize, len(content) - start - size
    if wanted != found:
        raise InputError(f"damaged: expected {wanted:,} bytes for the shape {shape}, found {found:,}", path=path)
    values = np.frombuffer(content, _NUMBERS[kind], offset=start + size).reshape(shape).astype(np.float32)
    if not np.isfinite(values).all():
        raise InputError("damaged: has values that are not finite", path=path)
    return values


def _varints(message: bytes) -> Iterator[int]:
    """Yield the numbers of a protobuf message that consists of numbers: tags and values in turn."""
    value = place = 0
    for byte in message:
        value |= (byte & 0x7F) << place
        place += 7
        if byte < 0x80:
            yield value
            value = place = 0


def write_model(folder: Path, official: Official) -> None:
    """Write the model into ``folder``."""
    quiet_libraries()
    write = {"dual": _write_dual, "cross": _write_cross, "encoder": _write_encoder}[official.kind]
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as parts:  # not in /tmp: the parts are as large as the model
        write(folder, official, Path(parts))


def _write_dual(folder: Path, official: Official, parts: Path) -> None:
    """Write a Router of two encoders. The [CLS] vectors of queries and passages are compared by dot product."""
    kinds: dict[str, tuple[InputKind, int]] = {
        "query": ("query", QUERY_LENGTH),
        "document": ("passage", PASSAGE_LENGTH),
    }
    towers: dict[str, list[Any]] = {}
    for part, (kind, length) in kinds.items():
        # BertModel needs a pooler, which does not affect the vector. Random weights would change the file in each run.
        size = official.config.hidden_size
        nothing = {_POOLER[0]: torch.zeros(size, size), _POOLER[1]: torch.zeros(size)}
        model: Any = BertModel(_config(official))
        model.load_state_dict(_tensors(official.parts[part]) | nothing)
        model.save_pretrained(parts / part)
        _bert_tokenizer(official).save_pretrained(parts / part)
        encoder = Transformer(str(parts / part))
        encoder.processor = _tokenizer(official, kind, length)
        towers[part] = [encoder, Pooling(encoder.get_embedding_dimension(), "cls")]
    router = Router.for_query_document(towers["query"], towers["document"])
    model = SentenceTransformer(modules=[router], similarity_fn_name="dot", device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)


def _write_cross(folder: Path, official: Official, parts: Path) -> None:
    """Write a cross-encoder with one output, the difference of the two official outputs.

    The sigmoid of the output is the probability of class 1, so ``predict`` and ``rank`` return the official scores.
    With two outputs, ``rank`` would refuse the model.
    """
    values = _tensors(official.parts["model"])
    state = {name if name.startswith("classifier.") else f"bert.{name}": tensor for name, tensor in values.items()}
    for name in ("classifier.weight", "classifier.bias"):
        state[name] = state[name][1:] - state[name][:1]
    model: Any = BertForSequenceClassification(_config(official, num_labels=1))
    model.load_state_dict(state)
    model.save_pretrained(parts)
    _bert_tokenizer(official).save_pretrained(parts)
    cross = CrossEncoder(str(parts), device="cpu")
    cross[0].processor = _tokenizer(official, "pair", PASSAGE_LENGTH)
    cross.save_pretrained(str(folder), create_model_card=False)


def _write_encoder(folder: Path, official: Official, parts: Path) -> None:
    """Write a BertModel with BERT's own tokenizer, as a starting checkpoint."""
    state = _tensors(official.parts["model"])
    model: Any = BertModel(_config(official), add_pooling_layer=_POOLER[0] in state)
    model.load_state_dict(state)
    model.save_pretrained(folder)
    _bert_tokenizer(official).save_pretrained(folder)


def _config(official: Official, **more: Any) -> BertConfig:
    return BertConfig(**official.config.of_bert(official.vocabulary["[PAD]"]), **more)


def _tensors(values: dict[str, Floats]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value.copy()) for name, value in values.items()}


def _bert_tokenizer(official: Official) -> Any:
    return BertTokenizer(official.vocabulary, model_max_length=min(512, official.config.max_position_embeddings))


def _tokenizer(official: Official, kind: InputKind, length: int) -> Any:
    """Return the official tokenizer. It truncates at ``length`` tokens, or fewer if the model has fewer positions."""
    return official_tokenizer(_bert_tokenizer(official), kind, min(length, official.config.max_position_embeddings))
