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
from baselines.retrieve.devices import DTYPES, moved
from baselines.retrieve.hub_models import commit_of
from baselines.retrieve.library_errors import opening
from baselines.retrieve.model_files import shown_name
from baselines.retrieve.model_kinds import declared_class, expect_complete_copy
from baselines.retrieve.model_prompts import prompt_of, set_prompts
from baselines.retrieve.reading_checks import SENTENCE, check_reading, check_room_for_texts
from builders.core.errors import InputError
from builders.core.typed import typed

# Values of a model's config that change no output: versions, the type of the saved weights, and names.
_NEUTRAL_CONFIG = {"transformers_version", "dtype", "torch_dtype", "architectures"}
_LOADING = threading.RLock()


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


def expect_weights(
    failed: str, model: torch.nn.Module, may_lack: Callable[[PreTrainedModel, str], bool] = lambda *_: True
) -> None:
    """Raise :class:`InputError` if the files of a loaded model on the CPU lack weights.

    The libraries would only log a missing weight, and use random numbers.

    Args:
        failed: the beginning of the error message.
        model: a model of transformers, or of sentence-transformers with models of transformers inside.
        may_lack: a function of a model and the name of a missing weight. Returns True if the weight is not needed.
    """
    missing: set[str] = set()
    for loaded_model in _outermost_models(model):
        missing.update(key for key in _missing_weights(loaded_model) if not may_lack(loaded_model, key))
    if missing:
        shown = ", ".join(sorted(missing)[:3]) + (", ..." if len(missing) > 3 else "")
        raise InputError(f"{failed} (its files lack {len(missing)} of its weights: {shown})")


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
    patterns = model._keys_to_ignore_on_load_missing or ()
    is_quantized = getattr(model, "is_quantized", False)
    missing = []
    for name, weight in model.state_dict(keep_vars=True).items():
        # A quantiser may replace weights after they were read. The new weights have no marks, and are not plain.
        is_plain = type(weight) is torch.nn.Parameter and weight.dtype in DTYPES.values()
        is_loaded = getattr(weight, "_is_hf_initialized", False) or (is_quantized and not is_plain)
        if not is_loaded and not any(re.search(pattern, name) for pattern in patterns):
            missing.append(name)
    return missing


def unused_pooler(model: PreTrainedModel, key: str) -> bool:
    """True for a weight of an encoder's pooler, which dual-encoders do not use."""
    return "pooler" in key.split(".") and not hasattr(model, model.base_model_prefix)


def new_head(model: PreTrainedModel, key: str) -> bool:
    """True for a weight of an :func:`unused_pooler`, or of a new head that the starting checkpoint lacks."""
    if unused_pooler(model, key):
        return True
    named = type(model).__name__ in classes(model.config)
    inside = key.startswith(f"{model.base_model_prefix}.") and "pooler" not in key.split(".")
    return hasattr(model, model.base_model_prefix) and not named and not inside


def classes(config: Any) -> list[str]:
    """Return the class names in a model's config. Raises :class:`InputError` for a damaged config."""
    return typed(config.architectures or [], list[str], f"{config.name_or_path}: architectures in config.json")


def check_tokenizers(model: Any, name: str) -> None:
    """Call :func:`check_tokenizer` for every tokenizer of a sentence-transformers model."""
    if getattr(model, "tokenizer", None) is None:
        raise InputError("has no tokenizer; expected its files (tokenizer.json, vocab.txt ...)", path=name)
    for module in model.modules():
        if isinstance(module, Transformer):
            check_tokenizer(module.tokenizer, module.auto_model.get_input_embeddings().weight, name)
        elif isinstance(module, StaticEmbedding):  # this tokenizer is an object of the Rust library
            wrapped = PreTrainedTokenizerFast(tokenizer_object=module.tokenizer)  # type: ignore[no-untyped-call]
            check_tokenizer(wrapped, module.embedding.weight, name)
        elif isinstance(module, SparseStaticEmbedding):
            check_tokenizer(module.tokenizer, module.weight, name)


def check_tokenizer(tokenizer: Any, embeddings: Any, name: str) -> None:
    """Raise :class:`InputError` if a tokenizer belongs to another model or is empty.

    transformers returns an empty tokenizer for a folder without the tokenizer's files. ``embeddings`` has one row per
    token. Added tokens may lack a row, because only texts that contain such a token need the row.
    """
    added, pad = tokenizer.get_added_vocab(), tokenizer.pad_token_id
    known = [number for token, number in tokenizer.get_vocab().items() if token not in added]
    most = max([*known, *tokenizer(SENTENCE)["input_ids"], *([] if pad is None else [pad])], default=-1)
    if most >= len(embeddings):
        raise InputError(
            f"its tokenizer has token ids up to {most}, but its weights have {len(embeddings)} tokens; "
            "expected the tokenizer of this model",
            path=name,
        )
    # All unknown words become one token, but a tokenizer that reads Chinese returns several different tokens.
    if len({token.strip("▁Ġ ") for token in tokenizer.tokenize(SENTENCE)} - {""}) < 2:
        raise InputError(
            "its tokenizer returns only special or unknown tokens of a Chinese sentence; are its files "
            "(tokenizer.json, vocab.txt ...) missing?",
            path=name,
        )


