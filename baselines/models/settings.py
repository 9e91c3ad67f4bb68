"""How a model is used: what its user may say otherwise than its own files."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from msgspec import Meta, Struct

_OWN_PLACE = ("name", "revision", "max_length", "trust_remote_code")  # a manifest has them elsewhere, or not at all


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """Which model, and how it is used: all that decides what it gives. None or empty: as its own files say.

    Attributes:
        name: a hub name or a directory.
        revision: of a model on the hub (:func:`baselines.models.loading.commit_of`).
        max_length: tokens that a text is cut to, prompt included, where the model would keep more.
        query_prompt, passage_prompt: what is put before every text; an empty string puts nothing there.
        prompt_name: the prompt of the model's own that is put before queries, where ``query_prompt`` is None.
        pooling: how a dual-encoder makes one vector of a text's: mean, cls, lasttoken ..., as sentence-transformers
            calls it.
        last_token: with which every text ends, as its text, or "eos_token" for the tokenizer's own: put there where
            the tokenizer does not.
        truncate_dim: the first dimensions of an embedding that are kept.
        normalize: whether embeddings have unit length.
        similarity: cosine or dot.
        trust_remote_code: whether Python code of the model's own repository may run.
    """

    name: str
    revision: str = ""
    max_length: int | None = None
    query_prompt: str | None = None
    passage_prompt: str | None = None
    prompt_name: str = ""
    pooling: str | None = None
    last_token: str | None = None
    truncate_dim: int | None = None
    normalize: bool | None = None
    similarity: str | None = None
    trust_remote_code: bool = False

    def said(self) -> dict[str, Any]:
        """What was said otherwise than the model's files do, for a manifest; without the name and what opens it."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {key: value for key, value in values.items() if key not in _OWN_PLACE and value not in (None, "")} | {
            key: "" for key in ("query_prompt", "passage_prompt") if values[key] == ""
        }


class SaidSettings(Struct, forbid_unknown_fields=True):
    """:meth:`ModelSettings.said`, as a manifest holds it."""

    query_prompt: str | None = None
    passage_prompt: str | None = None
    prompt_name: str = ""
    pooling: str | None = None
    last_token: str | None = None
    truncate_dim: Annotated[int, Meta(ge=1)] | None = None
    normalize: bool | None = None
    similarity: str | None = None
