"""Open models from a folder or the hub. Check models, apply settings, and compute fingerprints.

Every opened model passes these checks: the files are readable and match recorded hashes, no weight is missing, the
tokenizer reads Chinese and belongs to the weights, and the model can read a text. Python code of a model runs only with
``--trust-remote-code``. The libraries unpickle only tensors.
"""

import contextlib
import hashlib
import json
import math
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Normalize, Router, Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding
from tokenizers import processors
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from baselines.core.checkpoint import SETTINGS, left_out
from baselines.core.settings import ModelSettings
from baselines.retrieve.devices import DTYPES, move_model
from baselines.retrieve.hub_models import commit_of
from baselines.retrieve.library_errors import convert_library_errors
from baselines.retrieve.model_files import shown_name
from baselines.retrieve.model_kinds import declared_class, expect_complete_copy
from baselines.retrieve.model_prompts import prompt_of, set_prompts
from baselines.retrieve.reading_checks import SENTENCE, check_reading, check_room_for_texts
from builders.core.errors import InputError
from builders.core.typed import convert_to

# Values of a model's config that change no output: versions, the type of the saved weights, and names.
_NEUTRAL_CONFIG = {"transformers_version", "dtype", "torch_dtype", "architectures"}
_LOADING = threading.RLock()
_SHOWN_WEIGHTS = 3  # names of missing weights in an error
_FEWEST_TOKENS = 2  # different tokens of a Chinese sentence
# Lengths of a transformer beside its max_seq_length.
_TOWER_LENGTHS = ("query_length", "document_length")
_SHORT_TEXT = "的"


@contextlib.contextmanager
def exclusive_loading() -> Iterator[None]:
    """Let one thread load a model at a time, without the progress bar of transformers.

    transformers replaces functions of its classes and of PyTorch while it loads a model. If two threads did so by
    turns, the replacements would stay. The progress bar and the seed of PyTorch belong to the whole process, too.
    """
    with _LOADING:
        had_progress_bar = is_progress_bar_enabled()  # type: ignore[no-untyped-call]
        disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            if had_progress_bar:
                enable_progress_bar()  # type: ignore[no-untyped-call]


def expect_weights(problem: str, model: torch.nn.Module, may_lack: Callable[[PreTrainedModel, str], bool]) -> None:
    """Raise :class:`InputError` if the files of a loaded model on the CPU lack weights.

    The libraries would only log a missing weight, and use random numbers.

    Args:
        problem: the beginning of the error message.
        model: a model of transformers, or of sentence-transformers with models of transformers inside.
        may_lack: a function of a model and the name of a missing weight. Returns True if the weight is not needed.
    """
    missing_names: set[str] = set()
    for loaded_model in _outermost_models(model):
        for weight_name in _missing_weights(loaded_model):
            if not may_lack(loaded_model, weight_name):
                missing_names.add(weight_name)
    if missing_names:
        name_list = ", ".join(sorted(missing_names)[:_SHOWN_WEIGHTS])
        if len(missing_names) > _SHOWN_WEIGHTS:
            name_list += ", ..."
        raise InputError(f"{problem} (its files lack {len(missing_names)} of its weights: {name_list})")


def _outermost_models(module: torch.nn.Module) -> Iterator[PreTrainedModel]:
    """Yield the models of transformers in a module, but not the models inside these models."""
    if isinstance(module, PreTrainedModel):
        yield module
        return
    for child in module.children():
        yield from _outermost_models(child)


def _missing_weights(model: PreTrainedModel) -> list[str]:
    """Return the names of the weights that ``from_pretrained`` did not read from the model's files.

    transformers marks every weight that was read, and initialises the others. The mark is lost when a weight moves to
    another device.
    """
    ignored_patterns = model._keys_to_ignore_on_load_missing or ()
    is_quantized = getattr(model, "is_quantized", False)
    missing_names = []
    for weight_name, weight in model.state_dict(keep_vars=True).items():
        # A quantiser may replace weights after they were read. The new weights have no marks, and are not plain.
        is_plain = type(weight) is torch.nn.Parameter and weight.dtype in DTYPES.values()
        is_loaded = getattr(weight, "_is_hf_initialized", False) or (is_quantized and not is_plain)
        if is_loaded:
            continue
        is_ignored = any(re.search(pattern, weight_name) for pattern in ignored_patterns)
        if not is_ignored:
            missing_names.append(weight_name)
    return missing_names


