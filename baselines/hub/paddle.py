"""Read ERNIE 1.0 from the official Paddle parameters, configuration and vocabulary, and write it as a BERT model.

The parameters are a folder with one file for each parameter. The file has the parameter's name. All numbers are little
endian::

    uint32  version (0)
    uint64  number of LoD levels (0 for a parameter)
    uint32  version (0)
    int32   size of the TensorDesc in bytes
    bytes   TensorDesc, a protobuf message (field 1: data type, field 2: dimensions)
    bytes   the values

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
from builders.core.progress import show_progress
from builders.core.read_files import read_utf8, sha256_of
from builders.core.typed import read_json

Floats = npt.NDArray[np.float32]
Kind = Literal["dual", "cross", "encoder"]
# Prefixes of the names of the dual-encoder's two encoders.
QUERY_PREFIX = "query_"
PASSAGE_PREFIX = "titlepara_"
_POOLER_WEIGHT = "pooler.dense.weight"
_POOLER_BIAS = "pooler.dense.bias"
_QUOTED_NAMES = 3  # names of parameters that an error quotes
_FILE_HEADER = "<IQIi"  # the fields of a file before the TensorDesc
_LARGEST_DESCRIPTION = 1_000  # bytes; a TensorDesc of a parameter has about 10
# Data types of Paddle's VarType that parameters have.
_FLOAT_TYPES: dict[int, np.dtype[Any]] = {4: np.dtype("<f2"), 5: np.dtype("<f4")}
# Tags of the fields of a TensorDesc: (field number << 3) | wire type 0.
_DATA_TYPE_TAG = 0x08
_DIMENSION_TAG = 0x10
_Size = Annotated[int, Meta(ge=1)]
_Dropout = Annotated[float, Meta(ge=0, lt=1)]
# Keys with the same name in BERT's configuration.
_SHARED_KEYS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
    "max_position_embeddings",
    "hidden_act",
    "initializer_range",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
)
_SPECIAL_TOKENS = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]")
# Files that are no part of a model: heads of ERNIE's pre-training, Adam's moments of each parameter, and counters of
# Paddle's optimizers.
_IGNORED_FILES = re.compile(
    rf"(?:{QUERY_PREFIX}|{PASSAGE_PREFIX})?(?:mask_lm|next_sent)_.+|.+_(?:moment[12]|beta[12]_pow_acc)_\d+|learning_rate_\d+"
    r"|@LR_DECAY_COUNTER@|loss_scaling_\d+|num_(?:good|bad)_steps_\d+"
)


class ErnieConfig(Struct, frozen=True):
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

    def bert_arguments(self, pad_id: int) -> dict[str, Any]:
        """Return the arguments of transformers' BertConfig. ``pad_id`` is the id of [PAD]."""
        arguments = {key: getattr(self, key) for key in _SHARED_KEYS}
        arguments["intermediate_size"] = 4 * self.hidden_size
        arguments["type_vocab_size"] = self.types
        arguments["layer_norm_eps"] = 1e-5  # default of paddle's layer_norm
        arguments["pad_token_id"] = pad_id
        return arguments


class PaddleParameter(NamedTuple):
    """A parameter's name in Paddle and in transformers, and its shape in Paddle.

    Paddle stores the weights of a dense layer as [in, out], PyTorch as [out, in].
    """

    paddle_name: str
    bert_name: str
    shape: tuple[int, ...]

    @property
    def is_dense(self) -> bool:
        """True for the weights of a dense layer."""
        return len(self.shape) == 2 and not self.bert_name.startswith("embeddings.")


@dataclass(frozen=True)
class OfficialModel:
    """The parameters of a model under transformers' names, with its configuration and vocabulary.

    ``parts`` has the parameters by part: ``query`` and ``document`` for a dual-encoder, else ``model``. A starting
    checkpoint has a pooler if the folder has a pooler. ``vocabulary`` has the id of each token. ``sources`` has the
    SHA-256 of each input.
    """

    kind: Kind
    config: ErnieConfig
    vocabulary: dict[str, int]
    parts: dict[str, dict[str, Floats]]
    sources: dict[str, str]


