"""The verb `search`: search by embeddings."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from baselines.core.model_options import Device, Dtype, ModelName, NewRun, Revision, TopK
from baselines.retrieve.vector_options import EmbeddingsPath
from builders.core.errors import InputError, UsageError, log
from builders.core.options import Again, AtLeastOne, Needs, Placeholder
from builders.core.verbs import verb
from builders.store.release_options import AnySplit, QueriesFile, ReleasePath, SampleConfig, SetName

if TYPE_CHECKING:
    from builders.store.runs import Run

_TAG = "dense-exact"
# Raise this number if the same call gives another run than before.
RESULT_VERSION = 2
# Options that change no run: an engine only selects candidates, which are scored again exactly. The content of
# a file of queries is an input.
_UNCHANGING = ("engine", "queries_file")


@verb()
def search_vectors(
    release: ReleasePath,
    *,
    passages: EmbeddingsPath,
    model: ModelName | None = None,
    queries: EmbeddingsPath | None = None,
    queries_file: Annotated[QueriesFile, Needs("model")] | None = None,
    split: AnySplit = "dev",
    out: NewRun | None = None,
    top_k: TopK = 50,
    set: SetName = "main",
    sample: SampleConfig | None = None,
    rescore: Annotated[AtLeastOne, Placeholder("N")] | None = None,
    rescore_with: Annotated[EmbeddingsPath, Needs("rescore")] | None = None,
    engine: Literal["faiss", "torch"] | None = None,
    revision: Annotated[Revision, Needs("model")] = "",
    device: Device | None = None,
    dtype: Dtype = "auto",
    again: Again = False,
) -> "Run":
    """Search by embeddings: write a TREC run of a split's queries.

    The search is exact, by FAISS on a CPU and by PyTorch on GPUs. The embeddings that `encode` wrote are memory-mapped
    and read block by block, so memory does not grow with the number of passages.

    Smaller embeddings (`encode --store`) are searched in the same way, except binary ones: their first stage compares
    the signs of query and passage, on the CPU. --rescore N then scores the best N times --top-k passages again, by the
    full numbers of the query and the signs of the passage, or by the embeddings of --rescore-with. int8 embeddings need
    --rescore-with and 16-bit embeddings. docs/small_vectors.md has scores.

    RUN.manifest.json records the model, the precision of passages and queries, and the SHA-256 of the run. Different
    precisions of passages and queries cause a warning.

    Args:
        passages: embeddings of the passages
        model: model that encoded the passages, to encode the queries
        queries: embeddings of the queries, instead of --model
        out: run to write, gzipped if it ends in .gz. Without it, a call from Python writes nothing.
        rescore: score the best N times --top-k passages again (default: no)
        rescore_with: larger embeddings of the same passages by the same model, of which only these passages are read
        engine: search library (default: faiss on a CPU, torch on a GPU)

    Returns:
        The run: hits by query, best first.

    Raises:
        InputError: the embeddings are damaged, belong to another release or model, or ``rescore`` would change nothing.

    Examples:
        python -m baselines search --release build/sample --split dev --model build/models/de-bm25-neg \\
          --passages build/embeddings/passages --out build/runs/de.dev.run.gz
        python -m baselines search --release DIR --split test --queries DIR2 --passages DIR3 --out RUN --engine torch
    """
    arguments = dict(locals())  # the parameters, before an import below adds a name

    from baselines.core.run_manifest import run_outputs
    from baselines.retrieve.index_files import open_vectors, vectors_input
    from baselines.retrieve.model_files import device_kind, model_input
    from builders.core.finished_outputs import VerbCall, find_finished, is_kept, option_values, record_finished
    from builders.core.hub import check_models
    from builders.core.paths import check_outputs
    from builders.store.layout import SETS
    from builders.store.own_queries import open_queries
    from builders.store.reader import open_release
    from builders.store.runs import Hit, Run, best_first, write_run
    from builders.store.verb_inputs import release_input

    if (model is None) == (queries is None):
        raise UsageError("expected either --model or --queries")
    check_models(model)
    opened_release = open_release(release)
    model_path = Path(model) if model else None
    check_outputs(run_outputs(out), [queries_file, passages, queries, model_path, opened_release.path])
    configs = SETS[set]
    own_queries = None
    if queries_file is not None:
        own_queries = open_queries(queries_file)

    # Return the finished run of an earlier, equal call.
    call = None
    if is_kept(out):
        # No release has the config "", and release_input skips it.
        splits = [(configs.corpus, "corpus"), (configs.queries, split), (sample or "", "corpus")]
        inputs = {"passages": vectors_input(passages)}
        if own_queries is not None:
            splits.remove((configs.queries, split))
            inputs["queries_file"] = own_queries.as_input()
        inputs["release"] = release_input(opened_release, splits)
        if rescore_with is not None:
            inputs["rescore_with"] = vectors_input(rescore_with)
        if queries is not None:
            inputs["queries"] = vectors_input(queries)
        if model is not None:
            inputs["model"] = model_input(model, revision)
        recorded_options = option_values(arguments, inputs, _UNCHANGING)
        recorded_options["device"] = device_kind(device)
        call = VerbCall("search", RESULT_VERSION, recorded_options, inputs)
    finished_run = find_finished(out, call, again=again)
    if finished_run:
        return Run(finished_run.path)

    # Now the model libraries, whose import takes seconds.
    from baselines.core.passages import open_passages, sample_rows
    from baselines.core.run_costs import ALONE, collect_costs, report_texts
    from baselines.core.run_manifest import describe_run, describe_search, manifest_path, write_manifest
    from baselines.measure.qrels import read_queries
    from baselines.retrieve.dense import encoding_model, expect_model
    from baselines.retrieve.devices import devices_of, dtype_of
    from baselines.retrieve.encoder import TextEncoder, encode_queries
    from baselines.retrieve.rescoring import choose_rescoring, search_stored
    from baselines.retrieve.vector_index import name_hits
    from baselines.retrieve.vector_stores import BINARY, FLOAT16

    # Open the passages' embeddings, and open or compute the queries' embeddings.
    passage_vectors = open_vectors(passages)
    passage_vectors.check("passages", opened_release, configs.corpus, "corpus")
    if engine is not None and passage_vectors.store_name == BINARY:
        raise UsageError(
            f"--engine {engine} cannot search the binary embeddings {passage_vectors.path}; remove --engine"
        )
    larger_vectors = None
    if rescore_with is not None:
        larger_vectors = open_vectors(rescore_with)
        larger_vectors.check("passages", opened_release, configs.corpus, "corpus")
        larger_fingerprint = larger_vectors.manifest["model"]["fingerprint"]
        expect_model(passage_vectors, larger_vectors.path, larger_fingerprint, larger_vectors.precision)
    rescoring = choose_rescoring(passage_vectors, rescore, larger_vectors)
    devices = devices_of(device)
    query_rows = own_queries.rows if own_queries else read_queries(opened_release, split, configs.queries)
    if not query_rows:
        raise InputError(f"the split {split!r} has no queries", path=opened_release.path)

    encoder = None
    if queries is not None:
        query_index = open_vectors(queries)
        query_index.check("queries", opened_release, configs.queries, split)
        fingerprint = query_index.manifest["model"]["fingerprint"]
        query_precision = query_index.precision
        expect_model(passage_vectors, query_index.path, fingerprint, query_precision)
        stored_vectors = query_index.all()
    else:
        assert model is not None
        # The queries are encoded on one device; `encode --queries` uses all devices.
        encoder = TextEncoder(encoding_model(model, passage_vectors, devices[0], dtype, revision), "query")
        query_precision = dtype_of(dtype, devices[0])

    corpus = open_passages(opened_release, configs.corpus)
    if sample:
        passage_vectors = replace(passage_vectors, chosen=sample_rows(opened_release, configs.corpus, sample))

    def search_queries(numbers: Sequence[int]) -> Iterator[tuple[str, list[Hit]]]:
        """Return the ids and the hits of some queries, by their positions in ``query_rows``.

        The hits of a query are computed when they are read.
        """
        if encoder is not None:
            query_vectors = encode_queries(encoder, [query_rows[number][1] for number in numbers])
        else:
            query_vectors = stored_vectors[list(numbers)]
        nearest_rows = search_stored(
            passage_vectors, query_vectors, corpus, devices, top_k, engine_name=engine or "", rescoring=rescoring
        )
        query_ids = [query_rows[number][0] for number in numbers]
        return zip(query_ids, name_hits(nearest_rows, corpus, top_k), strict=True)

    def search_alone(number: int) -> list[tuple[str, list[Hit]]]:
        return list(search_queries([number]))

    # Describe the search in the run's manifest.
    precisions = {"passages": passage_vectors.precision, "queries": query_precision, "search": "fp32"}
    search_record = describe_search(
        opened_release, kind="dense", set_name=set, split=split, top_k=top_k, own_queries=own_queries
    )
    search_record |= {"index": "exact", "sample": sample, "precision": precisions}
    if passage_vectors.store_name != FLOAT16:
        search_record["store"] = passage_vectors.store_name
    if rescoring is not None:
        search_record["rescore"] = {"candidates": rescoring.factor * top_k, "store": rescoring.vectors.store_name}
    manifest = describe_run(passage_vectors.manifest["model"], search_record)
    all_numbers = range(len(query_rows))
    if out is None:
        hits_by_query = {query_id: best_first(hits) for query_id, hits in search_queries(all_numbers)}
        return Run.in_memory("search", hits_by_query, manifest)

    with collect_costs() as costs:
        with report_texts("queries", len(query_rows)):
            line_count = write_run(out, search_queries(all_numbers), tag=_TAG)
        if is_kept(out):
            costs.measured = ALONE if encoder is not None else f"{ALONE}, without its encoding"
            number_by_query = {query_id: number for number, (query_id, _) in enumerate(query_rows)}
            costs.measure_queries(search_alone, number_by_query)
    write_manifest(out, manifest, _TAG, len(query_rows), line_count, costs.to_json())
    record_finished(out, call, files=[out, manifest_path(out)])
    precision_text = ", ".join(f"{name} {precision}" for name, precision in precisions.items())
    log.info("%s: %d lines for %d queries; precision: %s", out, line_count, len(query_rows), precision_text)
    return Run(out)