def unused_pooler(model: PreTrainedModel, weight_name: str) -> bool:
    """True for a weight of the pooler of a model without a head. Dual-encoders do not use this pooler."""
    # A model with a head has the encoder as an attribute.
    is_encoder = not hasattr(model, model.base_model_prefix)
    return is_encoder and _is_of_pooler(weight_name)


def _is_of_pooler(weight_name: str) -> bool:
    return "pooler" in weight_name.split(".")


def new_head(model: PreTrainedModel, weight_name: str) -> bool:
    """True for a weight of an :func:`unused_pooler`, or of a new head that the starting checkpoint lacks."""
    if unused_pooler(model, weight_name):
        return True
    has_head = hasattr(model, model.base_model_prefix)
    # A checkpoint that names the model's class was saved with the head.
    was_saved_with_head = type(model).__name__ in class_names(model.config)
    # The head of a cross-encoder reads the pooler, which is therefore part of the head.
    is_of_encoder = weight_name.startswith(f"{model.base_model_prefix}.") and not _is_of_pooler(weight_name)
    return has_head and not was_saved_with_head and not is_of_encoder


def class_names(model_config: Any) -> list[str]:
    """Return the class names in a model's config. Raises :class:`InputError` for a damaged config."""
    return convert_to(
        model_config.architectures or [], list[str], f"{model_config.name_or_path}: architectures in config.json"
    )


def check_tokenizers(model: Any, model_name: str) -> None:
    """Call :func:`check_tokenizer` for every tokenizer of a sentence-transformers model."""
    if getattr(model, "tokenizer", None) is None:
        raise InputError("has no tokenizer; expected its files (tokenizer.json, vocab.txt ...)", path=model_name)
    for module in model.modules():
        if isinstance(module, Transformer):
            check_tokenizer(module.tokenizer, module.auto_model.get_input_embeddings().weight, model_name)
        elif isinstance(module, StaticEmbedding):  # this tokenizer is an object of the Rust library
            tokenizer = PreTrainedTokenizerFast(tokenizer_object=module.tokenizer)  # type: ignore[no-untyped-call]
            check_tokenizer(tokenizer, module.embedding.weight, model_name)
        elif isinstance(module, SparseStaticEmbedding):
            check_tokenizer(module.tokenizer, module.weight, model_name)


def check_tokenizer(tokenizer: Any, token_embeddings: Any, model_name: str) -> None:
    """Raise :class:`InputError` if a tokenizer belongs to another model or is empty.

    transformers returns an empty tokenizer for a folder without the tokenizer's files. ``token_embeddings`` has one row
    per token. Added tokens may lack a row, because only texts that contain such a token need the row.
    """
    added_tokens = tokenizer.get_added_vocab()
    token_ids = [token_id for token, token_id in tokenizer.get_vocab().items() if token not in added_tokens]
    token_ids.extend(tokenizer(SENTENCE)["input_ids"])
    if tokenizer.pad_token_id is not None:
        token_ids.append(tokenizer.pad_token_id)
    largest_id = max(token_ids, default=-1)
    if largest_id >= len(token_embeddings):
        raise InputError(
            f"its tokenizer has token ids up to {largest_id}, but its weights have {len(token_embeddings)} tokens; "
            "expected the tokenizer of this model",
            path=model_name,
        )
    # All unknown words become one token, but a tokenizer that reads Chinese returns several different tokens. The
    # characters that mark the start of a word do not count.
    different_tokens = {token.strip("▁Ġ ") for token in tokenizer.tokenize(SENTENCE)} - {""}
    if len(different_tokens) < _FEWEST_TOKENS:
        raise InputError(
            "its tokenizer returns only special or unknown tokens of a Chinese sentence; are its files "
            "(tokenizer.json, vocab.txt ...) missing?",
            path=model_name,
        )


