"""``models.toml``: the settings of families of models, each with its source; the settings that `run` uses."""

from __future__ import annotations

import argparse
import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, structs

from baselines.retrieve.hub_models import commit_of
from baselines.retrieve.models import kind_of_model, model_file
from baselines.retrieve.settings import ModelSettings
from builders.core.errors import InputError, log
from builders.core.files import read_toml
from builders.core.typed import typed

FAMILIES = Path(__file__).parents[1] / "models.toml"
NO_FAMILY = "none"
OWN = "the model's own files"
# What both an option and a family may say, and what an option alone says.
_SHARED = ("query_prompt", "passage_prompt", "pooling", "max_length", "similarity", "last_token")
_OPTIONS = ("truncate_dim", "normalize")
WITH = " with "  # a value of two sources: a template of the one, the words in it of the other


class Family(Struct, frozen=True, forbid_unknown_fields=True):
    """Models that are used alike; ``None``: their own files decide. The values are explained in ``models.toml``.

    Attributes:
        said: by a value's key, the names of its sources, one or two with " with " between them.
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


class Declared(Struct, frozen=True, forbid_unknown_fields=True):
    """All families, by name, and the sources that they name.

    A source is a ``file`` (or issue) of a ``repository``, at the ``commit`` where it was read.
    """

    families: dict[str, Family]
    sources: dict[str, dict[str, str]]


@functools.cache
def declared() -> Declared:
    """The declarations that come with the project."""
    return typed(read_toml(FAMILIES), Declared, FAMILIES)


def family_of(model: str) -> str:
    """The name of a model's family; empty where none is declared.

    Names on the hub are compared without regard to case. Of a folder its own name counts: ``models/bge-small-zh-v1.5``
    is taken for the model of that name, and where two have it for the one that needs no code of its own.
    """
    is_folder = Path(model).is_dir()
    wanted = (Path(os.path.abspath(model)).name if is_folder else model).casefold()  # a link is known by its own name
    found = [
        (family.remote_code, name)
        for name, family in declared().families.items()
        if wanted in ((each.rpartition("/")[2] if is_folder else each).casefold() for each in family.models)
    ]
    return min(found)[1] if found else ""


@dataclass(frozen=True)
class Resolved:
    """The settings of a model, resolved from the options, the declaration of its family, and its own files.

    Attributes:
        settings: of the model.
        kind: of the model (:data:`.index.RETRIEVERS`).
        family: its name in models.toml; empty where the model is of none.
        sources: by the name of a setting, where it comes from: an option, or models.toml with the place of the value.
        pooling: what the family declares, whoever decides.
        plain: True if the model is an encoder without files of sentence-transformers: the library's defaults hold.
    """

    settings: ModelSettings
    kind: str
    family: str
    sources: dict[str, str]
    pooling: str | None
    plain: bool

    def source(self, key: str) -> str:
        """The source of a setting."""
        return self.sources.get(key) or ("the library's default" if key == "pooling" and self.plain else OWN)


def resolve(args: argparse.Namespace) -> Resolved:
    """Resolve the settings of the model of `run`, at its commit. Raises :class:`InputError`."""
    known = declared().families
    name = family_of(args.model) if args.family is None else args.family
    if args.family not in (None, NO_FAMILY, *known):
        raise InputError(f"--family {args.family}: expected {NO_FAMILY} or one of {', '.join(known)}")
    name = "" if name == NO_FAMILY else name
    family = known.get(name) or Family(models=[args.model], said={})
    if family.remote_code and not args.trust_remote_code:
        other = f"; {family.instead} is the same model without it" if family.instead else ""
        raise InputError(
            f"needs Python code of its own repository, which is not run unless --trust-remote-code is given{other}",
            path=args.model,
        )
    if args.trust_remote_code and not args.revision and not Path(args.model).is_dir():
        log.warning("--trust-remote-code without --revision runs whatever the repository holds today")
    opened = ModelSettings(
        args.model, revision=commit_of(args.model, args.revision), trust_remote_code=args.trust_remote_code
    )
    kind, plain = args.kind or kind_of_model(opened), model_file(opened, "modules.json") is None
    if kind == "cross":
        raise InputError("is a re-ranker (cross): `python -m baselines rerank --run RUN` takes it", path=args.model)
    values, sources = _chosen(args, name, family)
    # The pooling of a dual-encoder's own files is compared with the declaration afterwards; other kinds have none.
    if args.pooling is None and not (plain and kind == "dense"):
        values.pop("pooling", None)
    if args.similarity is None and (args.normalize is not None or kind != "dense"):
        values.pop("similarity", None)
    return Resolved(
        structs.replace(opened, **values), kind, name, {key: sources[key] for key in values}, family.pooling, plain
    )


def _chosen(args: argparse.Namespace, name: str, family: Family) -> tuple[dict[str, Any], dict[str, str]]:
    """(the values, the sources) of the settings that an option or the family has, by their names."""
    if args.prompt_name and args.query_prompt is not None:
        raise InputError("--prompt-name and --query-prompt both name the query's prompt; expected one of them")
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}

    def place(key: str) -> str:
        found = [declared().sources[source] for source in family.said[key].split(WITH)]
        return f"models.toml, {name}: {'; '.join('{repository}: {file}'.format(**source) for source in found)}"

    for key in (*_SHARED, *_OPTIONS):
        if (given := getattr(args, key, None)) is not None:
            values[key], sources[key] = given, f"--{'no-' if given is False else ''}{key.replace('_', '-')}"
        elif (value := getattr(family, key, None)) is not None:
            values[key], sources[key] = value, place(key)
    if args.prompt_name in family.prompts:
        values["query_prompt"] = family.prompts[args.prompt_name]
        sources["query_prompt"] = f"--prompt-name {args.prompt_name} of {place('prompts')}"
    elif args.prompt_name:
        values |= {"prompt_name": args.prompt_name, "query_prompt": None}
        sources |= {"prompt_name": "", "query_prompt": f"--prompt-name {args.prompt_name}, {OWN}"}
    return values, sources
