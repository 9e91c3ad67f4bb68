"""The Python API. docs/python.md has examples. Import the names from ``baselines``."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baselines.measure.measures import measure_run
from baselines.measure.qrels import read_judgments, read_queries, release_qrels
from builders.core.cache import caches
from builders.core.errors import InputError, UsageError, missing_library
from builders.core.files import temporary_folder
from builders.core.hub import clear_errors
from builders.core.progress import progress
from builders.store import reader
from builders.store.layout import SETS
from builders.store.runs import Hit, Run, best_first, read_run

if TYPE_CHECKING:
    from baselines.core.passages import Passages


@dataclass(frozen=True)
class Release(reader.Release):
    """An open release. ``set`` is the evaluation set to read: main, cmedqa, ccovid or crosslingual."""

    set: str = "main"

    def passages(self) -> Iterator[tuple[str, str]]:
        """Yield (id, text) of every passage, in the release's order. Memory holds one row group."""
        for batch in self.batches(SETS[self.set].corpus, "corpus", ["_id", "text"]):
            yield from zip(batch["_id"].to_pylist(), batch["text"].to_pylist(), strict=True)

    def queries(self, split: str) -> dict[str, str]:
        """Return query id -> text for a split. Raises :class:`InputError` for an unknown split."""
        return dict(read_queries(self, split, SETS[self.set].queries))

    def qrels(self, split: str) -> dict[str, dict[str, int]]:
        """Return query id -> passage id -> relevance for a split. Raises :class:`InputError` without judgments."""
        return read_judgments(self, SETS[self.set], split)


def open_release(path: str | Path | reader.Release, set: str = "main", revision: str | None = None) -> Release:
    """Open a release directory, or download the dataset ORG/NAME from HF_ENDPOINT into the cache of huggingface_hub.

    ``set``: the evaluation set. ``revision``: a commit, tag or branch of the dataset. Raises :class:`InputError`.
    """
    if set not in SETS:
        raise InputError(f"no set {set!r}; expected one of {', '.join(SETS)}")
    if isinstance(path, reader.Release):
        return Release(path.path, path.manifest, set)
    if not Path(path).exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)):
        from huggingface_hub import constants, snapshot_download

        try:
            with clear_errors(str(path), constants.ENDPOINT, "dataset", "download"):
                path = snapshot_download(str(path), repo_type="dataset", revision=revision)
        except InputError as error:
            raise InputError(f"no such directory, and the hub at HF_ENDPOINT failed: {error}", path=path) from error
    elif revision is not None:
        raise InputError(f"revision {revision!r}: a directory has no revisions", path=path)
    found = reader.open_release(path)
    return Release(found.path, found.manifest, set)


def evaluate(
    model: object, release: Release | str | Path, split: str = "dev", *, top_k: int = 50, **options: Any
) -> dict[str, float]:
    """Evaluate a model or a run by the judgments of a split. Return the measures of `baselines evaluate` as fractions.

    ``model``: a run (query id -> passage id -> score, a file, or a :class:`Run`), or a model. Options and errors:
    :func:`search`.
    """
    release = release if isinstance(release, Release) else open_release(release)
    qrels = release_qrels(release, split, release.set)
    is_run = isinstance(model, Mapping | Run) or (isinstance(model, str | Path) and Path(model).is_file())
    if not is_run:
        model = search(model, release, split, top_k=top_k, **options)
    elif options:
        raise UsageError(f"a run has no option {', '.join(sorted(options))}")
    means, _ = measure_run(_open_run(model), qrels)
    return {**means["official"], **means["ir_measures"]}


def search(
    model: object,
    release: Release | str | Path,
    split: str = "dev",
    *,
    top_k: int = 50,
    run: object = None,
    query_prompt: str | None = None,
    passage_prompt: str | None = None,
    similarity: str | None = None,
    batch_size: int | None = None,
    index: str | Path | None = None,
    **options: Any,
) -> dict[str, dict[str, float]]:
    """Search the passages by the queries of a split. Return query id -> passage id -> score, best first.

    Args:
        model: the name or folder of a model, "bm25", your own encoder, or (with ``run``) your own re-ranker.
            An encoder is a function from a list of texts to an array of shape (texts, dimensions), or an object with
            ``encode``, or an object with ``encode_query`` and ``encode_document``.
            A re-ranker is a function from a list of (query, passage) to an array of shape (pairs,), or an object with
            ``predict``.
        release: an open release, or the argument ``path`` of :func:`open_release`.
        top_k: passages per query. With ``run``, further passages follow in their old order.
        run: the run to re-rank: a dictionary, a file, or a :class:`Run`.
        query_prompt, passage_prompt: text put before every query or passage.
        similarity: "cosine" or "dot" (default: the model's similarity, or cosine for your own function).
        batch_size: texts or pairs per call of your own model (default: 256).
        index: folder of the index (default: in the user's cache, or temporary for your own encoder).
        options: for a named model, options of `baselines run`, `bm25` or `rerank`, for example ``pooling="cls"``.

    Raises:
        InputError: the release, an option, the model or the model's output is wrong, or a library is not installed.
        TypeError: the object is no model.
    """
    if similarity not in (None, "cosine", "dot"):
        raise InputError(f"similarity {similarity!r}; expected cosine or dot")
    if top_k < 1 or (batch_size is not None and batch_size < 1):
        raise InputError(f"top_k {top_k}, batch_size {batch_size}; expected at least 1")
    release = release if isinstance(release, Release) else open_release(release)
    first_run = None if run is None else _open_run(run)
    options |= {"query_prompt": query_prompt, "passage_prompt": passage_prompt, "similarity": similarity}
    options |= {"batch_size": batch_size, "index": Path(index) if index else None}
    options = {key: value for key, value in options.items() if value is not None}
    try:
        if isinstance(model, str | Path):
            hits = _search_by_name(str(model), release, split, top_k, first_run, options)
        else:
            hits = _search_by_object(model, release, split, top_k, first_run, **options)
    except ModuleNotFoundError as error:
        if line := missing_library(error):
            raise InputError(line) from error
        raise
    return {query: dict(best_first(ranking)) for query, ranking in hits.items()}