def check_length(length_source: str, length: int, model: Any, tokenizer: Any, *, texts: int = 1) -> None:
    """Raise :class:`InputError` if a length is too short for a text, or exceeds the number of the model's positions.

    Args:
        length_source: source of the length, for the error.
        length: largest number of tokens of an input, special tokens included.
        model, tokenizer: the model and its tokenizer, which determine the numbers of positions and special tokens.
        texts: number of texts in an input: 1, or 2 for a cross-encoder (default: 1).
    """
    special_tokens = tokenizer.num_special_tokens_to_add(texts == 2)
    fewest_tokens = special_tokens + texts  # a token of each text
    if length < fewest_tokens:
        raise InputError(
            f"{length_source}: expected at least {fewest_tokens} tokens, because {special_tokens} are special tokens"
        )
    position_count = count_positions(model)
    if position_count is not None and length > position_count:
        raise InputError(
            f"{length_source}: expected at most {position_count} tokens, the number of the model's positions"
        )


def count_positions(model: torch.nn.Module) -> int | None:
    """Return the largest number of tokens that a model can read, or None if no table of positions limits the number."""
    position_counts = []
    for module_name, module in model.named_modules():
        is_table = module_name.rpartition(".")[2] == "position_embeddings" and isinstance(module, torch.nn.Embedding)
        if not is_table:
            continue
        position_count = module.num_embeddings
        if module.padding_idx is not None:
            # RoBERTa's first position is padding_idx + 1, so the rows before this position are not used.
            position_count -= module.padding_idx + 1
        position_counts.append(position_count)
    return min(position_counts, default=None)


def open_encoder(settings: ModelSettings, device: str = "cpu", dtype: str = "fp32") -> SentenceTransformer:
    """Open a dual-encoder and apply ``settings``.

    Args:
        settings: the model and its settings.
        device: name of the device (default: cpu).
        dtype: precision from :func:`.devices.dtype_of` (default: fp32).

    Raises:
        InputError: the model cannot be opened, or a setting does not fit the model.
    """
    model = open_as(SentenceTransformer, settings)
    if settings.pooling is not None:
        _set_pooling(model, settings)
    if settings.last_token is not None:
        _end_texts(model, settings)
    _expect_dimensions(model, settings.name)
    if settings.truncate_dim is not None:
        dimensions = model.get_embedding_dimension()
        if settings.truncate_dim > dimensions:
            raise InputError(
                f"has {dimensions} dimensions; expected --truncate-dim of at most {dimensions}", path=settings.name
            )
        model.truncate_dim = settings.truncate_dim
    if settings.normalize is False:
        _remove_normalization(model, settings)
    return move_model(finish_encoder(model, settings), device, dtype)


def _set_pooling(model: SentenceTransformer, settings: ModelSettings) -> None:
    """Set the pooling of all towers."""
    pooling_modules = [module for module in model.modules() if isinstance(module, Pooling)]
    if not pooling_modules:
        raise InputError("has no pooling; expected a model of token embeddings", path=settings.name)
    for module in pooling_modules:
        module.pooling_mode = settings.pooling


def _remove_normalization(model: SentenceTransformer, settings: ModelSettings) -> None:
    """Remove the modules that scale embeddings to unit length."""
    if settings.similarity == "cosine":
        raise InputError(
            "cosine needs embeddings of unit length; expected --similarity dot with --no-normalize",
            path=settings.name,
        )
    # From the last module on, because a deletion renumbers the following modules.
    for number in reversed(range(len(model))):
        if isinstance(model[number], Normalize):
            del model[number]


def finish_encoder(model: Any, settings: ModelSettings) -> Any:
    """Apply the similarity and the length of ``settings`` to an encoder. Check that the encoder reads texts."""
    # With "cosine", TextEncoder scales embeddings to unit length. Their inner product is then the cosine. So "cosine"
    # fits normalize=True even if the similarity of ``settings`` is dot.
    if settings.normalize:
        model.similarity_fn_name = "cosine"
    elif settings.normalize is False or settings.similarity is not None:
        model.similarity_fn_name = settings.similarity or "dot"
    if model.similarity_fn_name not in ("cosine", "dot"):
        raise InputError(f"has the similarity {model.similarity_fn_name!r}; expected cosine or dot", path=settings.name)
    limit_length(model, settings)
    check_room_for_texts(model, settings.name)
    check_reading(model, settings)
    return model