def check_length(given: str, length: int, model: Any, tokenizer: Any, *, texts: int = 1) -> None:
    """Raise :class:`InputError` if a length is too short for a text, or exceeds the number of the model's positions.

    ``length`` includes special tokens. ``given`` is the source of the length, for the error. ``texts`` is the number
    of texts in an input: 1, or 2 for a cross-encoder.
    """
    special = tokenizer.num_special_tokens_to_add(texts == 2)
    if length < special + texts:
        raise InputError(f"{given}: expected at least {special + texts} tokens, because {special} are special tokens")
    if (most := positions(model)) is not None and length > most:
        raise InputError(f"{given}: expected at most {most} tokens, the number of the model's positions")


def positions(model: torch.nn.Module) -> int | None:
    """Return the largest number of tokens that a model can read, or None if no table of positions limits the number."""
    found = [
        module.num_embeddings
        - (0 if module.padding_idx is None else module.padding_idx + 1)  # RoBERTa's first position is padding_idx + 1
        for name, module in model.named_modules()
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(module, torch.nn.Embedding)
    ]
    return min(found, default=None)


def open_encoder(settings: ModelSettings, device: str = "cpu", dtype: str = "fp32") -> SentenceTransformer:
    """Open a dual-encoder and apply ``settings``. Raises :class:`InputError`."""
    model, name = open_as(SentenceTransformer, settings), settings.name
    if settings.pooling is not None:
        pooled = [module for module in model.modules() if isinstance(module, Pooling)]
        if not pooled:
            raise InputError("has no pooling; expected a model of token embeddings", path=name)
        for module in pooled:
            module.pooling_mode = settings.pooling
    if settings.last_token is not None:
        _end_texts(model, settings)
    _expect_dimensions(model, name)
    if settings.truncate_dim is not None:
        if settings.truncate_dim > (dim := model.get_embedding_dimension()):
            raise InputError(f"has {dim} dimensions; expected --truncate-dim of at most {dim}", path=name)
        model.truncate_dim = settings.truncate_dim
    if settings.normalize is False:
        if settings.similarity == "cosine":
            raise InputError(
                "cosine needs embeddings of unit length; expected --similarity dot with --no-normalize", path=name
            )
        for place in reversed(range(len(model))):
            if isinstance(model[place], Normalize):
                del model[place]
    return moved(finished(model, settings), device, dtype)


def finished(model: Any, settings: ModelSettings) -> Any:
    """Apply the similarity and the length of ``settings`` to an encoder. Check that the encoder reads texts."""
    # With "cosine", TextEncoder scales embeddings to unit length. Their inner product is then the cosine.
    if settings.normalize:
        model.similarity_fn_name = "cosine"
    elif settings.normalize is False or settings.similarity is not None:
        model.similarity_fn_name = settings.similarity or "dot"
    if model.similarity_fn_name not in ("cosine", "dot"):
        raise InputError(f"has the similarity {model.similarity_fn_name!r}; expected cosine or dot", path=settings.name)
    shorten(model, settings)
    check_room_for_texts(model, settings.name)
    check_reading(model, settings)
    return model


def open_cross(settings: ModelSettings, device: str = "cpu", dtype: str = "fp32") -> CrossEncoder:
    """Open a cross-encoder with one output, or with two outputs (no, yes). Raises :class:`InputError`.

    ``settings.max_length`` is the largest number of tokens of query and passage together. ``settings.query_prompt`` is
    put before every query.
    """
    name, max_length = settings.name, settings.max_length
    model = open_as(CrossEncoder, settings)
    if model.num_labels not in (1, 2):
        raise InputError(f"returns {model.num_labels} scores per pair; expected one or two", path=name)
    if max_length is not None:
        check_length(f"--max-length {max_length}", max_length, model, model.tokenizer, texts=2)
        model.max_seq_length = max_length
    elif (limit := positions(model)) is not None and (model.max_seq_length or limit) > limit:
        model.max_seq_length = limit
    if settings.query_prompt is not None:
        model.prompts, model.default_prompt_name = {**model.prompts, "asked": settings.query_prompt}, "asked"
    if not any(isinstance(module, LogitScore) for module in model):  # LanguageModel checks language models
        check_room_for_texts(model, name)
        check_reading(model, settings)
    return moved(model, device, dtype)


