"""Checks of every model that is opened, whoever made it.

Its files can be read, and are as they were written; they hold the weights of all that is used; its tokenizer reads
Chinese, and belongs to the weights; a text goes through the whole of it.

The libraries run no code of a model, unless the user says ``--trust-remote-code``, and unpickle tensors alone.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
from msgspec import Meta, Struct
from sentence_transformers import CrossEncoder, MultiVectorEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding
from sentence_transformers.util import batch_to_device
from transformers import PreTrainedModel

from baselines.checkpoint import check_hashes
from baselines.retrieve.settings import ModelSettings
from builders.core.errors import InputError
from builders.core.typed import json_of, typed

SENTENCE = "在北京的冬天我们可以怎么找到一个问题的答案"
_STRANGE = "\U0002ebe0 \u0e01"  # in few vocabularies
_PANIC = "PanicException"  # of libraries in Rust, as tokenizers; no Exception of Python's
_NAMED = 3  # missing weights that an error names
_LONGEST = 300  # characters of what a library says
MayLack = Callable[[PreTrainedModel, str], bool]


@contextlib.contextmanager
def opening(failed: str, may_lack: MayLack, name: str = "") -> Iterator[None]:
    """Open a model inside: whatever is wrong with its files is one :class:`InputError`.

    So is a weight that the files lack: the libraries would make random numbers of it, and say so in the log alone.

    Args:
        failed: how the error begins: ``DIR: cannot be opened as a CrossEncoder``.
        may_lack: whether a weight, by its model and its name there, is not needed.
        name: of the model; the files of a directory that is a checkpoint of ours are held against their hashes.
    """
    if name:
        check_hashes(Path(name))
    missing: list[str] = []
    with _loading_told(lambda model, lost: missing.extend(key for key in lost if not may_lack(model, key))):
        try:
            yield
        except (InputError, MemoryError):
            raise
        except BaseException as error:  # the files are another's: each library has its own words for what they are not
            if _is_ours(error) or not (isinstance(error, Exception) or type(error).__name__ == _PANIC):
                raise
            said, kind = " ".join(str(error).split())[:_LONGEST], type(error).__name__
            raise InputError(f"{failed} ({': '.join(filter(None, [kind, said]))})") from error
    if missing:
        shown = ", ".join(sorted(missing)[:_NAMED]) + ", ..." * (len(missing) > _NAMED)
        raise InputError(f"{failed} (its files lack {len(missing)} of its weights: {shown})")


def _is_ours(error: BaseException) -> bool:
    """True if this project's own code raised the error, not a library: that is a fault of the program, and stays one.

    What this module calls may be a library's compiled code, which has no frame of its own.
    """
    *_, (last, _) = traceback.walk_tb(error.__traceback__)
    module = str(last.f_globals.get("__name__"))
    return module.partition(".")[0] in ("baselines", "builders") and module != __name__


class _Settings(Struct):
    """Settings in the model's files that the libraries apply silently."""

    prompts: dict[str, str | None]  # None: of a late-interaction model without one
    default_prompt_name: str | None
    lengths: list[Annotated[int, Meta(ge=1)] | None]


def check_settings(model: Any, name: str) -> None:
    """:class:`InputError` where what a model's files set is not what the libraries take it for.

    Args:
        model: a SentenceTransformer or a CrossEncoder.
        name: of the model, for the error.
    """
    keys = ("max_seq_length", "query_length", "document_length")
    modules = [module for module in model.modules() if isinstance(module, Transformer)]
    lengths = [getattr(module, key, None) for module in modules for key in keys]
    found = {"prompts": model.prompts, "default_prompt_name": model.default_prompt_name, "lengths": lengths}
    typed(found, _Settings, name)


def check_tokenizers(model: Any, name: str) -> None:
    """:func:`check_tokenizer` of every tokenizer of a model of sentence-transformers."""
    if getattr(model, "tokenizer", None) is None:
        raise InputError("has no tokenizer", path=name)
    for module in model.modules():
        if isinstance(module, Transformer):
            check_tokenizer(module.tokenizer, module.auto_model.get_input_embeddings().weight, name)
        elif isinstance(module, StaticEmbedding):
            check_tokenizer(module.tokenizer, module.embedding.weight, name)
        elif isinstance(module, SparseStaticEmbedding):
            check_tokenizer(module.tokenizer, module.weight, name)


class _Words(Struct):
    """The fields of a tokenizer's model that are read: the token of unknown words, by its id or its text."""

    unk_id: int | None = None
    unk_token: str | None = None


class _Saved(Struct):
    """The field of a ``tokenizer.json`` that is read."""

    model: _Words