def open_cross(settings: ModelSettings, device: str = "cpu", dtype: str = "fp32") -> CrossEncoder:
    """Open a cross-encoder with one output, or with two outputs (no, yes). Raises :class:`InputError`.

    ``settings.max_length`` is the largest number of tokens of query and passage together. ``settings.query_prompt`` is
    put before every query.
    """
    max_length = settings.max_length
    model = open_as(CrossEncoder, settings)
    if model.num_labels not in (1, 2):
        raise InputError(f"returns {model.num_labels} scores per pair; expected one or two", path=settings.name)

    # Set the length, at most to the number of the model's positions.
    position_count = count_positions(model)
    if max_length is not None:
        check_length(f"--max-length {max_length}", max_length, model, model.tokenizer, texts=2)
        model.max_seq_length = max_length
    elif position_count is not None and (model.max_seq_length or position_count) > position_count:
        model.max_seq_length = position_count

    if settings.query_prompt is not None:
        model.prompts = {**model.prompts, "asked": settings.query_prompt}
        model.default_prompt_name = "asked"
    # LanguageModel checks language models itself, because it first changes their chat template.
    if not any(isinstance(module, LogitScore) for module in model):
        check_room_for_texts(model, settings.name)
        check_reading(model, settings)
    return move_model(model, device, dtype)


def open_as(model_class: Any, settings: ModelSettings) -> Any:
    """Open a model as a sentence-transformers class, on the CPU in fp32. Raises :class:`InputError`."""
    commit = commit_of(settings.name, settings.revision) or None
    # The library would convert a checkpoint of another class, for example by adding a random classifier.
    class_name = model_class.__name__
    saved_class = declared_class(settings) or class_name
    if saved_class != class_name:
        raise InputError(f"is a {saved_class}; expected a {class_name}", path=settings.name)
    expect_complete_copy(settings)
    problem = f"{settings.name}: cannot be opened as a {class_name}"
    with convert_library_errors(problem, settings.name), exclusive_loading(), torch.random.fork_rng(devices=[]):
        # Missing weights get random numbers, which would change the fingerprint.
        torch.manual_seed(0)
        model = model_class(
            settings.name,
            device="cpu",
            revision=commit,
            model_kwargs={"dtype": torch.float32},
            trust_remote_code=settings.trust_remote_code,
        )
        # A cross-encoder needs all weights, because its classifier reads the pooler.
        may_lack = _may_lack_nothing if model_class is CrossEncoder else unused_pooler
        expect_weights(problem, model, may_lack)
        check_tokenizers(model, settings.name)
    if model_class is not CrossEncoder:
        set_prompts(model, settings)
    return model


def _may_lack_nothing(model: PreTrainedModel, weight_name: str) -> bool:
    return False


def expect_no(settings: ModelSettings, model_kind: str, *setting_names: str) -> None:
    """Raise :class:`InputError` if one of the settings is set, because no model of the kind has these settings.

    ``setting_names`` are attributes of :class:`ModelSettings`. ``model_kind`` is the subject of the error, for example
    "a model behind an endpoint".
    """
    unset_settings = ModelSettings("")
    for setting_name in setting_names:
        if getattr(settings, setting_name) != getattr(unset_settings, setting_name):
            raise InputError(f"{model_kind} has no setting {setting_name}; remove the option", path=settings.name)


def _expect_dimensions(model: SentenceTransformer, model_name: str) -> None:
    """Raise :class:`InputError` if the model's files cut embeddings to a wrong number of dimensions."""
    truncate_dim = model.truncate_dim
    if truncate_dim is None:
        return
    # The library returns the number of dimensions after truncation, so switch truncation off for a moment.
    model.truncate_dim = None
    dimensions = model.get_embedding_dimension()
    model.truncate_dim = truncate_dim
    # isinstance would accept True, which is no number of dimensions.
    is_number = type(truncate_dim) is int and truncate_dim >= 1
    if is_number and (dimensions is None or truncate_dim <= dimensions):
        return
    expected = "a number from 1" if dimensions is None else f"a number from 1 to {dimensions}"
    raise InputError(
        f"{SETTINGS}: truncate_dim is {truncate_dim!r}; expected {expected}, or no such entry", path=model_name
    )