def read_official(folder: Path, config_path: Path, vocabulary_path: Path) -> OfficialModel:
    """Read a folder of parameters with its configuration and vocabulary.

    Raises:
        InputError: a file is missing, damaged or unknown, or its shape differs from the configuration.
    """
    if not folder.is_dir():
        raise InputError("expected a folder with a file for each parameter; unpack an archive (tar xf)", path=folder)
    # Hidden files are of the system or of a download.
    files = {path.name: path for path in folder.iterdir() if not path.name.startswith(".")}
    config = read_config(config_path)
    vocabulary = read_vocabulary(vocabulary_path, config.vocab_size)

    # Compare the files with the model's parameters.
    ignored_names = {name for name in files if _IGNORED_FILES.fullmatch(name)}
    model_kind, parts = _detect_parts(config, files.keys() - ignored_names)
    if model_kind == "dual":  # a dual-encoder needs no pooler
        ignored_names |= files.keys() & {parameter.paddle_name for parameter in pooler_parameters(config)}
    expected_names = set()
    for parameters in parts.values():
        expected_names |= {parameter.paddle_name for parameter in parameters}
    model_name = model_kind if model_kind == "encoder" else f"{model_kind}-encoder"
    missing_names = sorted(expected_names - files.keys())
    if missing_names:
        counts = f"{len(missing_names)} of the {model_name}'s {len(expected_names)} parameters"
        raise InputError(f"lacks {_quote_names(missing_names)} ({counts})", path=folder)
    surplus_names = sorted(files.keys() - expected_names - ignored_names)
    if surplus_names:
        problem = f"has {_quote_names(surplus_names)}, unknown in the {model_name}; remove these files"
        raise InputError(problem, path=folder)
    if ignored_names:
        log.info("skipped, no part of the model: %s", ", ".join(sorted(ignored_names)))

    values_by_part = _read_values(files, parts)
    # One checksum stands for all parameters: that of a list in the format of sha256sum.
    checksum_lines = [f"{sha256_of(files[name])}  {name}\n" for name in sorted(expected_names)]
    sources = {
        "parameters": hashlib.sha256("".join(checksum_lines).encode()).hexdigest(),
        "configuration": sha256_of(config_path),
        "vocabulary": sha256_of(vocabulary_path),
    }
    return OfficialModel(model_kind, config, vocabulary, values_by_part, sources)


def _quote_names(names: list[str]) -> str:
    """Return the first names of a list, for an error."""
    return ", ".join(names[:_QUOTED_NAMES])


def _read_values(files: dict[str, Path], parts: dict[str, list[PaddleParameter]]) -> dict[str, dict[str, Floats]]:
    """Read the parameters of each part, under transformers' names. ``files`` are the paths by Paddle's names.

    Raises :class:`InputError` for a parameter of another shape.
    """
    values_by_part: dict[str, dict[str, Floats]] = {part: {} for part in parts}
    # One list of all parameters, so that the bar counts all files.
    parameters_in_order = []
    for part, parameters in parts.items():
        parameters_in_order += [(part, parameter) for parameter in parameters]
    for part, parameter in show_progress(parameters_in_order, unit="file", label="parameters"):
        parameter_path = files[parameter.paddle_name]
        values = read_parameter(parameter_path)
        if values.shape != parameter.shape:
            raise InputError(
                f"has the shape {list(values.shape)}; the configuration says {list(parameter.shape)}",
                path=parameter_path,
            )
        # Paddle and PyTorch store the weights of a dense layer the other way round.
        values_by_part[part][parameter.bert_name] = values.T if parameter.is_dense else values
    return values_by_part


def _detect_parts(config: ErnieConfig, file_names: set[str]) -> tuple[Kind, dict[str, list[PaddleParameter]]]:
    """Detect the kind of a model from the names of its files. Return (kind, expected parameters by part).

    The parts are ``query`` and ``document`` for a dual-encoder, else ``model``.
    """
    if any(name.startswith((QUERY_PREFIX, PASSAGE_PREFIX)) for name in file_names):
        query_encoder = list(encoder_parameters(config, QUERY_PREFIX))
        passage_encoder = list(encoder_parameters(config, PASSAGE_PREFIX))
        return "dual", {"query": query_encoder, "document": passage_encoder}
    # A cross-encoder has outputs. An encoder, the starting checkpoint, may have a pooler.
    encoder = list(encoder_parameters(config, ""))
    pooler = list(pooler_parameters(config))
    outputs = list(output_parameters(config))
    if any(parameter.paddle_name in file_names for parameter in outputs):
        return "cross", {"model": encoder + pooler + outputs}
    if any(parameter.paddle_name in file_names for parameter in pooler):
        return "encoder", {"model": encoder + pooler}
    return "encoder", {"model": encoder}


