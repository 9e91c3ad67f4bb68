"""Re-rank the best passages of a run by any kind of model."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baselines.core.passages import open_passages
from baselines.core.run_costs import collect_costs
from baselines.core.run_manifest import describe_run, describe_search, tag_of, write_manifest
from baselines.core.settings import ModelOptions, ModelSettings
from baselines.measure.qrels import read_queries
from baselines.retrieve import families, model_kinds, rerankers, vector_index
from baselines.retrieve.cut_texts import CutTexts, cut_json, cut_pairs, cut_queries_and_passages
from baselines.retrieve.devices import Work
from baselines.retrieve.endpoint_models import open_endpoint_job
from baselines.retrieve.family_table import NO_FAMILY
from baselines.retrieve.model_files import shown_name
from baselines.retrieve.reordering import expect_hits, reorder_passages
from builders.core.cache import writable_cache
from builders.core.errors import InputError, log
from builders.core.finished_outputs import is_kept
from builders.core.folders import key_of, work_beside
from builders.core.locks import temporary_folder
from builders.core.paths import check_outputs
from builders.core.read_files import sha256_of
from builders.store.layout import SETS
from builders.store.original_runs import read_release_run
from builders.store.own_queries import OwnQueries
from builders.store.reader import Release
from builders.store.runs import Hit, Run, best_first, write_run

Group = tuple[str, list[str]]  # text of a query, ids of the passages to score
Groups = Sequence[Group]


@dataclass(frozen=True)
class RescoredRun:
    """The result of :func:`rescore_run`.

    Attributes:
        run: the re-ranked run.
        manifest: the manifest of the run, or the model's record if no run was written.
        cost: the number of scored pairs or encoded passages, as text.
        measured: entries of the manifest that do not affect the run: its costs, and the share of cut texts.
        seconds: the time of the call, without the measurement of single queries and cut texts.
    """

    run: Run
    manifest: dict[str, Any]
    cost: str
    measured: dict[str, Any]
    seconds: float


@dataclass(frozen=True)
class _Scores:
    """The scores of a model.

    Attributes:
        scores: scores of each query's passages.
        cost: the number of scored pairs or encoded passages, as text.
        count_cut: counts the cut texts by the kind of text.
        score_alone: scores the passages of one query. None for a model whose queries are timed during the run.
    """

    scores: list[list[float]]
    cost: str
    count_cut: Callable[[], dict[str, CutTexts]]
    score_alone: Callable[[Group], object] | None


@dataclass(frozen=True)
class _Scorer:
    """An opened model.

    Attributes:
        record: everything that affects the run, as JSON values, for its manifest.
        tag: last column of the run's lines.
        score: a function of a work folder that returns the scores. The model stays open.
        close: a function that closes the model.
        options: further values on which the scores in the work folder depend.
        measure_costs: a function that returns the costs of an endpoint, for the manifest.
    """

    record: dict[str, Any]
    tag: str
    score: Callable[[Path], _Scores]
    close: Callable[[], None]
    options: list[Any]
    measure_costs: Callable[[], dict[str, Any]]


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
    own_queries: OwnQueries | None = None,
) -> RescoredRun:
    """Re-rank the ``top_k`` best passages of every query of a run. Write ``out`` and its manifest, unless it is None.

    Args:
        first_run: the run to re-rank.
        index: directory of an index, whose encodings are reused.
        own_queries: queries that the release lacks, in place of the split's.

    Raises:
        InputError: ``out`` is the run to re-rank, the run has an unknown query or passage, the model cannot be opened,
            or an option does not fit the kind of model.
    """
    start_time = time.perf_counter()
    if isinstance(first_run, Run):
        first_path = first_run.path
        is_in_memory = first_run.is_in_memory
    else:
        first_path = first_run
        is_in_memory = False
    # The verbs check paths. An open run also has a file.
    check_outputs({"--out": out}, [] if is_in_memory else [first_path])

    # Read the run. Unknown ids are reported before a model is opened.
    configs = SETS[set_name]
    opened_run = read_release_run(first_run, release)
    expect_hits(opened_run)
    if own_queries is None:
        query_texts = dict(read_queries(release, split, configs.queries))
        query_source = f"{configs.queries}/{split}"
        query_fingerprint = release.fingerprint(configs.queries, split)
    else:
        query_texts = dict(own_queries.rows)
        query_source = own_queries.name
        query_fingerprint = own_queries.fingerprint
    for query_id in opened_run.rankings:
        if query_id not in query_texts:
            raise InputError(f"has a query {query_id!r} that {query_source} lacks", path=first_path)
    rankings = _distinct_passages(opened_run)
    all_passage_ids = itertools.chain.from_iterable(rankings.values())
    open_passages(release, configs.corpus).expect(all_passage_ids, first_path)
    groups = [(query_texts[query_id], passage_ids[:top_k]) for query_id, passage_ids in rankings.items()]

    # Open the model.
    first_stage = _describe_run(first_run)
    model_kind = _find_kind(model, options)
    if model_kind in vector_index.RETRIEVERS:
        search = families.prepare_search(
            model=model,
            options=options,
            work=work,
            release=release,
            set_name=set_name,
            split=split,
            top_k=top_k,
            index=index,
            own_queries=own_queries,
        )
        scorer = _vector_scorer(search, release, configs.corpus, groups, first_stage)
    else:
        _expect_no_vector_options(model, model_kind, options.family, index)
        if options.endpoint is not None:
            job = open_endpoint_job(model, options, work, release, configs.corpus)
        else:
            job = rerankers.pair_job(model=model, options=options, work=work, release=release, corpus=configs.corpus)
        search_record = describe_search(
            release, kind=model_kind, set_name=set_name, split=split, top_k=top_k, own_queries=own_queries
        )
        score_options = [top_k, work.dtype, options.max_length, work.batch_tokens, rerankers.QUERIES_PER_FILE]
        scorer = _pair_scorer(job, model_kind, groups, search_record | first_stage, score_options)

    # Score the passages. Saved scores are reused if all these values are equal.
    score_key = key_of(
        {
            "run": first_stage["reranked"]["sha256"],
            "model": scorer.record["model"],
            "corpus": release.fingerprint(configs.corpus, "corpus"),
            "queries": query_fingerprint,
            "options": scorer.options,
        }
    )
    with _open_work_folder(out, score_key) as folder, collect_costs() as costs:
        try:
            scored = scorer.score(folder)
            hits = _reorder_rankings(rankings, scored.scores)
            if out is None:
                hits_by_query = {query_id: best_first(query_hits) for query_id, query_hits in hits}
            else:
                line_count = write_run(out, hits, tag=scorer.tag)
            seconds = time.perf_counter() - start_time
            if is_kept(out) and scored.score_alone is not None:
                group_by_query = dict(zip(rankings, groups, strict=True))
                with_passages = {query_id: group for query_id, group in group_by_query.items() if group[1]}
                costs.measure_queries(scored.score_alone, with_passages)
            measured = costs.to_json() | cut_json(scored.count_cut()) | scorer.measure_costs()
        finally:
            scorer.close()
    if out is None:
        run = Run.in_memory(shown_name(model), hits_by_query, scorer.record)
        return RescoredRun(run, scorer.record, scored.cost, measured, seconds)
    manifest = write_manifest(out, scorer.record, scorer.tag, len(groups), line_count, measured)
    precision = manifest["model"].get("computed_in", "unknown (endpoint)")
    log.info("%s: %d lines for %d queries; %s; precision: %s", out, line_count, len(groups), scored.cost, precision)
    return RescoredRun(Run(out), manifest, scored.cost, measured, seconds)


def _distinct_passages(run: Run) -> dict[str, list[str]]:
    """Return the distinct passages of each query of a run, best first."""
    return {query_id: list(dict.fromkeys(passage_ids)) for query_id, passage_ids in run.rankings.items()}


def _expect_no_vector_options(model: str, model_kind: str, family: str | None, index: Path | None) -> None:
    """Raise :class:`InputError` if an option of models with vectors is given for a model of pairs."""
    for option, value in (("family", family), ("index", index)):
        if value:
            raise InputError(f"--{option} {value}: a model of kind {model_kind} has no {option}", path=model)


def _find_kind(model: str, options: ModelOptions) -> str:
    """Return the kind of a model, from --kind, the model's family or the model's files."""
    if options.endpoint is not None:
        return options.endpoint.kind
    if options.kind:
        return options.kind
    family = options.family
    if family is None or family == NO_FAMILY:
        family = ""
    settings = ModelSettings(model, revision=options.revision, trust_remote_code=options.trust_remote_code)
    return model_kinds.kind_of_scorer(settings, family)


def _describe_run(run: Run | Path) -> dict[str, Any]:
    """Return the entry ``reranked`` of the manifest: name and checksum of the first stage's file.

    A run in memory has no file. Its checksum is a hash of its hits.
    """
    if isinstance(run, Run) and run.is_in_memory:
        return {"reranked": {"file": None, "sha256": key_of(run.hits)}}
    run_path = run.path if isinstance(run, Run) else run
    return {"reranked": {"file": run_path.name, "sha256": sha256_of(run_path)}}


def _vector_scorer(
    search: families.ModelSearch, release: Release, corpus: str, query_groups: Groups, first_stage: dict[str, Any]
) -> _Scorer:
    """Return the scorer of a model with vectors. Each distinct passage is encoded once.

    ``corpus`` is the config of the passages. ``first_stage`` has the manifest's entry ``reranked``.
    """
    id_lists = [passage_ids for _, passage_ids in query_groups]
    all_passage_ids = list(dict.fromkeys(itertools.chain.from_iterable(id_lists)))
    passage_count = len(all_passage_ids)

    # The work folder is not used, because the encodings are saved beside the index.
    def score(_: Path) -> _Scores:
        scorer, new_count = search.retriever.open_scorer(release, corpus, search.index_folder, id_lists)
        scores = scorer.scores(query_groups)
        cost = f"{passage_count:,} passages encoded, {new_count:,} of them now"

        def count_cut() -> dict[str, CutTexts]:
            if scorer.encoder is None or search.retriever.is_remote:
                return {}
            query_texts = [query_text for query_text, _ in query_groups]
            return cut_queries_and_passages(scorer.encoder.model, query_texts, scorer.passages, all_passage_ids)

        # The queries of an endpoint are not sent again, because they cost money.
        score_alone = None if search.retriever.is_remote else _score_alone_by(scorer)
        return _Scores(scores, cost, count_cut, score_alone)

    run_record = search.record | first_stage | {"passages_encoded": passage_count}
    measure_costs = search.retriever.measured_costs
    return _Scorer(
        record=run_record,
        tag=tag_of(run_record),
        score=score,
        close=_close_nothing,
        options=[],
        measure_costs=measure_costs,
    )


def _score_alone_by(scorer: vector_index.PassageScorer) -> Callable[[Group], object]:
    """Return a function that scores the passages of one query."""
    return lambda group: scorer.scores([group])


def _close_nothing() -> None:
    """Do nothing. A model with vectors is closed when nothing refers to the model."""


def _pair_scorer(
    job: rerankers.PairJob,
    kind: str,
    query_groups: Groups,
    search_record: dict[str, Any],
    options: list[Any],
) -> _Scorer:
    """Return the scorer of a model of pairs. ``kind`` is the kind of the model, and the tag of the run's lines.

    ``search_record`` is the run's record without the model. ``options`` are further values on which saved scores
    depend.
    """
    pair_count = sum(len(passage_ids) for _, passage_ids in query_groups)
    queries_per_file = rerankers.ENDPOINT_QUERIES_PER_FILE if kind == "listwise" else None

    def score_alone(group: Group) -> list[list[float]]:
        return rerankers.score_groups(job, job.reranker.work.devices[0], [group])

    def score(folder: Path) -> _Scores:
        scores = rerankers.score_windows(job, query_groups, folder, "rerank", queries_per_file, close_model=False)
        cost = f"{pair_count:,} pairs scored"

        def count_cut() -> dict[str, CutTexts]:
            model = rerankers.opened_model(job)
            if model is None:
                return {}
            return {"pairs": cut_pairs(model, query_groups, rerankers.passages_of(job))}

        # The queries of an endpoint are timed during the run.
        if job.reranker.is_remote:
            return _Scores(scores, cost, count_cut, None)
        return _Scores(scores, cost, count_cut, score_alone)

    run_record = describe_run(job.reranker.result_inputs(), search_record | {"pairs_scored": pair_count})
    measure_costs = job.reranker.measured_costs
    return _Scorer(
        record=run_record,
        tag=kind,
        score=score,
        close=rerankers.close_models,
        options=options,
        measure_costs=measure_costs,
    )


@contextlib.contextmanager
def _open_work_folder(out: Path | None, work_key: str) -> Iterator[Path]:
    """Yield a folder for scores: beside ``out``, where it survives an interruption, or a temporary folder without it.

    ``work_key`` is the hash of everything that the scores depend on. Scores of another key are not reused.
    """
    if out is not None:
        with work_beside(out, work_key) as folder:
            yield folder
        return
    with temporary_folder(writable_cache()) as folder:
        yield folder


def _reorder_rankings(
    rankings: dict[str, list[str]], scores: Sequence[Sequence[float]]
) -> Iterator[tuple[str, list[Hit]]]:
    """Yield (query id, hits in the new order). ``scores`` has new scores of each query's first passages."""
    for (query_id, passage_ids), query_scores in zip(rankings.items(), scores, strict=True):
        yield query_id, reorder_passages(passage_ids, query_scores)
