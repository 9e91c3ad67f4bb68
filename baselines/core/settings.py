"""Settings of models. This module imports no model library."""

from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct

from baselines.core.endpoint_options import EndpointOptions


class Overrides(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings that override the model's files. The model's own setting applies if a value is None.

    Attributes:
        query_prompt, passage_prompt: text put before every query or passage. "" removes the model's prompt.
        prompt_name: name of the model's prompt for queries. Used if ``query_prompt`` is None. "" means unset.
        pooling: pooling mode of a dual-encoder, by its name in sentence-transformers: mean, cls, lasttoken ...
        last_token: token to end every text with, or "eos_token" for the tokenizer's end token.
        truncate_dim: number of dimensions to use. The last dimensions are dropped.
        normalize: True to scale embeddings to unit length.
        similarity: cosine or dot.
    """

    query_prompt: str | None = None
    passage_prompt: str | None = None
    prompt_name: str = ""
    pooling: str | None = None
    last_token: str | None = None
    truncate_dim: Annotated[int, Meta(ge=1)] | None = None
    normalize: bool | None = None
    similarity: str | None = None


class ModelSettings(Overrides, frozen=True):
    """A model and every setting that affects its output.

    Attributes:
        name: a hub name or a directory.
        revision: commit, tag or branch of a model on the hub ("": main).
        max_length: largest number of tokens of a text or pair, prompt included, if the model allows that many.
        trust_remote_code: True to allow Python code of the model's repository to run.
    """

    name: str
    revision: str = ""
    max_length: int | None = None
    trust_remote_code: bool = False

    def overrides(self) -> dict[str, Any]:
        """Return all overrides with a value, for a manifest."""
        values: dict[str, Any] = {}
        for name in Overrides.__struct_fields__:
            value = getattr(self, name)
            # An empty text is unset, except in query_prompt and passage_prompt, where "" removes the model's prompt.
            is_unset = value is None or (value == "" and "_prompt" not in name)
            if not is_unset:
                values[name] = value
        return values


@dataclass(frozen=True)
class ModelOptions:
    """The options of a verb that say how a model is used. None, or an empty text, is an option that was not given.

    :func:`baselines.retrieve.families.resolve_settings` chooses between the options, the model's family and the model's
    files.

    Attributes:
        family: name of a family in models.toml, or "none".
        query_prompt, passage_prompt, prompt_name, pooling, truncate_dim, normalize, similarity: see
            :class:`Overrides`.
        max_length, revision, trust_remote_code: see :class:`ModelSettings`.
        kind: kind of model, if the model's files shall not determine the kind.
        endpoint: the endpoint of a model that is not on this machine.
    """

    family: str | None = None
    query_prompt: str | None = None
    passage_prompt: str | None = None
    prompt_name: str | None = None
    pooling: str | None = None
    truncate_dim: int | None = None
    normalize: bool | None = None
    similarity: str | None = None
    max_length: int | None = None
    revision: str = ""
    trust_remote_code: bool = False
    kind: str | None = None
    endpoint: EndpointOptions | None = None

    def overrides(self) -> dict[str, Any]:
        """Return the given options that override the model's files, by their names."""
        values: dict[str, Any] = {}
        for name in Overrides.__struct_fields__:
            value = getattr(self, name, None)  # last_token is no option
            if value is not None:
                values[name] = value
        return values


NO_OPTIONS = ModelOptions()