def read_config(config_path: Path) -> ErnieConfig:
    """Read an `ernie_config.json`. Raises :class:`InputError` with the key if the model is not ERNIE 1.0."""
    return read_json(config_path, ErnieConfig)


def read_vocabulary(vocabulary_path: Path, vocabulary_size: int) -> dict[str, int]:
    """Read a `vocab.txt` as {token: id}. A line has a token, or a token, a tab and an id (default: line number from 0).

    Raises:
        InputError: a line has another format or an id of ``vocabulary_size`` or above, or a special token is missing.
    """
    vocabulary: dict[str, int] = {}
    lines = read_utf8(vocabulary_path).split("\n")
    if not lines[-1]:
        del lines[-1]  # the text behind the last line break
    for index, line in enumerate(lines):
        # Without an id, the token's id is the number of its line.
        token, *further_fields = line.strip().split("\t")
        token_id = index
        if further_fields:
            is_id = len(further_fields) == 1 and re.fullmatch(r"\s*\d{1,9}\s*", further_fields[0])
            if not is_id:
                problem = "expected a token, or a token and its id, separated by a tab"
                raise InputError(problem, path=vocabulary_path, line=index + 1)
            token_id = int(further_fields[0])
        if token_id >= vocabulary_size:
            raise InputError(
                f"expected ids below vocab_size, {vocabulary_size:,}, found {token_id:,}",
                path=vocabulary_path,
                line=index + 1,
            )
        vocabulary[token.strip()] = token_id
    vocabulary.pop("", None)  # an empty line has a number and no token
    missing_tokens = [token for token in _SPECIAL_TOKENS if token not in vocabulary]
    if missing_tokens:
        raise InputError(f"lacks {', '.join(missing_tokens)}", path=vocabulary_path)
    return vocabulary


def encoder_parameters(config: ErnieConfig, prefix: str) -> Iterator[PaddleParameter]:
    """Yield an encoder's parameters. All Paddle names begin with ``prefix``."""
    size = config.hidden_size
    # Embeddings: Paddle's name, BERT's name, and the number of rows.
    embeddings = [
        ("word_embedding", "word_embeddings", config.vocab_size),
        ("pos_embedding", "position_embeddings", config.max_position_embeddings),
        ("sent_embedding", "token_type_embeddings", config.types),
    ]
    for paddle_name, bert_name, row_count in embeddings:
        yield PaddleParameter(f"{prefix}{paddle_name}", f"embeddings.{bert_name}.weight", (row_count, size))
    yield from _layer_norm(f"{prefix}pre_encoder", "embeddings", size)
    for number in range(config.num_hidden_layers):
        paddle_layer = f"{prefix}encoder_layer_{number}"
        bert_layer = f"encoder.layer.{number}"
        # Attention, then the feed-forward part. A layer norm follows each.
        for part in ("query", "key", "value"):
            paddle_name = f"{paddle_layer}_multi_head_att_{part}_fc"
            yield from _dense_layer(paddle_name, f"{bert_layer}.attention.self.{part}", size, size)
        paddle_name = f"{paddle_layer}_multi_head_att_output_fc"
        yield from _dense_layer(paddle_name, f"{bert_layer}.attention.output.dense", size, size)
        yield from _layer_norm(f"{paddle_layer}_post_att", f"{bert_layer}.attention.output", size)
        yield from _dense_layer(f"{paddle_layer}_ffn_fc_0", f"{bert_layer}.intermediate.dense", size, 4 * size)
        yield from _dense_layer(f"{paddle_layer}_ffn_fc_1", f"{bert_layer}.output.dense", 4 * size, size)
        yield from _layer_norm(f"{paddle_layer}_post_ffn", f"{bert_layer}.output", size)