def check_tokenizer(tokenizer: Any, embeddings: Any, name: str) -> None:
    """Raise :class:`InputError` where a tokenizer is not the model's, or is empty.

    transformers makes an empty tokenizer for a folder without the tokenizer's files. An added token may lack an
    embedding, if no text has it that does not spell it out.

    Args:
        tokenizer: transformers', or that of a static model, which pads nothing.
        embeddings: of the model; a row a token.
        name: of the model, for the error.
    """
    if hasattr(tokenizer, "pad_token_id"):
        if tokenizer.pad_token_id is None:
            raise InputError("its tokenizer has no pad token, which the texts of a batch are filled up with", path=name)
        decoder, added = tokenizer.added_tokens_decoder, tokenizer.get_added_vocab()
        made = tokenizer(SENTENCE, add_special_tokens=False)["input_ids"]
        used = [*tokenizer(SENTENCE)["input_ids"], tokenizer.pad_token_id]
        unknown, spelled = {tokenizer.unk_token_id}, tokenizer.convert_ids_to_tokens(made)
    else:
        decoder, state = tokenizer.get_added_tokens_decoder(), json_of(tokenizer.to_str().encode(), _Saved, name).model
        added = {each.content for each in decoder.values()}
        used = made = tokenizer.encode(SENTENCE, add_special_tokens=False).ids
        unknown = {state.unk_id, tokenizer.token_to_id(state.unk_token or "")}
        spelled = [tokenizer.id_to_token(number) for number in made]
    special = unknown | {number for number, each in decoder.items() if each.special}
    known = typed(tokenizer.get_vocab(), dict[str, Annotated[int, Meta(ge=0)]], name)
    most = max([*(number for token, number in known.items() if token not in added), *used], default=-1)
    if most >= len(embeddings):
        problem = f"its tokenizer makes token ids up to {most}, and its weights hold {len(embeddings)} tokens"
        raise InputError(f"{problem}: the tokenizer is another model's", path=name)
    words = {token for token, number in zip(spelled, made, strict=True) if number not in special}
    if not any(word.strip("▁Ġ ") for word in words):
        problem = "its tokenizer makes nothing but special or unknown tokens of a Chinese sentence"
        raise InputError(f"{problem}; are its files (tokenizer.json, vocab.txt ...) there?", path=name)


def check_reading(model: Any, settings: ModelSettings) -> None:
    """Raise :class:`InputError` where a model of sentence-transformers, on the CPU, makes no numbers of texts.

    Much of what a model's files set is used with the first text alone. A quantised model, and one of a repository's own
    code, is not tried: it may need a GPU.
    """
    quantised = any(getattr(getattr(each, "auto_model", None), "is_quantized", False) for each in model.modules())
    if settings.trust_remote_code or quantised:
        return
    name, pairs = settings.name, isinstance(model, CrossEncoder)
    key = "scores" if pairs else "token_embeddings" if isinstance(model, MultiVectorEncoder) else "sentence_embedding"
    texts = [(text, text) if pairs else text for text in (SENTENCE, _STRANGE)]
    modes = [(module, module.training) for module in model.modules()]
    with opening(f"{name}: cannot read a text", lambda *_: True), torch.no_grad():
        model.eval()
        for given in [{}] if pairs else [{"task": "query"}, {"task": "document"}]:
            features = batch_to_device(model.preprocess(texts, **given), model.device)
            made = model(features, **given).get(key)
            if not torch.is_tensor(made):
                raise InputError(f"makes no {key.replace('_', ' ')} of a text", path=name)
            if not torch.isfinite(made).all():
                raise InputError("makes infinite numbers, or none, of a text: its weights are damaged", path=name)
    for module, mode in modes:
        module.training = mode


def classes(config: Any) -> list[str]:
    """The names of the classes that a model was saved from, by its config; :class:`InputError` where they are none."""
    return typed(config.architectures or [], list[str], f"{config.name_or_path}: architectures in config.json")


@contextlib.contextmanager
def _loading_told(tell: Callable[[PreTrainedModel, set[str]], None]) -> Iterator[None]:
    """``tell(model, names of the weights that its files lack)`` of every transformers model that is loaded inside.

    from_pretrained says it to who asks; sentence-transformers, which calls it, does not ask.
    """
    library: Any = PreTrainedModel
    plain = vars(library)["from_pretrained"]

    def told(cls: type[PreTrainedModel], *args: Any, **given: Any) -> Any:
        model, info = plain.__func__(cls, *args, **given, output_loading_info=True)
        tell(model, set(info["missing_keys"]))
        return model

    library.from_pretrained = classmethod(told)
    try:
        yield
    finally:
        library.from_pretrained = plain


def unused_pooler(model: PreTrainedModel, key: str) -> bool:
    """Of an encoder: its pooler, which a dual-encoder has no use for (the vector is pooled by another module)."""
    return "pooler" in key.split(".") and not hasattr(model, model.base_model_prefix)


def new_head(model: PreTrainedModel, key: str) -> bool:
    """Of a start: :func:`unused_pooler`, and a head that the start was never said to have. It is what is trained."""
    if unused_pooler(model, key):
        return True
    named = type(model).__name__ in classes(model.config)
    inside = key.startswith(f"{model.base_model_prefix}.") and "pooler" not in key.split(".")
    return hasattr(model, model.base_model_prefix) and not named and not inside


def check_length(given: str, length: int, model: Any, tokenizer: Any, *, texts: int = 1) -> None:
    """Raise :class:`InputError` where ``length`` tokens have no room for the texts, or are more than a model can read.

    Args:
        given: what set the length, as the error names it.
        length: in tokens, special ones included.
        model: the torch module.
        tokenizer: the transformers tokenizer of its texts.
        texts: that are read together: 1, or 2 of a cross-encoder.
    """
    special = tokenizer.num_special_tokens_to_add(texts == 2)
    if length < special + texts:
        raise InputError(f"{given}: expected at least {special + texts} tokens, {special} of them special ones")
    if (most := positions(model)) is not None and length > most:
        raise InputError(f"{given}: expected at most {most} tokens, the positions that the model has")


def positions(model: torch.nn.Module) -> int | None:
    """The most tokens that a model can read; None if its positions are relative or computed."""
    found = [
        module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)  # as RoBERTa counts them
        for name, module in model.named_modules()
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(module, torch.nn.Embedding)
    ]
    return min(found, default=None)
