"""The Python API. docs/python.md has examples. Import the names from ``baselines``."""

import argparse
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baselines.measure.measures import measure_run
from baselines.measure.qrels import read_judgments, read_queries, release_qrels
from builders.core.cache import caches
from builders.core.errors import InputError, missing_library
from builders.core.files import temporary_folder
from builders.core.hub import check_models, clear_errors
from builders.core.progress import progress
from builders.store import reader
from builders.store.layout import SETS
from builders.store.runs import Hit, Run, best_first, read_run, write_run


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


def open_release(path: str | Path, set: str = "main", revision: str | None = None) -> Release:
    """Open a release directory, or download the dataset ORG/NAME from HF_ENDPOINT into the cache of huggingface_hub.

    ``set``: the evaluation set. ``revision``: a commit, tag or branch of the dataset. Raises :class:`InputError`.
    """
    if set not in SETS:
        raise InputError(f"no set {set!r}; expected one of {', '.join(SETS)}")
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

    ``model``: a run (query id -> passage id -> score, or a file), or a model. Options and errors: :func:`search`.
    """
    release = release if isinstance(release, Release) else open_release(release)
    qrels = release_qrels(release, split, release.set)
    if not isinstance(model, Mapping) and not (isinstance(model, str | Path) and Path(model).is_file()):
        model, options = search(model, release, split, top_k=top_k, **options), {}
    means, _ = measure_run(_run_of(model, **options), qrels)
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
        run: the run to re-rank, a dictionary or a file.
        query_prompt, passage_prompt: text put before every query or passage.
        similarity: "cosine" or "dot" (default: the model's similarity, or cosine for your own function).
        batch_size: texts or pairs per call of your own model (default: 256).
        index: folder of the index (default: in the user's cache, or temporary for your own encoder).
        options: for a named model, options of `baselines run`, `bm25` or `rerank`, for example ``pooling="cls"``.

    Raises:
        InputError: the release, the model or the model's output is wrong, or a library is not installed.
        TypeError: an option is unknown, or the object is no model.
    """
    if similarity not in (None, "cosine", "dot"):
        raise InputError(f"similarity {similarity!r}; expected cosine or dot")
    if top_k < 1 or (batch_size is not None and batch_size < 1):
        raise InputError(f"top_k {top_k}, batch_size {batch_size}; expected at least 1")
    release = release if isinstance(release, Release) else open_release(release)
    options |= {"query_prompt": query_prompt, "passage_prompt": passage_prompt, "similarity": similarity}
    options |= {"batch_size": batch_size, "index": Path(index) if index else None}
    options = {key: value for key, value in options.items() if value is not None}
    searched = _by_name if isinstance(model, str | Path) else _by_object
    caches().mkdir(parents=True, exist_ok=True)
    try:
        with temporary_folder(caches()) as folder:
            hits = searched(model, release, split, top_k, None if run is None else _run_of(run), folder, **options)
            return {query: dict(best_first(own)) for query, own in hits}
    except ModuleNotFoundError as error:
        if line := missing_library(error):
            raise InputError(line) from error
        raise


def _by_name(
    model: Any, release: Release, split: str, top_k: int, run: Run | None, folder: Path, **options: Any
) -> Iterable[tuple[str, Iterable[Hit]]]:
    """Search with a named model by the verb `rerank`, `bm25` or `run`. Other options have the verb's defaults."""
    from baselines.bm25.search_bm25 import search_bm25
    from baselines.retrieve import any_model, rerank

    if model == "bm25" and not run:
        return search_bm25(release, set=release.set, split=split, top_k=top_k, **options).hits.items()
    verb: Any = rerank if run else any_model
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    known = {each.dest: each.default for each in parser._actions}
    if unknown := options.keys() - known.keys() | options.keys() & {"out", "over", "tune", "format"}:
        raise TypeError(f"{model} has no option {', '.join(sorted(unknown))}")
    options |= {"model": str(model), "release": release.path, "set": release.set, "split": split, "top_k": top_k}
    args = argparse.Namespace(**known | options | {"run": folder / "first.run", "out": folder / "found.run"})
    if verb is any_model:
        check_models(args.model)
        return any_model.search(args, release)[2]
    if run:
        write_run(args.run, run.hits.items())
    verb.run(args)
    return read_run(args.out).hits.items()


def _by_object(
    model: Any,
    release: Release,
    split: str,
    top_k: int,
    run: Run | None,
    folder: Path,
    batch_size: int = 256,
    **settings: Any,
) -> Iterable[tuple[str, Iterable[Hit]]]:
    """Search by a user's encoder, or re-rank ``run`` by a user's encoder or re-ranker."""
    from baselines.core.passages import open_passages
    from baselines.core.settings import ModelSettings
    from baselines.retrieve.dense import Own, called
    from baselines.retrieve.devices import Work, default_batch_tokens, devices_of
    from baselines.retrieve.rerank import reordered

    encodes = run is None or (hasattr(model, "encode") and not hasattr(model, "predict"))
    known = {"query_prompt", "passage_prompt", "similarity", "index"} if encodes else {"query_prompt"}
    if unknown := settings.keys() - known:
        raise TypeError(f"an own {'encoder' if encodes else 're-ranker'} has no option {', '.join(sorted(unknown))}")
    index = settings.pop("index", None) or folder / "index"
    corpus, queries = SETS[release.set].corpus, release.queries(split)
    passages, groups, path = open_passages(release, corpus), [], run.path if run else Path()
    ranked = run.rankings if run else {}
    for query, ids in ranked.items():
        if query not in queries:
            raise InputError(f"has a query {query!r} that the split {split!r} lacks", path=path)
        passages.expect(ids, path)
        groups.append((queries[query], ids[:top_k]))
    if encodes:
        device = devices_of(None)[0] if hasattr(model, "similarity_fn_name") else "cpu"
        work, name = (
            Work((device,), "own", default_batch_tokens(device)),
            getattr(model, "__name__", type(model).__name__),
        )
        encoder = Own(ModelSettings(name, **settings), work, model, batch_size)
        if run is None:
            return encoder.hits(release, corpus, index, list(queries.items()), top_k)
        scores = encoder.scores(release, corpus, index, groups)[0]
    else:
        prompt = settings.get("query_prompt", "")
        bar = progress(groups, total=len(groups), unit="query", label="rerank")
        pairs = ([(prompt + text, each) for each in passages.texts(passages.rows(ids).tolist())] for text, ids in bar)
        scores = [called(model, ["predict"], own, batch_size, 1).tolist() for own in pairs]
    return [(query, reordered(ids, own)) for (query, ids), own in zip(ranked.items(), scores, strict=True)]


def _run_of(given: Any) -> Run:
    """Return a :class:`Run` from a dictionary or a file."""
    if not isinstance(given, Mapping):
        return read_run(Path(given))
    if not all(math.isfinite(score) for own in given.values() for score in own.values()):
        raise InputError("the run has scores that are not finite numbers")
    return Run(Path("run"), {query: best_first(own.items()) for query, own in given.items()})