def pooler_parameters(config: ErnieConfig) -> Iterator[PaddleParameter]:
    """Yield the parameters of the pooler, a tanh layer over the last layer's [CLS]."""
    yield from _dense_layer("pooled_fc", "pooler.dense", config.hidden_size, config.hidden_size)


def output_parameters(config: ErnieConfig) -> Iterator[PaddleParameter]:
    """Yield the parameters of the cross-encoder's two outputs."""
    yield PaddleParameter("_cls_out_w", "classifier.weight", (config.hidden_size, 2))
    yield PaddleParameter("_cls_out_b", "classifier.bias", (2,))


def _dense_layer(paddle_name: str, bert_name: str, input_size: int, output_size: int) -> Iterator[PaddleParameter]:
    yield PaddleParameter(f"{paddle_name}.w_0", f"{bert_name}.weight", (input_size, output_size))
    yield PaddleParameter(f"{paddle_name}.b_0", f"{bert_name}.bias", (output_size,))


def _layer_norm(paddle_name: str, bert_name: str, size: int) -> Iterator[PaddleParameter]:
    yield PaddleParameter(f"{paddle_name}_layer_norm_scale", f"{bert_name}.LayerNorm.weight", (size,))
    yield PaddleParameter(f"{paddle_name}_layer_norm_bias", f"{bert_name}.LayerNorm.bias", (size,))


def read_parameter(parameter_path: Path) -> Floats:
    """Read one parameter of 16-bit or 32-bit floats as 32-bit floats.

    Raises:
        InputError: the file is no parameter, its length is wrong, or its values are not finite or not floats.
    """
    content = parameter_path.read_bytes()
    header_size = struct.calcsize(_FILE_HEADER)
    # A header that is too short is filled up with 1 bits. A version, the LoD levels or the size is then wrong, so the
    # file is refused below.
    header = content[:header_size].ljust(header_size, b"\xff")
    first_version, lod_levels, second_version, description_size = struct.unpack(_FILE_HEADER, header)

    # The description of the values: their type and shape. A damaged size may be huge or negative.
    description = content[header_size : header_size + min(description_size, _LARGEST_DESCRIPTION)]
    numbers = list(_read_varints(description))
    fields = list(zip(numbers[::2], numbers[1::2], strict=False))  # (tag, value)
    tags = {tag for tag, _ in fields}
    if first_version or lod_levels or second_version or tags != {_DATA_TYPE_TAG, _DIMENSION_TAG}:
        raise InputError("truncated, or not a parameter in Paddle's fluid format (one per file)", path=parameter_path)
    shape = [value for tag, value in fields if tag == _DIMENSION_TAG]
    data_type = dict(fields)[_DATA_TYPE_TAG]
    if data_type not in _FLOAT_TYPES:
        raise InputError(f"has values of Paddle's type {data_type}; expected FP16 (4) or FP32 (5)", path=parameter_path)

    # The values.
    value_type = _FLOAT_TYPES[data_type]
    values_start = header_size + description_size
    expected_bytes = math.prod(shape) * value_type.itemsize
    actual_bytes = len(content) - values_start
    if expected_bytes != actual_bytes:
        raise InputError(
            f"damaged: expected {expected_bytes:,} bytes for the shape {shape}, found {actual_bytes:,}",
            path=parameter_path,
        )
    values = np.frombuffer(content, value_type, offset=values_start).reshape(shape).astype(np.float32)
    if not np.isfinite(values).all():
        raise InputError("damaged: has values that are not finite", path=parameter_path)
    return values


def _read_varints(message: bytes) -> Iterator[int]:
    """Yield the numbers of a protobuf message that consists of numbers: tags and values in turn.

    A number is stored seven bits at a time, the lowest bits first. The highest bit of a byte says that further bits
    follow: 300 = 0b10_0101100 is stored as 0b1_0101100, 0b0_0000010.
    """
    value = 0
    shift = 0
    for byte in message:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = 0
            shift = 0


def write_model(model_folder: Path, official: OfficialModel) -> None:
    """Write the model into ``model_folder``, as sentence-transformers saves a model of its kind."""
    quiet_libraries()
    model_folder.mkdir(exist_ok=True)
    # Not in /tmp, because the parts are as large as the model.
    with tempfile.TemporaryDirectory(dir=model_folder.parent) as parts_folder:
        if official.kind == "dual":
            _write_dual_encoder(model_folder, official, Path(parts_folder))
        elif official.kind == "cross":
            _write_cross_encoder(model_folder, official, Path(parts_folder))
        else:
            _write_encoder(model_folder, official)


