"""Detect the kind of a model by its files: one vector per text, sparse, late interaction, or a re-ranker.

A model of sentence-transformers declares its kind. For a model with only files of transformers, the name of the model's
class decides. The family table ``models.toml`` lists encoders whose class is that of a language model.
"""

from pathlib import Path, PurePosixPath
from typing import Any

from huggingface_hub import hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from msgspec import Struct, field

from baselines.core.checkpoint import SETTINGS
from baselines.core.settings import ModelSettings
from baselines.retrieve.family_table import family_of
from baselines.retrieve.hub_models import commit_of
from baselines.retrieve.library_errors import convert_library_errors
from builders.core.errors import InputError
from builders.core.typed import read_json

MODULES = "modules.json"
RERANKER_KINDS = ("cross", "llm")
# Kind of model by the `model_type` that sentence-transformers and PyLate save.
_KIND_BY_TYPE = {
    "SentenceTransformer": "dense",
    "SparseEncoder": "sparse",
    "MultiVectorEncoder": "multi-vector",
    "ColBERT": "multi-vector",
    "CrossEncoder": "cross",
}
# Kind of model by a part of the types in modules.json, for models that were saved without a `model_type`.
_KIND_BY_MODULE = {
    ".cross_encoder.": "cross",
    ".sparse_encoder.": "sparse",
    ".multi_vector_encoder.": "multi-vector",
    "pylate.": "multi-vector",
}
# Kind of model by the end of the name of its class in transformers.
_KIND_BY_CLASS = {
    "ForSequenceClassification": "cross",
    "ForRanking": "cross",
    "ForCausalLM": "llm",
    "LMHeadModel": "llm",
    "ForConditionalGeneration": "llm",
    "HF_ColBERT": "multi-vector",
}
# The file in which sentence-transformers saves a transformer's lengths.
_LENGTHS_FILE = "sentence_bert_config.json"
# The file in which sentence-transformers saves the pooling of most models.
_POOLING_FILE = "1_Pooling/config.json"


# Fields of config.json, and of SETTINGS, the settings file of sentence-transformers.
class _Config(Struct):
    model_type: str | None = None
    architectures: list[str] | None = None
    saved_by: Any = field(default=None, name="__version__")  # versions of the libraries


class _Module(Struct):  # fields of each entry of modules.json
    type: str
    path: str = ""


def kind_of_model(settings: ModelSettings, family_name: str = "") -> str:
    """Return the kind of a model: dense, static, sparse, multi-vector, cross (cross-encoder) or llm (language model).

    A plain model of a family in models.toml is dense, because the table has only encoders. ``family_name`` is the
    family that an option names (default: by the model's name). Raises :class:`InputError` for an incomplete copy of a
    model.
    """
    config = _read_config(settings, SETTINGS)
    modules_file = model_file(settings, MODULES)
    if modules_file is None:
        _expect_plain(settings, config)
        # A SentenceTransformer without its list of modules is opened like a plain model: its family or class decides.
        if config.model_type in _KIND_BY_TYPE and config.model_type != "SentenceTransformer":
            return _KIND_BY_TYPE[config.model_type]
        if family_name or family_of(settings.name):
            return "dense"
        return _kind_of_class(settings)
    modules = read_json(modules_file, list[_Module])
    model_kind = _KIND_BY_TYPE.get(config.model_type or "") or _kind_of_modules(modules)
    if model_kind == "dense" and modules and modules[0].type.endswith(".StaticEmbedding"):
        return "static"
    return model_kind


def declared_class(settings: ModelSettings) -> str:
    """Return the class of sentence-transformers or PyLate that saved a model, or "" if the model's files name none."""
    return _read_config(settings, SETTINGS).model_type or ""


def kind_of_reranker(settings: ModelSettings) -> str:
    """Return the kind of a re-ranker by its class in transformers: llm for a language model, else cross."""
    return "llm" if _kind_of_class(settings) == "llm" else "cross"


def kind_of_scorer(settings: ModelSettings, family_name: str = "") -> str:
    """Return the kind of a model that scores candidates: :func:`kind_of_model`, or llm for one kind of cross-encoder.

    This is a language model that was saved as a CrossEncoder of sentence-transformers. :func:`kind_of_model` returns
    cross for such a model.
    """
    model_kind = kind_of_model(settings, family_name)
    if model_kind == "cross":
        return kind_of_reranker(settings)
    return model_kind


def expect_encoder(settings: ModelSettings) -> str:
    """Return the kind of a dual-encoder: dense or static. Raises :class:`InputError` for another kind of model."""
    model_kind = kind_of_model(settings)
    if model_kind in RERANKER_KINDS:
        advice = "re-rank a run with it by `rerank`, or by `run --over RUN`"
        raise InputError(f"is a re-ranker ({model_kind}); expected an encoder; {advice}", path=settings.name)
    if model_kind not in ("dense", "static"):
        raise InputError(
            f"is a model of kind {model_kind}; expected one vector per text; search with it by `run`",
            path=settings.name,
        )
    return model_kind


