"""Resolve the settings of a model from options, the family table ``models.toml``, or the model's files."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from baselines.core.checkpoint import RECIPE
from baselines.core.run_manifest import describe_search, record
from baselines.core.settings import ModelOptions, ModelSettings
from baselines.retrieve.devices import Work
from baselines.retrieve.family_table import NO_FAMILY, Family, check_family, declared, family_of
from baselines.retrieve.hub_models import commit_of
from baselines.retrieve.model_files import shown_name
from baselines.retrieve.model_kinds import RERANKER_KINDS, is_plain, kind_of_model
from baselines.retrieve.vector_index import Retriever, open_retriever
from builders.core.cache import writable_cache
from builders.core.errors import InputError, log
from builders.core.folders import key_of
from builders.store.layout import SETS
from builders.store.reader import Release

OWN = "the model's own files"
WITH = " with "  # joins the source of a prompt's template and the source of the words that fill the template


@dataclass(frozen=True)
class Resolved:
    """The resolved settings of a model.

    Attributes:
        kind: a key of :data:`.vector_index.RETRIEVERS`.
        family: name of the family in models.toml, or "".
        sources: the source of each setting: an option, or models.toml with the repository and file that it cites.
        pooling: the family's pooling, even if an option has another pooling.
        plain: True for an encoder without files of sentence-transformers. The library's defaults apply to its pooling.
    """

    settings: ModelSettings
    kind: str
    family: str
    sources: dict[str, str]
    pooling: str | None
    plain: bool

    def source(self, key: str) -> str:
        return self.sources.get(key) or ("the library's default" if key == "pooling" and self.plain else OWN)


def resolve(model: str, options: ModelOptions) -> Resolved:
    """Resolve the settings and the commit of a model that searches. Raises :class:`InputError`."""
    known = declared().families
    check_family(model, options.family, trust_remote_code=options.trust_remote_code)
    name = family_of(model) if options.family is None else options.family
    name = "" if name == NO_FAMILY else name
    family = known.get(name) or Family(models=[model], said={})
    if options.trust_remote_code and not options.revision and not Path(model).is_dir():
        log.warning("--trust-remote-code without --revision runs the repository's latest code; add --revision COMMIT")
    unset = ModelSettings(
        model, revision=commit_of(model, options.revision), trust_remote_code=options.trust_remote_code
    )
    kind = options.kind or kind_of_model(unset, name)
    has_only_transformer = is_plain(unset)
    if kind in RERANKER_KINDS:
        other = ", or --kind dense if the model is an encoder" if has_only_transformer else ""
        raise InputError(f"is a re-ranker ({kind}); add --over RUN, the run to re-rank{other}", path=model)
    values, sources = _choose_values(options, name, family)
    # A family's pooling replaces only the library's default. prepare_search() warns if the model's files have another.
    if options.pooling is None and not (has_only_transformer and kind == "dense"):
        values.pop("pooling", None)
    if options.similarity is None and (options.normalize is not None or kind != "dense"):
        values.pop("similarity", None)
    return Resolved(
        settings=structs.replace(unset, **values),
        kind=kind,
        family=name,
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
) -> ModelSearch:
    """Open a model to search by the queries of a split. ``index``: directory of the index (None: in the cache)."""
    resolved, corpus = resolve(model, options), SETS[set_name].corpus
    retriever = open_retriever(resolved.settings, work, resolved.kind)
    about = dict(retriever.about)
    index_key = key_of([retriever.kind, about, corpus, release.fingerprint(corpus, "corpus")])
    folder = index or writable_cache("indexes") / index_key
    log.info("index: %s", folder)
    used = {key: {"value": value, "says": resolved.source(key)} for key, value in about.pop("used").items()}
    if not resolved.family:
        # `train` wrote the settings into the files of its checkpoints, so they need no family.
        level = logging.INFO if (Path(model) / RECIPE).is_file() else logging.WARNING
        log.log(level, "%s has no family in models.toml; its settings are from options and its files", model)
    elif (own := used["pooling"])["says"] == OWN and own["value"] not in (None, resolved.pooling or own["value"]):
        log.warning(
            "%s: the model's files have pooling %s, but models.toml (%s) has %s; the model's files are used",
            *(model, own["value"], resolved.family, resolved.pooling),
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    model_record = {
        "name": shown_name(model),
        "commit": resolved.settings.revision,
        "family": resolved.family or NO_FAMILY,
        "trust_remote_code": resolved.settings.trust_remote_code,
        **about,
    }
    search = describe_search(release, kind=resolved.kind, set_name=set_name, split=split, top_k=top_k)
    return ModelSearch(record(model_record, {"used": used, **search}), retriever, folder)


def _choose_values(options: ModelOptions, name: str, family: Family) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the value and the source of every setting that an option or the family sets, by the setting's name."""
    prompt_name = options.prompt_name
    if prompt_name and options.query_prompt is not None:
        raise InputError("--prompt-name and --query-prompt both set the query's prompt; expected one of them")
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}

    def place(key: str) -> str:
        found = [declared().sources[source] for source in family.said[key].split(WITH)]
        return f"models.toml, {name}: {'; '.join('{repository}: {file}'.format(**source) for source in found)}"

    shared = ("query_prompt", "passage_prompt", "pooling", "max_length", "similarity", "last_token")
    for key in (*shared, "truncate_dim", "normalize"):  # families have only the shared settings
        if (given := getattr(options, key, None)) is not None:
            values[key], sources[key] = given, f"--{'no-' if given is False else ''}{key.replace('_', '-')}"
        elif (value := getattr(family, key, None)) is not None:
            values[key], sources[key] = value, place(key)
    if prompt_name is not None and prompt_name in family.prompts:
        values["query_prompt"] = family.prompts[prompt_name]
        sources["query_prompt"] = f"--prompt-name {prompt_name} of {place('prompts')}"
    elif prompt_name:
        values |= {"prompt_name": prompt_name, "query_prompt": None}
        sources |= {"prompt_name": "", "query_prompt": f"--prompt-name {prompt_name}, {OWN}"}
    return values, sources
