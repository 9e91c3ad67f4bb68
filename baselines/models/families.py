"""``models.toml``: how families of models are used, each value with the place where it is said."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct, structs

from builders.core.errors import InputError
from builders.core.files import read_toml
from builders.core.typed import typed

FAMILIES = Path(__file__).parents[1] / "models.toml"
_Text = Annotated[str, Meta(min_length=1)]
# Of a family, what is no value that somebody says.
_OTHER = ("models", "said")
_WITH = " with "  # a value of two sources: a template of the one, the words in it of the other


class Source(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a value is said: a ``file`` (or issue) of a ``repository``, at the ``commit`` where it was read."""

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
        """What is declared, by its key."""
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


def places(family: Family, key: str, sources: dict[str, Source]) -> list[str]:
    """The repositories and files that say a value of a family."""
    return [f"{sources[name].repository}: {sources[name].file}" for name in family.said[key].split(_WITH)]


def table() -> str:
    """The families as a table in Markdown, for docs/run.md."""
    titles = ("family", "models", "before a query", "before a passage", "pooling", "tokens")
    rows = [titles, ("---",) * len(titles)]
    for name, family in families().items():
        prompts = (_shown(family.query_prompt), _shown(family.passage_prompt))
        length = "" if family.max_length is None else f"{family.max_length:,}"
        rows.append((name, ", ".join(family.models), *prompts, family.pooling or "its own", length))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _shown(prompt: str | None) -> str:
    return "nothing" if not prompt else f"`{json.dumps(prompt, ensure_ascii=False)}`"
