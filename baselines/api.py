"""The Python API. docs/python.md has examples. Import the names from ``baselines``."""

import inspect
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from baselines.bm25.search_bm25 import search_bm25
from baselines.core.model_options import TopK
from baselines.measure.compare import compare_runs
from baselines.measure.fuse import fuse_runs
from baselines.measure.measure_names import resolve_measures
from baselines.measure.measure_options import ChosenMeasures, Ties
from baselines.measure.measures import measure_run
from baselines.measure.qrels import read_judgments, read_queries, release_qrels
from baselines.measure.run_measures import RunMeasures
from baselines.measure.run_origin import warn_of_origins
from baselines.measure.ties import order_ties
from baselines.retrieve.any_model import run_model
from baselines.retrieve.rerank import rerank_run
from builders.core.checked_calls import with_options_of
from builders.core.errors import InputError, UsageError, missing_library
from builders.core.hub import clear_errors
from builders.core.options import AtLeastOne, OneOf, check_value, read_option
from builders.core.paths import check_file
from builders.core.results import Report
from builders.core.verbs import verb_spec
from builders.store import reader, runs
from builders.store.layout import SETS
from builders.store.names import QUESTION_CONFIGS, SET_NAMES
from builders.store.original_runs import translate_run
from builders.store.own_queries import OwnQueries, open_queries
from builders.store.release_options import AnySplit, QueriesFile, ReleasePath, RunPath
from builders.store.run_objects import is_run_object, run_of
from builders.store.runs import Hit, Run, best_first, write_ranked_hits

if TYPE_CHECKING:
    from baselines.retrieve.searchers import SearcherRun

    AnyRelease: TypeAlias = reader.Release | str | Path
    AnyRun: TypeAlias = Any  # a Run, a file, a dictionary or a data frame
    AnyQueries: TypeAlias = Any  # a dictionary, a file, or the name of a config
    AnyPath: TypeAlias = str | Path
else:  # the annotations of the verbs, by which `with_options_of` checks and converts the arguments of a call
    AnyRelease, AnyRun, AnyQueries, AnyPath = ReleasePath, RunPath, QueriesFile, Path

# Endings of files of runs. A missing file with such a name is no model.
_RUN_ENDINGS = (".run", ".trec", ".gz", ".json", ".jsonl", ".txt", ".tsv", ".res", ".parquet")
_TAG = "dureader_retrieval"
_TOP_K = 50  # default number of passages per query
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")  # ORG/NAME
# Options of ``**options`` that are checked in this module: before a long search, or because no verb checks them.
_MEASURES_OPTION = next(option for option in verb_spec(compare_runs).options if option.name == "measure")
_OUT_OPTION = next(option for option in verb_spec(run_model).options if option.name == "out")
_BATCH_SIZE_OPTION = read_option(
    inspect.Parameter("batch_size", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=AtLeastOne | None)
)


@dataclass(frozen=True, repr=False)
class Release(reader.Release):
    """An open release. ``set`` is the evaluation set to read: main, cmedqa, ccovid, crosslingual or stress-KIND."""

    set: str = "main"

    def __repr__(self) -> str:
        return f"Release({str(self.path)!r}, set={self.set!r})"

    def passages(self) -> Iterator[tuple[str, str]]:
        """Yield (id, text) of every passage of the set, in the release's order. Memory holds one row group."""
        for batch in self.batches(SETS[self.set].corpus, "corpus", ["_id", "text"]):
            yield from zip(batch["_id"].to_pylist(), batch["text"].to_pylist(), strict=True)

    def queries(self, split: str) -> dict[str, str]:
        """Return query id -> text for a split. Raises :class:`InputError` for an unknown split."""
        return dict(read_queries(self, split, SETS[self.set].queries))

    def qrels(self, split: str) -> dict[str, dict[str, int]]:
        """Return query id -> passage id -> relevance for a split. Raises :class:`InputError` without judgments.

        A passage is positive if its relevance is above 0. A query without a judged passage has an empty dictionary.
        """
        return read_judgments(self, SETS[self.set], split)


