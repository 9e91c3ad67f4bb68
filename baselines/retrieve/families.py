"""Resolve the settings of a model from options, the family table ``models.toml``, or the model's files."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from baselines.core.checkpoint import RECIPE
from baselines.core.run_manifest import describe_run, describe_search
from baselines.core.settings import ModelOptions, ModelSettings
from baselines.retrieve.devices import Work
from baselines.retrieve.endpoint_models import describe_endpoint_settings, open_endpoint_encoder
from baselines.retrieve.family_table import NO_FAMILY, Family, check_family, family_of, read_families
from baselines.retrieve.hub_models import commit_of
from baselines.retrieve.model_files import shown_name
from baselines.retrieve.model_kinds import RERANKER_KINDS, is_plain, kind_of_model
from baselines.retrieve.vector_index import Retriever, open_retriever
from builders.core.cache import writable_cache
from builders.core.errors import InputError, log
from builders.core.folders import key_of
from builders.store.layout import SETS
from builders.store.own_queries import OwnQueries
from builders.store.reader import Release

OWN = "the model's own files"
# Separates the two sources of a prompt: of its template, and of the words that fill the template.
WITH = " with "
# Settings that options and families have, and settings that only options have.
_SHARED_SETTINGS = ("query_prompt", "passage_prompt", "pooling", "max_length", "similarity", "last_token")
_OPTION_SETTINGS = ("truncate_dim", "normalize")
# Libraries that compute on this machine when a model is behind an endpoint.
_ENDPOINT_PACKAGES = ("numpy",)


@dataclass(frozen=True)
class ResolvedModel:
    """The resolved settings of a model.

    Attributes:
        settings: the settings of the options and the family. The model's files determine all others.
        kind: a key of :data:`.vector_index.RETRIEVERS`.
        family: name of the family in models.toml, or "".
        sources: the source of each setting: an option, or models.toml with the repository and file that it cites.
        pooling: the family's pooling, even if an option has another pooling. None if the family has none.
        plain: True if the model has no files of sentence-transformers, so that the library chooses the pooling.
    """

    settings: ModelSettings
    kind: str
    family: str
    sources: dict[str, str]
    pooling: str | None
    plain: bool

    def source(self, setting_name: str) -> str:
        """Return the source of a setting: an option, models.toml, the library's default or the model's own files."""
        source = self.sources.get(setting_name)
        if source:
            return source
        return "the library's default" if setting_name == "pooling" and self.plain else OWN


def resolve_settings(model_name: str, options: ModelOptions) -> ResolvedModel:
    """Resolve the settings and the commit of a model that searches.

    Pooling is taken from the option, else from the model's files, else from models.toml.

    Raises:
        InputError: the family is unknown or needs remote code, the model cannot be read, or is a re-ranker.
    """
    check_family(model_name, options.family, trust_remote_code=options.trust_remote_code)
    family_name = family_of(model_name) if options.family is None else options.family
    if family_name == NO_FAMILY:
        family_name = ""
    # For a model without a family: all settings of this family are None.
    family = read_families().families.get(family_name) or Family(models=[model_name], said={})
    if options.trust_remote_code and not options.revision and not Path(model_name).is_dir():
        log.warning("--trust-remote-code without --revision runs the repository's latest code; add --revision COMMIT")

    # Detect the kind of the model by its files.
    base_settings = ModelSettings(
        model_name, revision=commit_of(model_name, options.revision), trust_remote_code=options.trust_remote_code
    )
    model_kind = options.kind or kind_of_model(base_settings, family_name)
    has_only_transformer = is_plain(base_settings)
    if model_kind in RERANKER_KINDS:
        problem = f"is a re-ranker ({model_kind}); add --over RUN, the run to re-rank"
        if has_only_transformer:
            problem += ", or --kind dense if the model is an encoder"
        raise InputError(problem, path=model_name)

    # Choose the values of the settings.
    values, sources = _choose_values(options, family_name, family)
    # A family's pooling replaces only the library's default. prepare_search() warns if the model's files have another.
    if options.pooling is None and not (has_only_transformer and model_kind == "dense"):
        values.pop("pooling", None)
    # A family's similarity is that of its dense models. --normalize and --no-normalize determine another similarity.
    if options.similarity is None and (options.normalize is not None or model_kind != "dense"):
        values.pop("similarity", None)
    return ResolvedModel(
        settings=structs.replace(base_settings, **values),
        kind=model_kind,
        family=family_name,
        sources={key: sources[key] for key in values},
        pooling=family.pooling,
        plain=has_only_transformer,
    )


@dataclass(frozen=True)
class ModelSearch:
    """An opened model that searches a release's passages.

    Attributes:
        record: everything that affects a run of the model, for the run's manifest.
        retriever: the model.
        index_folder: directory of the model's index.
    """

    record: dict[str, Any]
    retriever: Retriever
    index_folder: Path


def prepare_search(
    *,
    model: str,
    options: ModelOptions,
    work: Work,
    release: Release,
    set_name: str,
    split: str,
    top_k: int,
    index: Path | None = None,
    own_queries: OwnQueries | None = None,
) -> ModelSearch:
    """Open a model to search by the queries of a split.

    Args:
        model: hub name or folder, or name at the endpoint of ``options``.
        top_k: passages per query, for the record.
        index: directory of the index (default: in the cache).
        own_queries: queries that the release lacks, in place of the split's.

    Raises:
        InputError: the errors of :func:`resolve_settings`, or the model cannot be opened.
    """
    if options.endpoint is not None:
        return _prepare_endpoint_search(
            model=model,
            options=options,
            release=release,
            set_name=set_name,
            split=split,
            top_k=top_k,
            index=index,
            own_queries=own_queries,
        )
    resolved = resolve_settings(model, options)
    retriever = open_retriever(resolved.settings, work, resolved.kind)
    model_facts = dict(retriever.result_inputs)

    # The index depends on the model and the passages, so both determine its default folder.
    corpus = SETS[set_name].corpus
    index_key = key_of([retriever.kind, model_facts, corpus, release.fingerprint(corpus, "corpus")])
    index_folder = index or writable_cache("indexes") / index_key
    log.info("index: %s", index_folder)

    used_settings = {}
    for key, value in model_facts.pop("used").items():
        used_settings[key] = {"value": value, "says": resolved.source(key)}
    _report_unusual_settings(model, resolved, used_settings)
    index_folder.parent.mkdir(parents=True, exist_ok=True)

    # Record everything that affects the run.
    model_record: dict[str, Any] = {
        "name": shown_name(model),
        "commit": resolved.settings.revision,
        "family": resolved.family or NO_FAMILY,
        "trust_remote_code": resolved.settings.trust_remote_code,
    }
    model_record.update(model_facts)
    search_record: dict[str, Any] = {"used": used_settings}
    search_record.update(
        describe_search(
            release, kind=resolved.kind, set_name=set_name, split=split, top_k=top_k, own_queries=own_queries
        )
    )
    return ModelSearch(describe_run(model_record, search_record), retriever, index_folder)


def _prepare_endpoint_search(
    *,
    model: str,
    options: ModelOptions,
    release: Release,
    set_name: str,
    split: str,
    top_k: int,
    index: Path | None,
    own_queries: OwnQueries | None,
) -> ModelSearch:
    """Open a model behind an endpoint for :func:`prepare_search`."""
    retriever = open_endpoint_encoder(model, options)
    # The default folder depends on the vectors of passages, and on the service: another one may round otherwise. Models
    # for queries share an index.
    corpus = SETS[set_name].corpus
    index_key = key_of(
        ["endpoint", retriever.url, retriever.result_inputs, corpus, release.fingerprint(corpus, "corpus")]
    )
    index_folder = index or writable_cache("indexes") / index_key
    log.info("index: %s", index_folder)
    index_folder.parent.mkdir(parents=True, exist_ok=True)

    model_record = {"name": model, "commit": "", "family": NO_FAMILY, **retriever.result_inputs}
    model_record["queries"] = retriever.query_facts
    search_record: dict[str, Any] = {"used": describe_endpoint_settings(options)}
    search_record |= describe_search(
        release, kind=retriever.kind, set_name=set_name, split=split, top_k=top_k, own_queries=own_queries
    )
    return ModelSearch(describe_run(model_record, search_record, _ENDPOINT_PACKAGES), retriever, index_folder)


def _report_unusual_settings(model_name: str, resolved: ResolvedModel, used_settings: dict[str, Any]) -> None:
    """Log that a model has no family, or that its files have another pooling than its family.

    ``used_settings`` has the ``value`` of each setting and its source (``says``), by the setting's name.
    """
    if not resolved.family:
        # `train` wrote the settings into the files of its checkpoints, so they need no family.
        level = logging.INFO if (Path(model_name) / RECIPE).is_file() else logging.WARNING
        log.log(level, "%s has no family in models.toml; its settings are from options and its files", model_name)
        return
    pooling = used_settings["pooling"]["value"]
    if used_settings["pooling"]["says"] != OWN or pooling is None or resolved.pooling is None:
        return
    if pooling != resolved.pooling:
        log.warning(
            "%s: the model's files have pooling %s, but models.toml (%s) has %s; the model's files are used",
            model_name,
            pooling,
            resolved.family,
            resolved.pooling,
        )


def _choose_values(options: ModelOptions, family_name: str, family: Family) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the value and the source of every setting that an option or the family sets, by the setting's name."""
    prompt_name = options.prompt_name
    if prompt_name and options.query_prompt is not None:
        raise InputError("--prompt-name and --query-prompt both set the query's prompt; expected one of them")
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key in (*_SHARED_SETTINGS, *_OPTION_SETTINGS):
        option_value = getattr(options, key, None)  # last_token has no option
        family_value = getattr(family, key, None)
        if option_value is not None:
            prefix = "no-" if option_value is False else ""
            values[key] = option_value
            sources[key] = f"--{prefix}{key.replace('_', '-')}"
        elif family_value is not None:
            values[key] = family_value
            sources[key] = _family_source(family_name, family, key)

    # A prompt's name selects a prompt of the family, or else of the model's files.
    if prompt_name is not None and prompt_name in family.prompts:
        values["query_prompt"] = family.prompts[prompt_name]
        sources["query_prompt"] = f"--prompt-name {prompt_name} of {_family_source(family_name, family, 'prompts')}"
    elif prompt_name:
        values["prompt_name"] = prompt_name
        # A family's prompt would be used in place of the named prompt.
        values["query_prompt"] = None
        sources["prompt_name"] = ""  # only the prompt itself is reported, with its source
        sources["query_prompt"] = f"--prompt-name {prompt_name}, {OWN}"
    return values, sources


def _family_source(family_name: str, family: Family, setting_name: str) -> str:
    """Return the source of a family's setting: models.toml, and the repositories and files that models.toml cites.

    ``setting_name`` is a key of ``family.said``.
    """
    citations = []
    for source_name in family.said[setting_name].split(WITH):
        source = read_families().sources[source_name]
        citations.append(f"{source['repository']}: {source['file']}")
    return f"models.toml, {family_name}: {'; '.join(citations)}"