def _search_by_name(
    model: str, release: Release, split: str, top_k: int, first_run: Run | None, options: dict[str, Any]
) -> dict[str, list[Hit]]:
    """Search by the verb `bm25` or `run`, or re-rank a run by the verb `rerank`."""
    from baselines.bm25.search_bm25 import search_bm25
    from baselines.retrieve.any_model import run_model
    from baselines.retrieve.rerank import rerank_run

    arguments: dict[str, Any] = {"set": release.set, "split": split, "top_k": top_k} | options
    searched: Run
    if first_run is not None:
        searched = rerank_run(release, run=first_run, model=model, **arguments)
    elif model == "bm25":
        searched = search_bm25(release, **arguments)
    else:
        searched = run_model(model, release, **arguments)
    return searched.hits


def _search_by_object(
    model: Any,
    release: Release,
    split: str,
    top_k: int,
    first_run: Run | None,
    batch_size: int = 256,
    index: Path | None = None,
    **settings: Any,
) -> dict[str, list[Hit]]:
    """Search by a user's encoder, or re-rank a run by a user's encoder or re-ranker."""
    is_encoder = first_run is None or (hasattr(model, "encode") and not hasattr(model, "predict"))
    known = {"query_prompt", "passage_prompt", "similarity"} if is_encoder else {"query_prompt"}
    unknown = sorted(settings.keys() - known)
    if index is not None and not is_encoder:
        unknown.append("index")
    if unknown:
        raise UsageError(f"an own {'encoder' if is_encoder else 're-ranker'} has no option {', '.join(unknown)}")

    from baselines.core.passages import open_passages
    from baselines.core.settings import ModelSettings
    from baselines.retrieve.dense import Own
    from baselines.retrieve.devices import Work, default_batch_tokens, devices_of
    from baselines.retrieve.second_stage import reorder_passages

    corpus, queries = SETS[release.set].corpus, release.queries(split)
    passages = open_passages(release, corpus)
    rankings = first_run.rankings if first_run else {}
    groups = []  # text of each query, ids of the passages to score
    for query, ids in rankings.items():
        path = first_run.path if first_run else Path()
        if query not in queries:
            raise InputError(f"has a query {query!r} that the split {split!r} lacks", path=path)
        passages.expect(ids, path)
        groups.append((queries[query], ids[:top_k]))

    if not is_encoder:
        scores = _score_pairs(model, groups, passages, settings.get("query_prompt", ""), batch_size)
    else:
        device = devices_of(None)[0] if hasattr(model, "similarity_fn_name") else "cpu"
        work = Work((device,), "own", default_batch_tokens(device))
        name = getattr(model, "__name__", type(model).__name__)
        encoder = Own(ModelSettings(name, **settings), work, model, batch_size)
        caches().mkdir(parents=True, exist_ok=True)
        with temporary_folder(caches()) as folder:
            index_folder = index or folder / "index"
            if first_run is None:
                return dict(encoder.hits(release, corpus, index_folder, list(queries.items()), top_k))
            scores, _ = encoder.scores(release, corpus, index_folder, groups)
    pairs = zip(rankings.items(), scores, strict=True)
    return {query: reorder_passages(ids, query_scores) for (query, ids), query_scores in pairs}


def _score_pairs(
    model: Any, groups: list[tuple[str, list[str]]], passages: "Passages", prompt: str, batch_size: int
) -> list[list[float]]:
    """Return the scores that a user's re-ranker gives to each query's passages."""
    from baselines.retrieve.dense import called

    scores = []
    for query_text, ids in progress(groups, total=len(groups), unit="query", label="rerank"):
        pairs = [(prompt + query_text, text) for text in passages.texts(passages.rows(ids).tolist())]
        scores.append(called(model, ["predict"], pairs, batch_size, 1).tolist())
    return scores


def _open_run(run: Any) -> Run:
    """Return a :class:`Run` from a dictionary or a file."""
    if not isinstance(run, Mapping):
        return read_run(run if isinstance(run, Run) else Path(run))
    if not all(math.isfinite(score) for scores in run.values() for score in scores.values()):
        raise InputError("the run has scores that are not finite numbers")
    return Run(Path("run"), {query: best_first(scores.items()) for query, scores in run.items()})