@with_options_of()
def open_release(
    path: AnyRelease, set: Annotated[str, OneOf(SET_NAMES)] = "main", revision: str | None = None
) -> Release:
    """Open a release directory, or download the dataset ORG/NAME from HF_ENDPOINT into the cache of huggingface_hub.

    An open release is opened again with ``set``.

    Args:
        path: directory of a release, ORG/NAME, or an open release.
        set: evaluation set: main, cmedqa, ccovid, crosslingual or stress-KIND.
        revision: commit, tag or branch of the dataset (default: the latest).

    Raises:
        InputError: the path is no release, or the download failed.
    """
    is_local = isinstance(path, reader.Release) or Path(path).exists()
    if not is_local and _HUB_NAME.fullmatch(str(path)):
        release = reader.open_release(_download_release(str(path), revision))
    else:
        release = reader.open_release(path)
        if revision is not None:
            raise InputError(f"revision {revision!r}: a directory has no revisions", path=release.path)
    return Release(release.path, release.manifest, set)


def _download_release(name: str, revision: str | None) -> Path:
    """Download the dataset ORG/NAME, and return its folder in the cache of huggingface_hub."""
    from huggingface_hub import constants, snapshot_download

    try:
        with clear_errors(name, constants.ENDPOINT, "dataset", "download"):
            return Path(snapshot_download(name, repo_type="dataset", revision=revision))
    except InputError as error:
        raise InputError(f"no such directory, and the hub at HF_ENDPOINT failed: {error}", path=name) from error


def read_run(run: AnyRun) -> Run:
    """Read a run: a file, a dictionary or a data frame.

    A file may be a TREC run, the official JSON of predictions, BEIR's or mteb's results, MS MARCO's TSV or Parquet. The
    content decides, whatever the name. Text may be gzipped. Equal scores keep their order: the ranks of a file, or the
    order of the file, the dictionary or the data frame.

    Returns:
        The run, with ``hits``, ``rankings``, ``to_dict()`` and ``to_pandas()``.

    Raises:
        InputError: the file or the object is no run.
    """
    if isinstance(run, str | os.PathLike):
        return _read_run_file(Path(run))
    return run_of(run)


def _read_run_file(path: Path) -> Run:
    if not path.exists():
        raise InputError("no such file; expected a run", path=path)
    return runs.read_run(path)


def write_run(run: AnyRun, out: AnyPath, *, tag: str = _TAG) -> Path:
    """Write a run as a TREC file, gzipped if the name ends in .gz. Return the path.

    Hits keep the order of :func:`read_run`, also those with equal scores. ``tag`` is the last column of the lines.

    Raises:
        InputError: ``run`` is no run, ``tag`` or an id has blanks, which a TREC file cannot hold, or the file cannot
            be written.
    """
    path = Path(out)
    open_run = read_run(run)
    if tag.split() != [tag]:
        raise UsageError(f"tag: expected a text without blanks, found {tag!r}")
    check_file(path)
    write_ranked_hits(path, open_run.hits.items(), tag)
    return path


