"""The families of models in ``models.toml``. This module imports no model library."""

import functools
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, to_builtins

from baselines.retrieve.hub_models import name_of_folder
from builders.core.errors import InputError
from builders.core.read_files import read_toml
from builders.core.typed import convert_to

FAMILIES = Path(__file__).parents[1] / "models.toml"
NO_FAMILY = "none"


class Family(Struct, frozen=True, forbid_unknown_fields=True):
    """Models that share settings. ``models.toml`` explains the fields. None means the setting in the model's files.

    Attributes:
        models: names of models on the hub.
        said: for each setting, the name of its source in :class:`DeclaredFamilies`, or two names joined by " with ".
        query_prompt, passage_prompt: text put before every query or passage.
        prompts: further prompts for queries by name, for example of tasks.
        pooling: pooling mode, by its name in sentence-transformers.
        max_length: largest number of tokens of a text.
        similarity: similarity of two embeddings.
        last_token: token to end every text with, or "eos_token".
        remote_code: True if the models need Python code of their repositories.
        instead: another model with the same weights that needs no such code.
    """

    models: list[str]
    said: dict[str, str]
    query_prompt: str | None = None
    passage_prompt: str | None = None
    prompts: dict[str, str] = {}
    pooling: Literal["cls", "mean", "lasttoken"] | None = None
    max_length: Annotated[int, Meta(ge=8)] | None = None
    similarity: Literal["cosine", "dot"] | None = None
    last_token: str | None = None
    remote_code: bool = False
    instead: str | None = None


class DeclaredFamilies(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``models.toml``: families and sources by name.

    A source is a ``file`` or an issue of a ``repository``, often at a ``commit``.
    """

    families: dict[str, Family]
    sources: dict[str, dict[str, str]]


@functools.cache
def read_families() -> DeclaredFamilies:
    """Read ``models.toml`` once."""
    return convert_to(read_toml(FAMILIES), DeclaredFamilies, FAMILIES)


def family_of(model_name: str) -> str:
    """Return the name of a model's family, or "" if no family has the model. Case is ignored.

    A folder of the hub's cache has the name of its model on the hub. Other folders are recognised by the last part of
    the path. For example, ``models/bge-small-zh-v1.5`` counts as BAAI/bge-small-zh-v1.5. If two families have the name,
    the family without remote code is returned.
    """
    is_folder = Path(model_name).is_dir()
    wanted_name = (name_of_folder(Path(model_name)) if is_folder else model_name).casefold()
    has_only_last_part = is_folder and "/" not in wanted_name
    matches = []
    for family_name, family in read_families().families.items():
        for listed_model in family.models:
            listed_name = listed_model.rpartition("/")[2] if has_only_last_part else listed_model
            if listed_name.casefold() == wanted_name:
                matches.append((family.remote_code, family_name))
    if not matches:
        return ""
    _, first_name = min(matches)  # False, without remote code, is less than True
    return first_name


def check_family(model_name: str, family_option: str | None, *, trust_remote_code: bool) -> None:
    """Raise :class:`InputError` for an unknown family, or for a family that needs remote code without permission.

    ``family_option`` is the option of a verb, as in :func:`family_settings`.
    """
    families = read_families().families
    if family_option is not None and family_option != NO_FAMILY and family_option not in families:
        raise InputError(f"--family {family_option}: expected {NO_FAMILY} or one of {', '.join(families)}")
    family_name = family_of(model_name) if family_option is None else family_option
    settings = families.get(family_name)
    if settings is not None and settings.remote_code and not trust_remote_code:
        problem = "needs Python code of its repository; read the code, then add --trust-remote-code"
        if settings.instead:
            problem += f", or use {settings.instead}, the same model without code"
        raise InputError(problem, path=model_name)


def family_settings(model_name: str, family_option: str | None) -> dict[str, Any]:
    """Return the name and the settings of a model's family as JSON values. Empty for a model without a family.

    ``family_option`` is the option of a verb: a family's name, "none", or None for the family that has the model.
    """
    family_name = family_of(model_name) if family_option is None else family_option
    if family_name not in read_families().families:
        return {}
    settings: dict[str, Any] = to_builtins(read_families().families[family_name])
    del settings["models"]  # further models in a family change nothing for this model
    return {"name": family_name, **settings}
