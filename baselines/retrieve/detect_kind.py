"""The kind of a model, read from the model's own files."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from sentence_transformers.util.file_io import load_file_path

from baselines.retrieve.hub_models import commit_of
from baselines.retrieve.model_checks import opening
from baselines.retrieve.settings import ModelSettings
from builders.core.errors import InputError
from builders.core.typed import read_json

_SAVED = "config_sentence_transformers.json"
# What sentence-transformers and PyLate write as `model_type` of what they save.
_BY_TYPE = {
    "SentenceTransformer": "dense",
    "SparseEncoder": "sparse",
    "MultiVectorEncoder": "multi-vector",
    "ColBERT": "multi-vector",
    "CrossEncoder": "cross",
}


class _Config(Struct):
    """The fields of a model's JSON files that are read: of ``_SAVED``, of ``config.json``."""

    model_type: str | None = None
    architectures: list[str] | None = None


class _Module(Struct):
    """The field of an entry of ``modules.json`` that is read."""

    type: str


def kind_of_model(settings: ModelSettings) -> str:
    """dense, static, sparse, multi-vector or cross; dense where a model's files do not say (a plain encoder's)."""
    kind = _BY_TYPE.get(_config(settings, _SAVED).model_type or "", "dense")
    modules = model_file(settings, "modules.json")
    if kind == "dense" and modules:
        names = [module.type.rpartition(".")[2] for module in read_json(modules, list[_Module])]
        return "static" if names[:1] == ["StaticEmbedding"] else kind
    return kind


def kind_of_reranker(settings: ModelSettings) -> str:
    """llm of a language model, else cross."""
    names = _config(settings, "config.json").architectures or []
    return "llm" if any(name.endswith("ForCausalLM") for name in names) else "cross"


def expect_saved_as(kind: str, folder: Path) -> None:
    """Refuse a local checkpoint of another class: it would be converted, with a random classifier, or with none."""
    config = folder / _SAVED
    if config.is_file() and (saved := read_json(config, _Config).model_type or kind) != kind:
        raise InputError(f"holds a {saved}; expected a {kind}", path=folder)


def model_file(settings: ModelSettings, name: str) -> Path | None:
    """A file of the model, from its folder, the hub or the libraries' cache; None where it has none of that name."""
    commit = commit_of(settings.name, settings.revision) or None
    with opening(f"{settings.name}: {name} cannot be read", lambda *_: True):
        found = load_file_path(settings.name, name, revision=commit)
    return Path(found) if found else None


def _config(settings: ModelSettings, name: str) -> _Config:
    path = model_file(settings, name)
    return read_json(path, _Config) if path else _Config()