@with_options_of(search_bm25, run_model, rerank_run, without=("set", "over", "again", "queries_file"))
def search(
    model: object,
    release: AnyRelease,
    split: AnySplit = "dev",
    *,
    top_k: TopK = _TOP_K,
    run: AnyRun | None = None,
    queries: AnyQueries | None = None,
    query_prompt: str | None = None,
    passage_prompt: str | None = None,
    similarity: Literal["cosine", "dot"] | None = None,
    batch_size: AtLeastOne | None = None,
    index: AnyPath | None = None,
    **options: Any,
) -> dict[str, dict[str, float]]:
    """Search the passages by the queries of a split. Return query id -> passage id -> score, best first.

    Args:
        model: the name or folder of a model, "bm25", your own encoder (:class:`Encoder`,
            :class:`QueryPassageEncoder`, or a function of a list of texts), your own search engine
            (:class:`Searcher`), or with ``run`` your own re-ranker (:class:`Reranker`, or a function of a list of
            (query, passage)).
        release: an open release, its directory, or the dataset ORG/NAME on the hub.
        split: split of the queries.
        top_k: passages per query. With ``run``, further passages follow in their old order.
        run: the run to re-rank: a dictionary, a data frame, a file, or a :class:`Run`.
        queries: questions to search by, in place of the split's: query id -> text, or a file of `--queries-file`. For
            "bm25", also a config such as "duplicated".
        query_prompt, passage_prompt: text put before every query or passage.
        similarity: "cosine" or "dot" (default: the model's similarity, or cosine for your own function).
        batch_size: texts or pairs per call of your own model (default: 256), or queries per call of your own search
            engine (default: one, so that the latency is measured).
        index: folder of the index (default: in the user's cache, or temporary for your own encoder).
        options: for a named model, options of `baselines run`, `bm25` or `rerank`, for example ``pooling="cls"``; for
            your own search engine, ``out``, the file of the run.

    Raises:
        InputError: the release, an option, the model or the model's output is wrong, or a library is not installed.
    """
    open_set = _open_set(release)
    first_run = None if run is None else translate_run(read_run(run), open_set)
    options |= {"query_prompt": query_prompt, "passage_prompt": passage_prompt, "similarity": similarity}
    options |= {"batch_size": batch_size, "index": Path(index) if index else None}
    # None means that an option is not used, so that models without this option can be searched.
    used_options = {name: value for name, value in options.items() if value is not None}
    own_queries = _open_own_queries(queries, used_options)
    try:
        if _is_searcher(model):
            if first_run is not None:
                used_options["run"] = first_run
            searcher_run = _search_by_searcher(model, open_set, split, top_k, used_options, own_queries)
            # Equal scores keep the order of the engine.
            return {query_id: dict(hits) for query_id, hits in searcher_run.hits.items()}
        if isinstance(model, str | Path):
            hits_by_query = _search_by_name(str(model), open_set, split, top_k, first_run, used_options, own_queries)
        else:
            hits_by_query = _search_by_object(
                model, open_set, split, top_k, first_run, own_queries=own_queries, **used_options
            )
    except ModuleNotFoundError as error:
        message = missing_library(error)
        if message:
            raise InputError(message) from error
        raise
    # Equal scores are ordered by passage id, as in a run that a verb writes.
    return {query_id: dict(best_first(hits)) for query_id, hits in hits_by_query.items()}


def _open_own_queries(queries: Any, options: dict[str, Any]) -> OwnQueries | None:
    """Return the queries that replace those of the split, None if ``queries`` is None or names a config of the release.

    The name of a config, such as "duplicated", is added to ``options``.
    """
    # The annotation of the parameter has converted a text to a Path, also the name of a config.
    if isinstance(queries, Path) and str(queries) in QUESTION_CONFIGS:
        options["queries"] = str(queries)
        return None
    return None if queries is None else open_queries(queries)


@with_options_of(search)
def evaluate(
    model: object,
    release: AnyRelease,
    split: AnySplit = "dev",
    *,
    top_k: TopK | None = None,
    measures: ChosenMeasures = (),
    ties: Ties = "listed",
    queries: AnyQueries | None = None,
    **options: Any,
) -> RunMeasures:
    """Evaluate a model or a run by the judgments of a split.

    Args:
        model: a model, as in :func:`search`, or a run: a dictionary, a data frame, a file, or a :class:`Run`.
        release: an open release, its directory, or the dataset ORG/NAME on the hub.
        split: split of the queries.
        top_k: passages per query that the model returns (default: 50).
        measures: further measures of ir-measures, in any case, for example ``["nDCG@20", "R@100", "P@5"]``.
        ties: the order of equal scores: "listed" (the order of the run), "id" (by passage id), or "expected" (the mean
            of every measure over all orders).
        queries: questions to search by, as in :func:`search`. Their ids are those of the judgments.
        options: further options of :func:`search`.

    Returns:
        The measures of `baselines evaluate` by name, as fractions, in a dictionary with the methods ``intervals()``,
        ``per_query()``, ``to_pandas()``, ``to_text()`` and ``to_markdown()``. Its ``latency`` has the time of a query
        of your own search engine.

    Raises:
        InputError: as :func:`search`; the split has no judgments, the run has none of its queries, or a measure is
            unknown.
    """
    # Names of measures are checked before a search, which may take long.
    chosen = resolve_measures(measures, ties)
    open_set = _open_set(release)
    qrels = release_qrels(open_set, split, open_set.set)
    latency = None
    if is_run_object(model) or (isinstance(model, str | os.PathLike) and _is_run_file(Path(model))):
        # A run is measured as it is, so every option is refused, also top_k.
        if top_k is not None:
            options["top_k"] = top_k
        if queries is not None:
            options["queries"] = queries
        if options:
            raise UsageError(f"a run has no option {', '.join(sorted(options))}")
        run = translate_run(read_run(model), open_set)
        warn_of_origins([run], qrels, open_set, set_name=open_set.set, split=split)
    elif _is_searcher(model):
        # Not by `search`, whose result has no latency.
        used_options = {name: value for name, value in options.items() if value is not None}
        own_queries = _open_own_queries(queries, used_options)
        searcher_run = _search_by_searcher(model, open_set, split, top_k or _TOP_K, used_options, own_queries)
        run, latency = searcher_run.run, searcher_run.latency
    else:
        run = run_of(search(model, open_set, split, top_k=top_k or _TOP_K, queries=queries, **options))
    means, by_query = measure_run(order_ties(run, ties), qrels, ties, chosen)
    return RunMeasures(means, by_query, latency)


