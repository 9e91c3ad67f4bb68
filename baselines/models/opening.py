"""What is checked of every model that is opened, whoever made it: files that can be read, weights for all that is used.

The libraries run no code of a model, unless the user says ``--trust-remote-code``, and unpickle tensors alone.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import torch
from msgspec import Meta, Struct
from sentence_transformers.base.modules import Transformer
from transformers import PreTrainedModel

from builders.common.command import InputError
from builders.common.typed import typed

_NAMED = 3  # missing weights that an error names
_LONGEST = 300  # characters of what a library says
MayLack = Callable[[PreTrainedModel, str], bool]


@contextlib.contextmanager
def opening(failed: str, may_lack: MayLack) -> Iterator[None]:
    """Open a model inside: whatever is wrong with its files is one :class:`InputError`.

    So is a weight that the files lack: the libraries would make random numbers of it, and say so in the log alone.

    Args:
        failed: how the error begins: ``DIR: cannot be opened as a CrossEncoder``.
        may_lack: whether a weight, by its model and its name there, is not needed.
    """
    missing: list[str] = []
    with _loading_told(lambda model, lost: missing.extend(key for key in lost if not may_lack(model, key))):
        try:
            yield
        except (InputError, MemoryError):
            raise
        except Exception as error:  # the files are another's: each library has its own words for what they are not
            if _is_ours(error):
                raise
            said, kind = " ".join(str(error).split())[:_LONGEST], type(error).__name__
            raise InputError(f"{failed} ({': '.join(filter(None, [kind, said]))})") from error
    if missing:
        shown = ", ".join(sorted(missing)[:_NAMED]) + ", ..." * (len(missing) > _NAMED)
        raise InputError(f"{failed} (its files lack {len(missing)} of its weights: {shown})")


def _is_ours(error: Exception) -> bool:
    """Whether this project's own code raised it, not a library: that is a fault of the program, and stays one."""
    *_, (last, _) = traceback.walk_tb(error.__traceback__)
    return str(last.f_globals.get("__name__")).partition(".")[0] in ("baselines", "builders")


class _Settings(Struct):
    """What a model's own files set, and the libraries use later without a look at it."""

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
    """How many tokens a model can read; None where its positions are relative, or computed."""
    found = [
        module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)  # as RoBERTa counts them
        for name, module in model.named_modules()
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(module, torch.nn.Embedding)
    ]
    return min(found, default=None)
