"""Re-rank the best passages of a run by any kind of model."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baselines.core.passages import open_passages
from baselines.core.run_manifest import describe_search, record, tag_of, write_manifest
from baselines.core.settings import ModelOptions, ModelSettings
from baselines.measure.qrels import read_queries
from baselines.retrieve import families, model_kinds, rerankers, vector_index
from baselines.retrieve.devices import Work
from baselines.retrieve.family_table import NO_FAMILY
from baselines.retrieve.model_files import shown_name
from baselines.retrieve.reordering import expect_hits, reorder_passages
from builders.core.cache import writable_cache
from builders.core.errors import InputError, log
from builders.core.files import real_path, sha256_of, temporary_folder
from builders.core.folders import key_of, work_beside
from builders.store.layout import SETS
from builders.store.reader import Release
from builders.store.runs import Hit, Run, best_first, read_run, write_run

Groups = Sequence[tuple[str, Sequence[str]]]  # text of a query, ids of the passages to score


@dataclass(frozen=True)
class Rescored:
    """The result of :func:`rescore_run`.

    Attributes:
        run: the re-ranked run.
        manifest: the manifest of the run, or the model's record if no run was written.
        cost: the number of scored pairs or encoded passages, as text.
    """

    run: Run
    manifest: dict[str, Any]
    cost: str


@dataclass(frozen=True)
class _Scorer:
    """An opened model.

    Attributes:
        record: everything that affects the run.
        tag: last column of the run's lines.
        score: a function of a work folder that returns (scores of each query's passages, the cost as text).
        options: further values on which the scores in the work folder depend.
    """

    record: dict[str, Any]
    tag: str
    score: Callable[[Path], tuple[list[list[float]], str]]
    options: list[Any]


def rescore_run(
    first_run: Run | Path,
    *,
    model: str,
    options: ModelOptions,
    work: Work,
    release: Release,
    set_name: str,
    split: str,
    top_k: int,
    out: Path | None = None,
    index: Path | None = None,
) -> Rescored:
    """Re-rank the ``top_k`` best passages of every query of a run. Write ``out`` and its manifest, unless it is None.

    Args:
        first_run: the run to re-rank.
        index: directory of an index, whose encodings are reused.

    Raises:
        InputError: ``out`` is the run to re-rank, the run has an unknown query or passage, the model cannot be opened,
            or an option does not fit the kind of model.
    """
    first_path = first_run.path if isinstance(first_run, Run) else first_run
    is_in_memory = isinstance(first_run, Run) and first_run.is_in_memory
    if out is not None and not is_in_memory and real_path(first_path) == real_path(out):
        raise InputError("is both the run to re-rank and --out; expected different files", path=out)
    configs = SETS[set_name]
    opened_run = read_run(first_run)
    expect_hits(opened_run)
    texts, rankings = dict(read_queries(release, split, configs.queries)), opened_run.rankings
    if strange := next((query for query in rankings if query not in texts), None):
        raise InputError(f"has a query {strange!r} that {configs.queries}/{split} lacks", path=first_path)
    ranked = {query: list(dict.fromkeys(ids)) for query, ids in rankings.items()}
    open_passages(release, configs.corpus).expect((corpus for ids in ranked.values() for corpus in ids), first_path)
    groups = [(texts[query], ids[:top_k]) for query, ids in ranked.items()]

    first_stage = _describe_run(first_run)
    family = "" if options.family in (None, NO_FAMILY) else options.family
    kind = options.kind or model_kinds.kind_of_scorer(
        ModelSettings(model, revision=options.revision, trust_remote_code=options.trust_remote_code), family
    )
    if kind in vector_index.RETRIEVERS:
        search = families.prepare_search(
            model=model,
            options=options,
            work=work,
            release=release,
            set_name=set_name,
            split=split,
            top_k=top_k,
            index=index,
        )
        scorer = _vector_scorer(search, release, configs.corpus, groups, first_stage)
    else:
        for name, value in (("family", options.family), ("index", index)):
            if value:
                raise InputError(f"--{name} {value}: a model of kind {kind} has no {name}", path=model)
        job = rerankers.pair_job(model=model, options=options, work=work, release=release, corpus=configs.corpus)
        about = describe_search(release, kind=kind, set_name=set_name, split=split, top_k=top_k)
        score_options = [top_k, work.dtype, options.max_length, work.batch_tokens, rerankers.WINDOW]
        scorer = _pair_scorer(job, kind, groups, about | first_stage, score_options)

    about_scores = {  # saved scores are reused if all these values are equal
        "run": first_stage["reranked"]["sha256"],
        "model": scorer.record["model"],
        "corpus": release.fingerprint(configs.corpus, "corpus"),
        "queries": release.fingerprint(configs.queries, split),
        "options": scorer.options,
    }
    manifest = scorer.record
    with _work_folder(out, key_of(about_scores)) as folder:
        scores, cost = scorer.score(folder)
        hits = _reorder_all(ranked, scores)
        if out is None:
            hits_by_query = {query: best_first(ranking) for query, ranking in hits}
            run = Run.in_memory(shown_name(model), hits_by_query, manifest)
        else:
            line_count = write_run(out, hits, tag=scorer.tag)
    if out is not None:
        run = Run(out)
        manifest = write_manifest(out, scorer.record, scorer.tag, len(groups), line_count)
        precision = manifest["model"].get("computed_in", "unknown (endpoint)")
        log.info("%s: %d lines for %d queries; %s; precision: %s", out, line_count, len(groups), cost, precision)
    return Rescored(run, manifest, cost)


def _describe_run(run: Run | Path) -> dict[str, Any]:
    """Return the entry ``reranked`` of the manifest: name and checksum of the first stage's file.

    A run in memory has no file. Its checksum is a hash of its hits.
    """
    if isinstance(run, Run) and run.is_in_memory:
        return {"reranked": {"file": None, "sha256": key_of(run.hits)}}
    path = run.path if isinstance(run, Run) else run
    return {"reranked": {"file": path.name, "sha256": sha256_of(path)}}


def _vector_scorer(
    search: families.ModelSearch, release: Release, corpus: str, groups: Groups, first_stage: dict[str, Any]
) -> _Scorer:
    passage_count = len({passage_id for _, ids in groups for passage_id in ids})

    def score(_: Path) -> tuple[list[list[float]], str]:  # the encodings are saved beside the index
        scores, new_count = search.retriever.scores(release, corpus, search.index_folder, groups)
        return scores, f"{passage_count:,} passages encoded, {new_count:,} of them now"

    run_record = search.record | first_stage | {"passages_encoded": passage_count}
    return _Scorer(run_record, tag_of(run_record), score, options=[])


def _pair_scorer(
    job: rerankers.PairJob, kind: str, groups: Sequence[rerankers.Group], about: dict[str, Any], options: list[Any]
) -> _Scorer:
    pair_count = sum(len(ids) for _, ids in groups)

    def score(folder: Path) -> tuple[list[list[float]], str]:
        window = rerankers.ASKED if kind == "listwise" else None
        return rerankers.score_windows(job, groups, folder, "rerank", window), f"{pair_count:,} pairs scored"

    return _Scorer(record(job.reranker.about(), about | {"pairs_scored": pair_count}), kind, score, options)


@contextlib.contextmanager
def _work_folder(out: Path | None, key: str) -> Iterator[Path]:
    """Yield a folder for scores. The folder beside ``out`` survives an interruption. A run in memory has no such."""
    if out is not None:
        with work_beside(out, key) as folder:
            yield folder
        return
    with temporary_folder(writable_cache()) as folder:
        yield folder


def _reorder_all(ranked: dict[str, list[str]], scores: Sequence[Sequence[float]]) -> Iterator[tuple[str, list[Hit]]]:
    for (query, ids), query_scores in zip(ranked.items(), scores, strict=True):
        yield query, reorder_passages(ids, query_scores)