def open_as(kind: Any, settings: ModelSettings) -> Any:
    """Open a model as a sentence-transformers class, on the CPU in fp32. Raises :class:`InputError`."""
    name, commit = settings.name, commit_of(settings.name, settings.revision) or None
    # The library would convert a checkpoint of another class, for example by adding a random classifier.
    saved_class = declared_class(settings) or kind.__name__
    if saved_class != kind.__name__:
        raise InputError(f"is a {saved_class}; expected a {kind.__name__}", path=name)
    expect_complete_copy(settings)
    may_lack = (lambda *_: False) if kind is CrossEncoder else unused_pooler
    failed = f"{name}: cannot be opened as a {kind.__name__}"
    with opening(failed, name), exclusive_loading(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # missing weights get random numbers, which would change the fingerprint
        model = kind(
            name,
            device="cpu",
            revision=commit,
            model_kwargs={"dtype": torch.float32},
            trust_remote_code=settings.trust_remote_code,
        )
        expect_weights(failed, model, may_lack)
        check_tokenizers(model, name)
    if kind is not CrossEncoder:
        set_prompts(model, settings)
    return model


def expect_no(settings: ModelSettings, what: str, *names: str) -> None:
    """Raise :class:`InputError` if one of the settings ``names`` is set. The error names the kind ``what``."""
    for name in names:
        if getattr(settings, name) != getattr(ModelSettings(""), name):
            raise InputError(f"{what} has no setting {name}; remove the option", path=settings.name)


def _expect_dimensions(model: SentenceTransformer, name: str) -> None:
    """Raise :class:`InputError` if the model's files cut embeddings to a wrong number of dimensions."""
    kept = model.truncate_dim
    if kept is None:
        return
    model.truncate_dim = None
    full = model.get_embedding_dimension()
    model.truncate_dim = kept
    if type(kept) is not int or kept < 1 or (full is not None and kept > full):
        expected = "a number from 1" if full is None else f"a number from 1 to {full}"
        raise InputError(f"{SETTINGS}: truncate_dim is {kept!r}; expected {expected}, or no such entry", path=name)


def _expect_lengths(module: Transformer, name: str) -> None:
    """Raise :class:`InputError` if a length in the model's files is not a positive number."""
    for key in ("max_seq_length", "query_length", "document_length"):
        length = getattr(module, key)
        if length is not None and (isinstance(length, bool) or length < 1):
            raise InputError(
                f"the model's files have {key} {length!r}; expected at least 1, or no such entry", path=name
            )


def _end_texts(model: SentenceTransformer, settings: ModelSettings) -> None:
    """Let the tokenizer end every text with ``settings.last_token``, which last-token pooling needs."""
    tokenizer: Any = model.tokenizer
    token = tokenizer.eos_token if settings.last_token == "eos_token" else settings.last_token
    number = None if token is None else tokenizer.get_vocab().get(token)
    if number is None:
        raise InputError(f"its tokenizer has no token {token or 'eos_token'!r} to end texts with", path=settings.name)
    if tokenizer("的")["input_ids"][-1:] == [number]:
        return
    backend = tokenizer.backend_tokenizer
    last = processors.TemplateProcessing(single=f"$A {token}", special_tokens=[(token, number)])
    backend.post_processor = processors.Sequence([step for step in (backend.post_processor, last) if step])
    if tokenizer("的")["input_ids"][-1:] != [number]:
        raise InputError(f"its tokenizer does not end texts with {token!r}", path=settings.name)


def shorten(model: torch.nn.Module, settings: ModelSettings) -> None:
    """Truncate texts in every tower at ``max_length`` tokens, or at the model's positions if these are fewer."""
    limits = [limit for limit in (settings.max_length, positions(model)) if limit is not None]
    with opening(f"{settings.name}: its lengths cannot be used"):
        for module in model.modules() if limits else ():
            limit = min(limits)
            if isinstance(module, Transformer):
                _expect_lengths(module, settings.name)
                module.max_seq_length = min(module.max_seq_length or limit, limit)
                for name in ("query_length", "document_length"):
                    if (own := getattr(module, name)) is not None:
                        setattr(module, name, min(own, limit))
            elif isinstance(module, StaticEmbedding):
                module.tokenizer.enable_truncation(limit)


def settings_in_use(model: Any) -> dict[str, Any]:
    """Return the prompts, lengths, pooling and similarity of an open encoder as JSON values, for a run's manifest.

    The value is None if the model lacks the setting or has no limit. A comma joins different poolings of two towers.
    """
    poolings = [module.pooling_mode for module in model.modules() if isinstance(module, Pooling)]
    named = ["+".join([each] if isinstance(each, str) else each) for each in poolings]
    length = getattr(model, "max_seq_length", None)
    towers = [module for module in model.modules() if isinstance(module, Transformer)]
    own = {
        name: min((each for tower in towers if (each := getattr(tower, name)) is not None), default=None)
        for name in ("query_length", "document_length")
    }
    return {
        "query_prompt": prompt_of(model, "query") or "",
        "passage_prompt": prompt_of(model, "document") or "",
        "pooling": ", ".join(dict.fromkeys(named)) or None,
        "max_length": None if length is None or math.isinf(length) else int(length),
        "query_length": own["query_length"],
        "passage_length": own["document_length"],
        "truncate_dim": getattr(model, "truncate_dim", None),
        "normalize": model.similarity_fn_name == "cosine" or any(isinstance(each, Normalize) for each in model),
        "similarity": model.similarity_fn_name,
    }


def described(settings: ModelSettings, model: Any, dtype: str) -> dict[str, Any]:
    """Return everything that affects the output of an open fp32 model, for a manifest, without local paths."""
    about = {"name": shown_name(settings.name), "fingerprint": fingerprint(model), "computed_in": dtype}
    given = {"max_length": settings.max_length, "commit": settings.revision, "settings": settings.overrides()}
    given["left_out"] = left_out(Path(settings.name))
    return about | {key: value for key, value in given.items() if value}


def fingerprint(model: Any) -> str:
    """Return the SHA-256 of everything that determines the output of an open fp32 model.

    These are the weights, the configs, the tokenizers, the modules' settings and the prompts.
    """
    settings = {
        "modules": [module.get_config_dict() for module in model if hasattr(module, "get_config_dict")],
        "configs": [_config_settings(each.auto_model.config.to_dict()) for each in _transformers(model)],
        "tokenizers": [_tokenizer_settings(tokenizer) for tokenizer in _tokenizers(model)],
        "prompts": model.prompts,
        "default_prompt": model.default_prompt_name,
        "max_length": model.max_seq_length,
        "similarity": getattr(model, "similarity_fn_name", None),
        "truncate": getattr(model, "truncate_dim", None),
        "vocabulary": sorted(model.tokenizer.get_vocab().items()),
    }
    if (most := getattr(model, "max_active_dims", None)) is not None:
        settings["max_active_dims"] = most
    if routes := [module for module in model if isinstance(module, Router)]:
        settings["routes"] = [_routes(router) for router in routes]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        # A damaged modules.json may name a module by half of a UTF-16 pair.
        digest.update(f"{name} {tuple(tensor.shape)}".encode("utf-8", "surrogatepass"))
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).reshape(-1).numpy().data)
    return digest.hexdigest()


