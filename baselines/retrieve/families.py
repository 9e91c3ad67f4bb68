"""``models.toml``: the settings of families of models, each with its source; the settings that `run` uses."""

from __future__ import annotations

import argparse
import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct, structs

from baselines.retrieve.detect_kind import kind_of_model, model_file
from baselines.retrieve.hub_models import commit_of
from baselines.retrieve.settings import ModelSettings
from builders.core.errors import InputError, log
from builders.core.files import read_toml
from builders.core.typed import typed

FAMILIES = Path(__file__).parents[1] / "models.toml"
_Text = Annotated[str, Meta(min_length=1)]
# Of a family, what is no value that somebody says.
_OTHER = ("models", "said")
NO_FAMILY = "none"
OWN = "the model's own files"
# What both an option and a family may say.
_SHARED = ("query_prompt", "passage_prompt", "pooling", "max_length", "similarity", "last_token")
_OPTIONS = ("truncate_dim", "normalize")
_WITH = " with "  # a value of two sources: a template of the one, the words in it of the other


class Source(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The source of a value: a ``file`` (or issue) of a ``repository``, at the ``commit`` where it was read."""

    repository: _Text
    file: _Text
    commit: Annotated[str, Meta(pattern=r"\A([0-9a-f]{40})?\Z")] = ""
    note: str = ""


class Family(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Models that are used alike; ``None``: their own files decide. The values are explained in ``models.toml``.

    Attributes:
        said: by a value's key, the names of its sources, one or two with " with " between them.
    """

    models: Annotated[list[_Text], Meta(min_length=1)]
    said: dict[str, str]
    query_prompt: str | None = None
    passage_prompt: str | None = None
    prompts: dict[str, str] = {}
    pooling: Literal["cls", "mean", "lasttoken"] | None = None
    max_length: Annotated[int, Meta(ge=8)] | None = None
    similarity: Literal["cosine", "dot"] | None = None
    last_token: _Text | None = None
    remote_code: bool = False
    instead: _Text | None = None

    @property
    def values(self) -> dict[str, Any]:
        """The declared values, by key."""
        every = structs.asdict(self).items()
        return {key: value for key, value in every if key not in _OTHER and value not in (None, False, {})}


class _Tables(Struct, frozen=True, forbid_unknown_fields=True):
    """The file, before its tables are looked at one by one: an error then names the table."""

    families: dict[str, dict[str, Any]]
    sources: dict[str, dict[str, Any]]


class Declared(NamedTuple):
    """All families, by name, and the sources that they name."""

    families: dict[str, Family]
    sources: dict[str, Source]


def read_families(path: Path = FAMILIES) -> Declared:
    """Read the declarations.

    :class:`InputError` for a value without a source, a source that is not there or that nothing names, and for a model
    of two families.
    """
    tables = typed(read_toml(path), _Tables, path)
    found = Declared(
        {name: typed(table, Family, f"{path}: families.{name}") for name, table in tables.families.items()},
        {name: typed(table, Source, f"{path}: sources.{name}") for name, table in tables.sources.items()},
    )
    named: set[str] = set()
    seen: dict[str, str] = {}
    for name, family in found.families.items():
        if wrong := family.values.keys() ^ family.said.keys():
            raise InputError(f"families.{name}: {min(wrong)}: expected a value and, in `said`, its source", path=path)
        for key, said in family.said.items():
            for source in said.split(_WITH):
                if source not in found.sources:
                    raise InputError(f"families.{name}.said.{key}: no source is named {source!r}", path=path)
                named.add(source)
        for model in family.models:
            if (other := seen.setdefault(model.casefold(), name)) != name:
                raise InputError(f"families.{name}: {model} is of {other}, too", path=path)
    if unused := found.sources.keys() - named:
        raise InputError(f"sources.{min(unused)}: no value has it as its source", path=path)
    return found


@functools.cache
def families() -> dict[str, Family]:
    """The declarations that come with the project, by name."""
    return read_families().families


def family_of(model: str) -> str:
    """The name of a model's family; empty where none is declared.

    Names on the hub are compared without regard to case. Of a folder its own name counts: ``models/bge-small-zh-v1.5``
    is taken for the model of that name, and where two have it for the one that needs no code of its own.
    """
    is_folder = Path(model).is_dir()
    wanted = (Path(os.path.abspath(model)).name if is_folder else model).casefold()  # a link is known by its own name
    found = [
        (family.remote_code, name)
        for name, family in families().items()
        if wanted in ((each.rpartition("/")[2] if is_folder else each).casefold() for each in family.models)
    ]
    return min(found)[1] if found else ""


@dataclass(frozen=True)
class Resolved:
    """The settings of a model, resolved from the options, the declaration of its family, and its own files.

    Attributes:
        settings: of the model.
        kind: of the model (:mod:`.kinds`).
        family: its name in models.toml; empty where the model is of none.
        sources: by the name of a setting, where it comes from: an option, or models.toml with the place of the value.
        plain: True if the model is an encoder without files of sentence-transformers: the library's defaults hold.
    """

    settings: ModelSettings
    kind: str
    family: str
    sources: dict[str, str]
    plain: bool

    def source(self, key: str) -> str:
        """The source of a setting."""
        return self.sources.get(key) or ("the library's default" if key == "pooling" and self.plain else OWN)


def resolve(args: argparse.Namespace) -> Resolved:
    """Resolve the settings of the model of `run`, at its commit. Raises :class:`InputError`."""
    name = family_of(args.model) if args.family is None else args.family
    if args.family not in (None, NO_FAMILY, *families()):
        raise InputError(f"--family {args.family}: expected {NO_FAMILY} or one of {', '.join(families())}")
    name = "" if name == NO_FAMILY else name
    family = families().get(name) or Family(models=[args.model], said={})
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
    found = _chosen(args, name, family)
    # The pooling of a dual-encoder's own files is compared with the declaration afterwards; other kinds have none.
    if args.pooling is None and not (plain and kind == "dense"):
        found.pop("pooling", None)
    if args.similarity is None and (args.normalize is not None or kind != "dense"):
        found.pop("similarity", None)
    values, sources = ({key: pair[place] for key, pair in found.items()} for place in (0, 1))
    return Resolved(opened.but(**values), kind, name, sources, plain)


def _chosen(args: argparse.Namespace, name: str, family: Family) -> dict[str, tuple[Any, str]]:
    """By the name of a setting: (its value, its source), where an option or the family has it."""
    if args.prompt_name and args.query_prompt is not None:
        raise InputError("--prompt-name and --query-prompt both name the query's prompt; expected one of them")
    found: dict[str, tuple[Any, str]] = {}

    def declared(key: str) -> str:
        sources = [read_families().sources[source] for source in family.said[key].split(_WITH)]
        return f"models.toml, {name}: {'; '.join(f'{source.repository}: {source.file}' for source in sources)}"

    for key in (*_SHARED, *_OPTIONS):
        option = f"--{key.replace('_', '-')}"
        if (given := getattr(args, key, None)) is not None:
            found[key] = given, "--no-normalize" if given is False else option
            if isinstance(given, str) and "\\n" in given:
                message = "%s has a backslash and an n in it; a line break is written %s $'...\\n...'"
                log.warning(message, option, option)
        elif (value := getattr(family, key, None)) is not None:
            found[key] = value, declared(key)
    if args.prompt_name in family.prompts:
        source = f"--prompt-name {args.prompt_name} of {declared('prompts')}"
        found["query_prompt"] = family.prompts[args.prompt_name], source
    elif args.prompt_name:
        found.pop("query_prompt", None)
        found["prompt_name"] = args.prompt_name, ""
        found["query_prompt"] = None, f"--prompt-name {args.prompt_name}, {OWN}"
    return found