def _expect_lengths(module: Transformer, model_name: str) -> None:
    """Raise :class:`InputError` if a length in the model's files is not a positive number."""
    for key in ("max_seq_length", *_TOWER_LENGTHS):
        length = getattr(module, key)
        if length is not None and (isinstance(length, bool) or length < 1):
            raise InputError(
                f"the model's files have {key} {length!r}; expected at least 1, or no such entry", path=model_name
            )


def _end_texts(model: SentenceTransformer, settings: ModelSettings) -> None:
    """Let the tokenizer end every text with ``settings.last_token``, which last-token pooling needs."""
    tokenizer: Any = model.tokenizer
    token = settings.last_token
    if token == "eos_token":
        token = tokenizer.eos_token
    token_id = None
    if token is not None:
        token_id = tokenizer.get_vocab().get(token)
    if token_id is None:
        raise InputError(f"its tokenizer has no token {token or 'eos_token'!r} to end texts with", path=settings.name)
    if tokenizer(_SHORT_TEXT)["input_ids"][-1:] == [token_id]:
        return
    # Add a step after the tokenizer's own last steps.
    backend = tokenizer.backend_tokenizer
    steps = [processors.TemplateProcessing(single=f"$A {token}", special_tokens=[(token, token_id)])]
    if backend.post_processor:
        steps.insert(0, backend.post_processor)
    backend.post_processor = processors.Sequence(steps)
    if tokenizer(_SHORT_TEXT)["input_ids"][-1:] != [token_id]:
        raise InputError(f"its tokenizer does not end texts with {token!r}", path=settings.name)


def limit_length(model: torch.nn.Module, settings: ModelSettings) -> None:
    """Truncate texts in every tower at ``max_length`` tokens, or at the model's positions if these are fewer."""
    limits = [limit for limit in (settings.max_length, count_positions(model)) if limit is not None]
    if not limits:
        return
    limit = min(limits)
    with convert_library_errors(f"{settings.name}: its lengths cannot be used"):
        for module in model.modules():
            if isinstance(module, Transformer):
                _expect_lengths(module, settings.name)
                module.max_seq_length = min(module.max_seq_length or limit, limit)
                for key in _TOWER_LENGTHS:
                    length = getattr(module, key)
                    if length is not None:
                        setattr(module, key, min(length, limit))
            elif isinstance(module, StaticEmbedding):
                module.tokenizer.enable_truncation(limit)


def settings_in_use(model: Any) -> dict[str, Any]:
    """Return the prompts, lengths, pooling and similarity of an open encoder as JSON values, for a run's manifest.

    The value is None if the model lacks the setting or has no limit. A comma joins different poolings of two towers.
    """
    poolings = []
    for module in model.modules():
        if isinstance(module, Pooling):
            modes = module.pooling_mode  # the name of a mode, or a list of names
            poolings.append(modes if isinstance(modes, str) else "+".join(modes))
    max_length = getattr(model, "max_seq_length", None)
    if max_length is not None:
        # Models of static embeddings have an infinite length.
        max_length = None if math.isinf(max_length) else int(max_length)
    has_normalization = any(isinstance(module, Normalize) for module in model)
    has_unit_length = model.similarity_fn_name == "cosine" or has_normalization
    return {
        "query_prompt": prompt_of(model, "query") or "",
        "passage_prompt": prompt_of(model, "document") or "",
        "pooling": ", ".join(dict.fromkeys(poolings)) or None,
        "max_length": max_length,
        "query_length": _shortest_length(model, "query_length"),
        "passage_length": _shortest_length(model, "document_length"),
        "truncate_dim": getattr(model, "truncate_dim", None),
        "normalize": has_unit_length,
        "similarity": model.similarity_fn_name,
    }


def _shortest_length(model: Any, length_name: str) -> int | None:
    """Return the smallest length of the towers by the name of the length, or None if no tower has the length."""
    tower_lengths = [getattr(tower, length_name) for tower in _transformers(model)]
    return min((length for length in tower_lengths if length is not None), default=None)


def describe_model(settings: ModelSettings, model: Any, dtype: str) -> dict[str, Any]:
    """Return everything that affects the output of an open fp32 model, for a manifest, without local paths.

    ``dtype`` is the precision in which the model will compute. ``left_out`` names the training questions that a
    checkpoint of this project was not trained on. Values that are not set are omitted.
    """
    description: dict[str, Any] = {
        "name": shown_name(settings.name),
        "fingerprint": model_fingerprint(model),
        "computed_in": dtype,
    }
    optional_values = {
        "max_length": settings.max_length,
        "commit": settings.revision,
        "settings": settings.overrides(),
        "left_out": left_out(Path(settings.name)),
    }
    for key, value in optional_values.items():
        if value:
            description[key] = value
    return description