def _is_run_file(path: Path) -> bool:
    """True if a path names a run rather than a model. Raises :class:`InputError` for a run that does not exist."""
    if path.is_file():
        return True
    if path.name.lower().endswith(_RUN_ENDINGS) and not path.exists():
        raise InputError("no such file; expected a run, or the name of a model", path=path)
    return False


@with_options_of(compare_runs, without=("qrels", "name", "set"))
def compare(runs: object, release: AnyRelease, split: AnySplit = "dev", **options: Any) -> Report:
    """Compare runs by paired tests on the same queries, as the verb `compare` does.

    Args:
        runs: name -> run, or a list of runs. A run is a dictionary, a data frame, a file, or a :class:`Run`.
        release: an open release, its directory, or the dataset ORG/NAME on the hub.
        split: split of the queries.
        options: options of :func:`compare_runs`, for example ``measure=["nDCG@10"]``.

    Returns:
        The comparison: ``value``, ``to_pandas()``, ``to_markdown()`` and ``to_latex()``. docs/compare.md describes it.

    Raises:
        InputError: there are fewer than two runs, an object is no run, or the split has no judgments.
    """
    # Names of measures are checked before runs are read, which may take long.
    measures = check_value(_MEASURES_OPTION, options.get("measure", ()), label="measure")
    resolve_measures(measures, with_holes=True)
    open_set = _open_set(release)
    runs_by_name = _read_named_runs(runs)
    return compare_runs(
        list(runs_by_name.values()), release=open_set, set=open_set.set, split=split, name=list(runs_by_name), **options
    )


@with_options_of(fuse_runs, without=("set",))
def fuse(runs: object, **options: Any) -> dict[str, dict[str, float]]:
    """Fuse runs of the same queries by reciprocal rank, or by a weighted sum of scores, as the verb `fuse` does.

    Args:
        runs: a list of runs, or name -> run.
        options: options of :func:`fuse_runs`, for example ``top_k=100``.

    Returns:
        Query id -> passage id -> score, best first.

    Raises:
        InputError: there are fewer than two runs, an object is no run, or the runs share no query.
    """
    if options.get("release") is not None:
        open_set = _open_set(options["release"])
        options["release"] = open_set
        options["set"] = open_set.set
    return fuse_runs(list(_read_named_runs(runs).values()), **options).to_dict()


def _read_named_runs(runs: object) -> dict[str, Run]:
    """Return the runs of a dictionary name -> run, or of a list, by name.

    The name of a run in a list is that of its file or object. If it is repeated, it gets the run's number.
    """
    runs_by_name: dict[str, Run] = {}
    if isinstance(runs, Mapping):
        for name, run in runs.items():
            if not isinstance(name, str):
                raise InputError(f"runs: expected the names of runs as texts, found {name!r}")
            if isinstance(run, str | os.PathLike):
                runs_by_name[name] = _read_run_file(Path(run))
            else:
                runs_by_name[name] = run_of(run, name)
        return runs_by_name
    if not isinstance(runs, list | tuple):
        raise InputError(f"runs: expected name -> run, or a list of runs, found {type(runs).__name__}")
    for number, run in enumerate(runs, start=1):
        open_run = read_run(run)
        name = str(open_run.path)
        if name in runs_by_name:
            name = f"{name} {number}"
        runs_by_name[name] = open_run
    return runs_by_name


