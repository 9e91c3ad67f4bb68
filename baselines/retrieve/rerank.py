"""The verb `rerank`: re-rank a run by a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from baselines.core.endpoint_options import (
    Dimensions,
    EncodingFormat,
    EndpointUrl,
    PassageInputType,
    QueryInputType,
    QueryModel,
    RequestCharacters,
    RequestTexts,
)
from baselines.core.model_options import (
    Backend,
    BatchTokens,
    Device,
    Dtype,
    Engine,
    Family,
    MaxLength,
    ModelName,
    NewRun,
    Normalize,
    PassagePrompt,
    Pooling,
    PromptName,
    QueryPrompt,
    RayAddress,
    Revision,
    Similarity,
    TaskCpus,
    Tokenizers,
    TopK,
    TruncateDim,
    TrustRemoteCode,
)
from builders.core.errors import UsageError
from builders.core.options import Again, AtLeastOne, Flags, Needs, Placeholder
from builders.core.verbs import verb
from builders.store.release_options import AnySplit, QueriesFile, ReleasePath, RunPath, SetName

if TYPE_CHECKING:
    from builders.store.runs import Run

# Raise this number if the same call gives another run than before.
RESULT_VERSION = 3


@verb(resumes=True)
def rerank_run(
    release: ReleasePath,
    *,
    run: RunPath,
    model: ModelName,
    split: AnySplit = "dev",
    out: NewRun | None = None,
    top_k: TopK = 50,
    set: SetName = "main",
    queries_file: QueriesFile | None = None,
    kind: Literal["cross", "llm", "listwise", "dense", "static", "sparse", "multi-vector"] | None = None,
    parallel: Annotated[AtLeastOne, Placeholder("N"), Needs("kind=listwise", "endpoint")] = 4,
    endpoint: EndpointUrl | None = None,
    query_model: QueryModel | None = None,
    dimensions: Dimensions | None = None,
    query_input_type: QueryInputType | None = None,
    passage_input_type: PassageInputType | None = None,
    encoding_format: EncodingFormat = "base64",
    request_texts: RequestTexts = 32,
    request_characters: RequestCharacters = 32_000,
    family: Family | None = None,
    query_prompt: Annotated[QueryPrompt, Flags(("--query-prompt", "--prompt"))] | None = None,
    passage_prompt: PassagePrompt | None = None,
    prompt_name: PromptName | None = None,
    pooling: Pooling | None = None,
    truncate_dim: TruncateDim | None = None,
    normalize: Normalize | None = None,
    similarity: Similarity | None = None,
    max_length: MaxLength | None = None,
    trust_remote_code: TrustRemoteCode = False,
    revision: Revision = "",
    batch_tokens: BatchTokens | None = None,
    tokenizers: Tokenizers | None = None,
    backend: Backend = "torch",
    device: Device | None = None,
    dtype: Dtype = "auto",
    engine: Engine = "local",
    ray_address: RayAddress | None = None,
    task_cpus: TaskCpus | None = None,
    again: Again = False,
) -> "Run":
    """Re-rank a run by any kind of model.

    The --top-k best passages of each query are re-ranked, by default 50 as in the paper (Section 3.1). The other
    passages follow in their old order, with scores just below the lowest new score. The queries keep the order of the
    run. An interrupted command resumes when it is started again. Each GPU has a process.

    A cross-encoder scores pairs of a query and a passage. Pairs are cut to the model's length, which is 384 tokens in
    the paper (Section A.2). Scores are logits, because the sigmoids of ``CrossEncoder.predict`` tie at 1.

    A dense, static, sparse or late-interaction model scores the passages as `run` does, with the same settings.
    Encodings of passages are cached and reused, also from the index that `run` has cached. The settings of the model
    come from options, from the model's family or from its files.

    --kind llm asks a language model if a passage answers the query. The score is the logit of yes minus the logit of
    no. For the kinds llm and listwise, --prompt is the instruction to the language model. For other models, --prompt is
    put before every query.

    --kind listwise asks a model behind an endpoint to sort 20 passages at a time. OPENAI_BASE_URL is the address of
    the endpoint, which needs OpenAI's chat API. OPENAI_API_KEY is the endpoint's key. Queries and passages are sent to
    the endpoint. The first of n passages scores n, and the last scores 1.

    With --endpoint URL, a model behind an API of re-ranking (`/v1/rerank` of Jina, Cohere, vLLM, or TEI) scores the
    passages. With --kind dense, a model behind OpenAI's API of embeddings does. ENDPOINT_API_KEY is the key. Every
    answer is kept, so that no pair is paid for twice.

    RUN2.manifest.json records the model, its precision, the number of encoded passages or scored pairs, and the
    SHA-256 of both runs.

    Args:
        run: run to re-rank
        model: hub name, folder, or name at the endpoint
        out: run to write, gzipped if it ends in .gz. Without it, a call from Python writes nothing.
        queries_file: queries of the run, in place of the split's: JSON lines (_id, text), TSV (id, text), or a text
            per line
        kind: kind of model (default: detected from the model's files)
        parallel: simultaneous requests to an endpoint

    Returns:
        The re-ranked run: hits by query, best first.

    Raises:
        InputError: the run has an unknown query or passage, the model cannot be opened, an option does not fit the
            kind of model, or the endpoint fails.

    Examples:
        python -m baselines rerank --release build/sample --split dev --run build/runs/bm25.dev.run.gz \\
          --model build/models/ce-bm25-neg --out build/runs/ce.dev.run.gz
        OPENAI_BASE_URL=http://localhost:8000/v1 python -m baselines rerank --release DIR --run RUN --out RUN2 \\
          --top-k 20 --kind listwise --model NAME
        python -m baselines rerank --release DIR --run RUN --out RUN2 --endpoint https://api.jina.ai/v1 --model NAME
    """
    arguments = dict(locals())  # the parameters, before an import below adds a name

    from baselines.core.endpoint_options import endpoint_name, read_endpoint_options
    from baselines.core.run_manifest import manifest_path, run_outputs
    from baselines.retrieve.family_table import family_settings
    from baselines.retrieve.model_files import UNCHANGING, device_kind, model_input, shown_name
    from builders.core.finished_outputs import VerbCall, find_finished, is_kept, option_values, record_finished
    from builders.core.hub import check_models
    from builders.core.paths import check_outputs
    from builders.store.layout import SETS
    from builders.store.original_runs import ORIGINAL_ID_SPLITS
    from builders.store.own_queries import open_queries
    from builders.store.reader import open_release
    from builders.store.runs import Run
    from builders.store.verb_inputs import release_input, run_input

    # Wrong names and paths are reported before the release is read.
    endpoint_options = read_endpoint_options(arguments, default_kind="cross")
    is_remote = kind == "listwise" or endpoint_options is not None
    if is_remote and engine != "local":
        raise UsageError("engine: a model behind an endpoint has no such option; remove --engine")
    if not is_remote:  # a model behind an endpoint may have any name
        check_models(model)
    release = open_release(release)
    check_outputs(run_outputs(out), [run, queries_file, release.path, Path(model)])
    own_queries = None
    if queries_file is not None:
        own_queries = open_queries(queries_file)

    # Everything that the run depends on. A finished run of the same call is returned.
    call = None
    if is_kept(out):
        configs = SETS[set]
        # A run may have original ids, which the config original-ids of the release translates.
        splits = [(configs.corpus, "corpus"), (configs.queries, split), *ORIGINAL_ID_SPLITS]
        inputs = {"run": run_input(run)}
        if own_queries is not None:
            splits.remove((configs.queries, split))
            inputs["queries_file"] = own_queries.as_input()
        inputs["release"] = release_input(release, splits)
        if not is_remote:  # a model behind an endpoint has no files
            inputs["model"] = model_input(model, revision)
        options = option_values(arguments, inputs, (*UNCHANGING, "queries_file"))
        options["device"] = device_kind(device)
        # The manifest has the model's name, so the name of a model's folder counts. Its path does not.
        options["name"] = shown_name(model)
        options["family"] = family_settings(model, family)
        options["endpoint"] = endpoint_name(endpoint_options)
        call = VerbCall("rerank", RESULT_VERSION, options, inputs)
    finished = find_finished(out, call, again=again)
    if finished:
        return Run(finished.path)

    # Now the model libraries, whose import takes seconds.
    from baselines.core.settings import ModelOptions
    from baselines.retrieve.clusters import cluster_of
    from baselines.retrieve.devices import work_of
    from baselines.retrieve.rerankers import endpoint_work
    from baselines.retrieve.second_stage import rescore_run

    model_options = ModelOptions(
        family=family,
        query_prompt=query_prompt,
        passage_prompt=passage_prompt,
        prompt_name=prompt_name,
        pooling=pooling,
        truncate_dim=truncate_dim,
        normalize=normalize,
        similarity=similarity,
        max_length=max_length,
        revision=revision,
        trust_remote_code=trust_remote_code,
        kind=kind,
        endpoint=endpoint_options,
    )
    if is_remote:
        work = endpoint_work(parallel)
    else:
        cluster = cluster_of(engine, ray_address, task_cpus, device)
        work = work_of(device, dtype, batch_tokens, tokenizers, backend, cluster)
    rescored = rescore_run(
        run,
        model=model,
        options=model_options,
        work=work,
        release=release,
        set_name=set,
        split=split,
        top_k=top_k,
        out=out,
        own_queries=own_queries,
    )
    if out is not None:
        record_finished(out, call, files=[out, manifest_path(out)])
    return rescored.run