def model_fingerprint(model: Any) -> str:
    """Return the SHA-256 of everything that determines the output of an open fp32 model.

    These are the weights, the configs, the tokenizers, the modules' settings and the prompts.
    """
    transformers = _transformers(model)
    settings = {
        "modules": _module_settings(model),
        "configs": [_config_settings(transformer.auto_model.config.to_dict()) for transformer in transformers],
        "tokenizers": [_tokenizer_settings(tokenizer) for tokenizer in _tokenizers(model)],
        "prompts": model.prompts,
        "default_prompt": model.default_prompt_name,
        "max_length": model.max_seq_length,
        "similarity": getattr(model, "similarity_fn_name", None),
        "truncate": getattr(model, "truncate_dim", None),
        "vocabulary": sorted(model.tokenizer.get_vocab().items()),
    }
    # Models without these settings have the fingerprints of earlier versions, which did not know the settings.
    dimension_limit = getattr(model, "max_active_dims", None)
    if dimension_limit is not None:
        settings["max_active_dims"] = dimension_limit
    routers = [module for module in model if isinstance(module, Router)]
    if routers:
        settings["routes"] = [_route_settings(router) for router in routers]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for weight_name, tensor in sorted(model.state_dict().items()):
        # A damaged modules.json may name a module by half of a UTF-16 pair.
        digest.update(f"{weight_name} {tuple(tensor.shape)}".encode("utf-8", "surrogatepass"))
        weight_bytes = tensor.detach().cpu().contiguous().view(torch.uint8).reshape(-1)
        digest.update(weight_bytes.numpy().data)
    return digest.hexdigest()


def _module_settings(modules: Any) -> list[Any]:
    """Return the settings of the modules that have any."""
    return [module.get_config_dict() for module in modules if hasattr(module, "get_config_dict")]


def _transformers(model: Any) -> list[Transformer]:
    return [module for module in model.modules() if isinstance(module, Transformer)]


def _tokenizers(model: Any) -> list[Any]:
    """Return the tokenizers of all towers."""
    with_tokenizer = (Transformer, StaticEmbedding, SparseStaticEmbedding)
    return [module.tokenizer for module in model.modules() if isinstance(module, with_tokenizer)]


def _config_settings(config_values: dict[Any, Any]) -> dict[str, Any]:
    """Return the values of a model's config that may change outputs.

    The others are paths, versions, the type in which the weights were saved, and the class that is opened anyway.
    """
    settings = {}
    for key, value in config_values.items():
        if not str(key).startswith("_") and key not in _NEUTRAL_CONFIG:
            settings[str(key)] = _config_settings(value) if isinstance(value, dict) else value
    return settings


def _tokenizer_settings(tokenizer: Any) -> dict[str, Any]:
    """Return the rules by which a tokenizer reads texts: normalizer, pre-tokenizer, vocabulary, sides ..."""
    settings: dict[str, Any] = {
        "truncation_side": getattr(tokenizer, "truncation_side", None),
        "padding_side": getattr(tokenizer, "padding_side", None),
    }
    backend: Any = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(backend, "to_str"):
        settings.update(json.loads(backend.to_str()))
        # The truncation and the padding depend on the tokenizer's last call.
        settings["truncation"] = None
        settings["padding"] = None
    else:  # a tokenizer in Python
        # Arguments of other types are paths and objects.
        arguments = tokenizer.init_kwargs.items()
        settings["class"] = type(tokenizer).__name__
        settings["arguments"] = {name: value for name, value in arguments if isinstance(value, bool | int | float)}
    return settings


def _route_settings(router: Router) -> dict[str, list[Any]]:
    """Return the settings of a router's modules and the lengths of its towers, by route."""
    settings_by_route: dict[str, list[Any]] = {}
    for route, modules in router.sub_modules.items():
        tower_length = getattr(modules[0], "max_seq_length", None)
        settings_by_route[route] = [*_module_settings(modules), tower_length]
    return settings_by_route