def _transformers(model: Any) -> list[Transformer]:
    return [module for module in model.modules() if isinstance(module, Transformer)]


def _tokenizers(model: Any) -> list[Any]:
    """Return the tokenizers of all towers."""
    kinds = (Transformer, StaticEmbedding, SparseStaticEmbedding)
    return [module.tokenizer for module in model.modules() if isinstance(module, kinds)]


def _config_settings(config: dict[Any, Any]) -> dict[str, Any]:
    """Return the values of a model's config that may change outputs.

    The others are paths, versions, the type in which the weights were saved, and the class that is opened anyway.
    """
    settings = {}
    for name, value in config.items():
        if not str(name).startswith("_") and name not in _NEUTRAL_CONFIG:
            settings[str(name)] = _config_settings(value) if isinstance(value, dict) else value
    return settings


def _tokenizer_settings(tokenizer: Any) -> dict[str, Any]:
    """Return the rules by which a tokenizer reads texts: normalizer, pre-tokenizer, vocabulary, sides ..."""
    sides = {name: getattr(tokenizer, name, None) for name in ("truncation_side", "padding_side")}
    backend: Any = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(backend, "to_str"):
        # The truncation and the padding depend on the tokenizer's last call.
        return {**sides, **json.loads(backend.to_str()), "truncation": None, "padding": None}
    # A tokenizer in Python. Its other arguments are paths and objects.
    plain = {name: value for name, value in tokenizer.init_kwargs.items() if isinstance(value, bool | int | float)}
    return {**sides, "class": type(tokenizer).__name__, "arguments": plain}


def _routes(router: Router) -> dict[str, list[Any]]:
    """Return the settings of a router's modules and the lengths of its towers, by route."""
    found: dict[str, list[Any]] = {}
    for route, modules in router.sub_modules.items():
        found[route] = [module.get_config_dict() for module in modules if hasattr(module, "get_config_dict")]
        found[route].append(getattr(modules[0], "max_seq_length", None))
    return found
