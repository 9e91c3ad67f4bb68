"""How a model is used, and who says so: an option, its family's declaration, or its own files."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from baselines.kinds.told import kind_told, model_file
from baselines.models.families import Family, families, family_of, places, read_families
from baselines.models.loading import commit_of
from baselines.models.settings import ModelSettings
from builders.core.errors import InputError, log

NO_FAMILY = "none"
OWN = "the model's own files"
# What both an option and a family may say.
_SHARED = ("query_prompt", "passage_prompt", "pooling", "max_length", "similarity", "last_token")
_OPTIONS = ("truncate_dim", "normalize")


@dataclass(frozen=True)
class Use:
    """How a model is used.

    Attributes:
        settings: of the model.
        kind: what the model is (:mod:`baselines.kinds`).
        family: its name in models.toml; empty where the model is of none.
        said: by the name of a setting, who says it: an option, or models.toml with the place of the value.
        plain: whether the model is an encoder without files of sentence-transformers: the library's defaults hold.
    """

    settings: ModelSettings
    kind: str
    family: str
    said: dict[str, str]
    plain: bool

    def says(self, key: str) -> str:
        """Who says a setting."""
        return self.said.get(key) or ("the library's default" if key == "pooling" and self.plain else OWN)


def use_of(args: argparse.Namespace) -> Use:
    """What the options and the declarations say of a model, at its commit. Raises :class:`InputError`."""
    name = _family_name(args)
    family = families().get(name) or Family(models=[args.model], said={})
    _expect_trusted(args, family)
    opened = ModelSettings(args.model, revision=commit_of(args.model, args.revision))
    kind, plain = args.kind or kind_told(opened), model_file(opened, "modules.json") is None
    if kind == "cross":
        raise InputError("is a re-ranker (cross): `python -m baselines rerank --run RUN` takes it", path=args.model)
    values, said = _chosen(args, name, family)
    # What a dual-encoder's own files say is compared with the declaration afterwards; other kinds have none.
    ignored = ["pooling"] * (args.pooling is None and not (plain and kind == "dense"))
    ignored += ["similarity"] * (args.similarity is None and (args.normalize is not None or kind != "dense"))
    for key in ignored:
        values.pop(key, None)
        said.pop(key, None)
    settings = replace(opened, trust_remote_code=args.trust_remote_code, **values)
    return Use(settings, kind, name, said, plain)


def _family_name(args: argparse.Namespace) -> str:
    if args.family is None:
        return family_of(args.model)
    if args.family != NO_FAMILY and args.family not in families():
        raise InputError(f"--family {args.family}: expected {NO_FAMILY} or one of {', '.join(families())}")
    return "" if args.family == NO_FAMILY else str(args.family)


def _expect_trusted(args: argparse.Namespace, family: Family) -> None:
    if family.remote_code and not args.trust_remote_code:
        other = f"; {family.instead} is the same model without it" if family.instead else ""
        raise InputError(
            f"needs Python code of its own repository, which is not run unless --trust-remote-code is given{other}",
            path=args.model,
        )
    if args.trust_remote_code and not args.revision and not Path(args.model).is_dir():
        log.warning("--trust-remote-code without --revision runs whatever the repository holds today")


def _chosen(args: argparse.Namespace, name: str, family: Family) -> tuple[dict[str, Any], dict[str, str]]:
    """(what is said of the settings, who says it)."""
    if args.prompt_name and args.query_prompt is not None:
        raise InputError("--prompt-name and --query-prompt both name the query's prompt; expected one of them")
    values: dict[str, Any] = {}
    said: dict[str, str] = {}
    declared = read_families().sources
    for key in _SHARED:
        if (given := getattr(args, key, None)) is not None:
            values[key], said[key] = given, option(key)
            _warn_of_backslash(option(key), given)
        elif (value := getattr(family, key)) is not None:
            values[key], said[key] = value, f"models.toml, {name}: {'; '.join(places(family, key, declared))}"
    if args.prompt_name in family.prompts:
        values["query_prompt"] = family.prompts[args.prompt_name]
        where = "; ".join(places(family, "prompts", declared))
        said["query_prompt"] = f"--prompt-name {args.prompt_name} of models.toml, {name}: {where}"
    elif args.prompt_name:
        values.pop("query_prompt", None)
        values["prompt_name"], said["query_prompt"] = args.prompt_name, f"--prompt-name {args.prompt_name}, {OWN}"
    for key in _OPTIONS:
        if (given := getattr(args, key)) is not None:
            values[key], said[key] = given, option(key, given)
    return values, said


def option(key: str, given: Any = None) -> str:
    """The option that says a setting."""
    return f"--{'no-' if given is False else ''}{key.replace('_', '-')}"


def _warn_of_backslash(name: str, given: Any) -> None:
    if isinstance(given, str) and "\\n" in given:
        log.warning("%s has a backslash and an n in it; a line break is written %s $'...\\n...'", name, name)