def expect_complete_copy(settings: ModelSettings) -> None:
    """Raise :class:`InputError` if the cache may lack a file without which the libraries would use their defaults.

    The libraries themselves report missing weights, vocabularies and poolings.
    """
    if Path(settings.name).is_dir():
        return
    for file_name in (SETTINGS, "tokenizer_config.json"):
        model_file(settings, file_name)  # raises the error
    modules_file = model_file(settings, MODULES)
    if modules_file is None:
        return
    for module in read_json(modules_file, list[_Module]):
        if module.type.endswith(".Transformer"):
            model_file(settings, str(PurePosixPath(module.path, _LENGTHS_FILE)))


def is_plain(settings: ModelSettings) -> bool:
    """True for a model without files of sentence-transformers."""
    return model_file(settings, MODULES) is None


def model_file(settings: ModelSettings, file_name: str) -> Path | None:
    """Return the path of a model's file, which is downloaded from the hub if necessary. None if the model lacks it.

    Raises :class:`InputError` if the hub cannot be asked for a file that the cached copy lacks.
    """
    if Path(settings.name).is_dir():
        path = Path(settings.name, file_name)
        return path if path.is_file() else None
    commit = commit_of(settings.name, settings.revision)
    cached_path = try_to_load_from_cache(settings.name, file_name, revision=commit)
    if isinstance(cached_path, str):
        return Path(cached_path)
    # The cache remembers files that a commit does not have: the library then returns a mark instead of a path.
    if cached_path is not None or _is_listed_absent(settings.name, commit, file_name):
        return None
    with convert_library_errors(f"{settings.name}: {file_name} cannot be read"):
        try:
            return Path(hf_hub_download(settings.name, file_name, revision=commit))
        except LocalEntryNotFoundError as error:
            problem = _describe_incomplete_copy(settings.name, commit, file_name)
            raise InputError(problem, path=settings.name) from error
        except EntryNotFoundError:
            return None


def _is_listed_absent(model_name: str, commit: str, file_name: str) -> bool:
    """True if the cache has the list of a commit's files, and the list lacks a file."""
    try:
        from huggingface_hub import get_cached_repo_tree
        from huggingface_hub.errors import CachedRepoTreeNotFoundError
    except ImportError:  # earlier versions of the library save no list
        return False
    try:
        return all(entry.path != file_name for entry in get_cached_repo_tree(model_name, revision=commit))
    except CachedRepoTreeNotFoundError:
        return False


def _describe_incomplete_copy(model_name: str, commit: str, file_name: str) -> str:
    """Describe, for an error, that the cached copy of a model lacks a file, and what to do."""
    config_file = try_to_load_from_cache(model_name, "config.json", revision=commit)
    folder = "its folder in the cache"
    if isinstance(config_file, str):
        folder = str(Path(config_file).parent)
    return (
        f"the cached copy lacks {file_name}, and the hub cannot be asked if the model has this file; download the "
        f"model again with a connection (`hf download {model_name}`), or name {folder} if this folder is complete"
    )


def _expect_plain(settings: ModelSettings, config: _Config) -> None:
    """Raise :class:`InputError` for a folder that has files of sentence-transformers, but lacks the list of modules."""
    folder = Path(settings.name)
    if not folder.is_dir():
        return
    saved_file = SETTINGS if config.saved_by else ""
    if (folder / _POOLING_FILE).is_file():
        saved_file = _POOLING_FILE
    if saved_file:
        problem = f"has {saved_file} of sentence-transformers, but no {MODULES}; copy all files of the model"
        raise InputError(problem, path=settings.name)


def _kind_of_modules(modules: list[_Module]) -> str:
    """Return the kind of a model by the types in modules.json."""
    for module in modules:
        for type_part, model_kind in _KIND_BY_MODULE.items():
            if type_part in module.type:
                return model_kind
    return "dense"


def _kind_of_class(settings: ModelSettings) -> str:
    """Return the kind of a plain model by the name of its class in transformers."""
    for class_name in _read_config(settings, "config.json").architectures or []:
        for name_end, model_kind in _KIND_BY_CLASS.items():
            if class_name.endswith(name_end):
                return model_kind
    return "dense"


def _read_config(settings: ModelSettings, file_name: str) -> _Config:
    """Read a config of a model. A missing file counts as an empty config."""
    config_path = model_file(settings, file_name)
    return read_json(config_path, _Config) if config_path else _Config()
