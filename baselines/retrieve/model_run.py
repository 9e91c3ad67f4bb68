"""Search by a model: all passages, or the best passages of a run."""

from pathlib import Path

from baselines.core.run_costs import collect_costs
from baselines.core.run_manifest import tag_of, write_manifest
from baselines.core.settings import ModelOptions
from baselines.retrieve.cut_texts import cut_json, cut_queries_and_passages
from baselines.retrieve.devices import Work
from baselines.retrieve.families import prepare_search
from baselines.retrieve.model_files import shown_name
from baselines.retrieve.model_report import ModelRun, SearchedSplit
from baselines.retrieve.second_stage import rescore_run
from builders.core.errors import log
from builders.core.finished_outputs import is_kept
from builders.store.layout import SETS
from builders.store.runs import Run, best_first, read_run, write_run


def search_passages(
    model: str,
    searched_split: SearchedSplit,
    *,
    options: ModelOptions,
    work: Work,
    top_k: int,
    out: Path | None = None,
    index: Path | None = None,
) -> ModelRun:
    """Search all passages by a model, and find ``top_k`` passages for each query.

    Write ``out`` and its manifest, unless ``out`` is None.
    ``index`` is the directory of the index (None: in the cache). Raises :class:`InputError`.
    """
    release = searched_split.release
    configs = SETS[searched_split.set_name]
    queries = searched_split.read_queries()
    search = prepare_search(
        model=model,
        options=options,
        work=work,
        release=release,
        set_name=searched_split.set_name,
        split=searched_split.split,
        own_queries=searched_split.own_queries,
        top_k=top_k,
        index=index,
    )
    query_texts = [query_text for _, query_text in queries]
    tag = tag_of(search.record)
    with collect_costs() as costs:
        passage_index = search.retriever.passage_index(release, configs.corpus, search.index_folder)
        open_search = search.retriever.open_search(release, configs.corpus, passage_index, top_k)
        ranked_hits = zip((query_id for query_id, _ in queries), open_search.hits(query_texts), strict=True)
        if out is None:
            hits_by_query = {query_id: best_first(hits) for query_id, hits in ranked_hits}
        else:
            line_count = write_run(out, ranked_hits, tag=tag)
        # The queries of an endpoint are not sent again, because they cost money.
        if is_kept(out) and not search.retriever.is_remote:
            costs.measure_queries(open_search.search_alone, dict(queries))
    measured = costs.to_json() | search.retriever.measured_costs()
    if not search.retriever.is_remote:
        measured |= cut_json(cut_queries_and_passages(open_search.encoder.model, query_texts, open_search.passages))
    if out is None:
        manifest = search.record | measured
        return ModelRun(Path(shown_name(model)), hits_by_query, manifest=manifest, searched_split=searched_split)
    manifest = write_manifest(out, search.record, tag, len(queries), line_count, measured)
    log.info("%s: %d lines for %d queries; settings: %s.manifest.json", out, line_count, len(queries), out)
    return ModelRun(out, None, manifest=manifest, searched_split=searched_split)


def search_run(
    model: str,
    first_run: Run | Path,
    searched_split: SearchedSplit,
    *,
    options: ModelOptions,
    work: Work,
    top_k: int,
    out: Path | None = None,
    index: Path | None = None,
) -> ModelRun:
    """Re-rank the ``top_k`` best passages of each query of ``first_run`` by a model.

    The other passages follow in their old order. Write ``out`` and its manifest, unless ``out`` is None. ``index`` is
    the directory of the index of a model with vectors (None: in the cache). Raises :class:`InputError`, as
    :func:`.second_stage.rescore_run` does.
    """
    first_stage = read_run(first_run)
    rescored = rescore_run(
        first_stage,
        model=model,
        options=options,
        work=work,
        release=searched_split.release,
        set_name=searched_split.set_name,
        split=searched_split.split,
        own_queries=searched_split.own_queries,
        top_k=top_k,
        out=out,
        index=index,
    )
    # Lines of the report: name, value, source. The last column has the costs instead of a source.
    stages = [
        ("first stage", first_stage.path.name, "0 passages encoded"),
        ("second stage", f"top {top_k}", f"{rescored.cost}, {rescored.seconds:.1f} s"),
    ]
    # A written run is read again on use, so that its hits need no memory.
    hits = rescored.run.hits if out is None else None
    manifest = rescored.manifest | rescored.measured
    return ModelRun(
        rescored.run.path,
        hits,
        manifest=manifest,
        searched_split=searched_split,
        first_stage=first_stage,
        stages=stages,
    )