def _open_set(release: AnyRelease) -> Release:
    """Open a release with the set main. A :class:`Release` that is already open keeps its set."""
    if isinstance(release, Release):
        return open_release(release, set=release.set)
    return open_release(release)


def _search_by_name(
    model: str,
    release: Release,
    split: str,
    top_k: int,
    first_run: Run | None,
    options: dict[str, Any],
    own_queries: OwnQueries | None,
) -> dict[str, list[Hit]]:
    """Search by the verb `bm25` or `run`, or with ``first_run``, re-rank this run by the verb `rerank`.

    ``model`` is "bm25", or the name or folder of a model. ``options`` are options of the verb. ``own_queries`` replace
    the queries of the split. Returns the hits of each query.
    """
    arguments: dict[str, Any] = {"set": release.set, "split": split, "top_k": top_k} | options
    arguments["queries_file"] = own_queries
    new_run: Run
    if first_run is not None:
        new_run = rerank_run(release, run=first_run, model=model, **arguments)
    elif model == "bm25":
        new_run = search_bm25(release, **arguments)
    else:
        new_run = run_model(model, release, **arguments)
    return new_run.hits


def _is_searcher(model: object) -> bool:
    """True for a user's search engine; False for the name of a model. Raises :class:`UsageError` for a wrong engine."""
    if isinstance(model, str | Path):
        return False
    from baselines.retrieve.own_models import is_searcher

    return is_searcher(model)


def _search_by_searcher(
    searcher: object,
    release: Release,
    split: str,
    top_k: int,
    options: dict[str, Any],
    own_queries: OwnQueries | None = None,
) -> "SearcherRun":
    """Search by a user's search engine. ``options`` are those that the call has set: only batch_size and out may be."""
    from baselines.retrieve.own_search import SearchedTexts
    from baselines.retrieve.searchers import search_by_searcher

    unknown_options = sorted(options.keys() - {"batch_size", "out"})
    if unknown_options:
        raise UsageError(f"an own search engine has no option {', '.join(unknown_options)}")
    batch_size = check_value(_BATCH_SIZE_OPTION, options.get("batch_size"), label="batch_size")
    out = check_value(_OUT_OPTION, options.get("out"), label="out")
    texts = SearchedTexts(release, release.set, split, own_queries)
    return search_by_searcher(searcher, texts, top_k=top_k, batch_size=batch_size or 1, out=out)


def _search_by_object(
    model: object,
    release: Release,
    split: str,
    top_k: int,
    first_run: Run | None,
    *,
    own_queries: OwnQueries | None = None,
    index: Path | None = None,
    batch_size: int | None = None,
    **options: Any,
) -> dict[str, list[Hit]]:
    """Search by a user's encoder, or with ``first_run``, re-rank this run by a user's encoder or re-ranker.

    ``own_queries`` replace the queries of the split. ``options`` may have query_prompt, passage_prompt and similarity.
    Returns the hits of each query.
    """
    from baselines.retrieve.own_models import is_encoder
    from baselines.retrieve.own_search import OwnSettings, SearchedTexts, rerank_by_object, search_by_encoder

    # Only a search, or a re-ranking by an encoder, has vectors of passages.
    needs_vectors = first_run is None or is_encoder(model)
    accepted_options = {"query_prompt"}
    if needs_vectors:
        accepted_options |= {"passage_prompt", "similarity"}
    unknown_options = sorted(options.keys() - accepted_options)
    if index is not None and not needs_vectors:
        unknown_options.append("index")
    if unknown_options:
        model_kind = "encoder" if needs_vectors else "re-ranker"
        raise UsageError(f"an own {model_kind} has no option {', '.join(unknown_options)}")
    settings = OwnSettings(batch_size=batch_size, **options)
    texts = SearchedTexts(release, release.set, split, own_queries)
    if first_run is None:
        return search_by_encoder(model, texts, settings, top_k=top_k, index=index)
    return rerank_by_object(model, first_run, texts, settings, top_k=top_k, index=index)
