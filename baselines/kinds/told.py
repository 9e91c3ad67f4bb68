"""Which kind a model is, by its own files."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from sentence_transformers.util.file_io import load_file_path

from baselines.models.loading import commit_of
from baselines.models.opening import opening
from baselines.models.settings import ModelSettings
from builders.core.typed import read_json

# What sentence-transformers and PyLate write as `model_type` of what they save.
_BY_TYPE = {
    "SentenceTransformer": "dense",
    "SparseEncoder": "sparse",
    "MultiVectorEncoder": "multi-vector",
    "ColBERT": "multi-vector",
    "CrossEncoder": "cross",
}


class _Saved(Struct):
    """What is asked of ``config_sentence_transformers.json``."""

    model_type: str = "SentenceTransformer"


class _Module(Struct):
    """What is asked of an entry of ``modules.json``."""

    type: str


class _Config(Struct):
    """What is asked of ``config.json``."""

    architectures: list[str] | None = None


def kind_told(settings: ModelSettings) -> str:
    """dense, static, sparse, multi-vector or cross; dense where a model's files do not say (a plain encoder's)."""
    saved = model_file(settings, "config_sentence_transformers.json")
    kind = _BY_TYPE.get(read_json(saved, _Saved).model_type, "dense") if saved else "dense"
    modules = model_file(settings, "modules.json")
    if kind == "dense" and modules:
        names = [module.type.rpartition(".")[2] for module in read_json(modules, list[_Module])]
        return "static" if names[:1] == ["StaticEmbedding"] else kind
    return kind


def reranker_told(settings: ModelSettings) -> str:
    """llm of a language model, else cross."""
    config = model_file(settings, "config.json")
    names = (read_json(config, _Config).architectures or []) if config else []
    return "llm" if any(name.endswith("ForCausalLM") for name in names) else "cross"


def model_file(settings: ModelSettings, name: str) -> Path | None:
    """A file of the model, from its folder, the hub or the libraries' cache; None where it has none of that name."""
    commit = commit_of(settings.name, settings.revision) or None
    with opening(f"{settings.name}: {name} cannot be read", lambda *_: True):
        found = load_file_path(settings.name, name, revision=commit)
    return Path(found) if found else None