def _write_dual_encoder(model_folder: Path, official: OfficialModel, parts_folder: Path) -> None:
    """Write a Router of two encoders. The [CLS] vectors of queries and passages are compared by dot product.

    ``parts_folder`` is for the two encoders, which are removed afterwards.
    """
    inputs: dict[str, tuple[InputKind, int]] = {
        "query": ("query", QUERY_LENGTH),
        "document": ("passage", PASSAGE_LENGTH),
    }
    size = official.config.hidden_size
    # BertModel needs a pooler, which does not affect the vector. Random weights would change the file in each run.
    zero_pooler = {_POOLER_WEIGHT: torch.zeros(size, size), _POOLER_BIAS: torch.zeros(size)}
    towers: dict[str, list[Any]] = {}
    for part, (input_kind, length) in inputs.items():
        model: Any = BertModel(_bert_config(official))
        model.load_state_dict(_as_tensors(official.parts[part]) | zero_pooler)
        model.save_pretrained(parts_folder / part)
        _bert_tokenizer(official).save_pretrained(parts_folder / part)
        # The library opens an encoder from a folder only.
        encoder = Transformer(str(parts_folder / part))
        encoder.processor = _input_tokenizer(official, input_kind, length)
        towers[part] = [encoder, Pooling(encoder.get_embedding_dimension(), "cls")]
    router = Router.for_query_document(towers["query"], towers["document"])
    model = SentenceTransformer(modules=[router], similarity_fn_name="dot", device="cpu")
    model.save_pretrained(str(model_folder), create_model_card=False)


def _write_cross_encoder(model_folder: Path, official: OfficialModel, parts_folder: Path) -> None:
    """Write a cross-encoder with one output, the difference of the two official outputs.

    The sigmoid of the output is the probability of class 1, so ``predict`` and ``rank`` return the official scores.
    With two outputs, ``rank`` would refuse the model. ``parts_folder`` is for a copy, which is removed afterwards.
    """
    # The classifier's second row minus its first row. Other parameters are BERT's.
    state = {}
    for name, tensor in _as_tensors(official.parts["model"]).items():
        if name.startswith("classifier."):
            state[name] = tensor[1:] - tensor[:1]
        else:
            state[f"bert.{name}"] = tensor
    model: Any = BertForSequenceClassification(_bert_config(official, num_labels=1))
    model.load_state_dict(state)
    model.save_pretrained(parts_folder)
    _bert_tokenizer(official).save_pretrained(parts_folder)
    cross = CrossEncoder(str(parts_folder), device="cpu")
    cross[0].processor = _input_tokenizer(official, "pair", PASSAGE_LENGTH)
    cross.save_pretrained(str(model_folder), create_model_card=False)


def _write_encoder(model_folder: Path, official: OfficialModel) -> None:
    """Write a BertModel with BERT's own tokenizer, as a starting checkpoint."""
    state = _as_tensors(official.parts["model"])
    model: Any = BertModel(_bert_config(official), add_pooling_layer=_POOLER_WEIGHT in state)
    model.load_state_dict(state)
    model.save_pretrained(model_folder)
    _bert_tokenizer(official).save_pretrained(model_folder)


def _bert_config(official: OfficialModel, **options: Any) -> BertConfig:
    arguments = official.config.bert_arguments(official.vocabulary["[PAD]"])
    return BertConfig(**arguments, **options)


def _as_tensors(values: dict[str, Floats]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value.copy()) for name, value in values.items()}


def _bert_tokenizer(official: OfficialModel) -> Any:
    return BertTokenizer(official.vocabulary, model_max_length=min(512, official.config.max_position_embeddings))


def _input_tokenizer(official: OfficialModel, input_kind: InputKind, max_length: int) -> Any:
    """Return the official tokenizer. It truncates at ``max_length`` tokens, or at the model's last position."""
    longest = min(max_length, official.config.max_position_embeddings)
    return official_tokenizer(_bert_tokenizer(official), input_kind, longest)
