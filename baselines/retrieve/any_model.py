"""The verb `run`: encode, search and evaluate with any model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from baselines.core.endpoint_options import (
    Dimensions,
    EncodingFormat,
    EndpointUrl,
    Parallel,
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
from builders.core.options import Again, Placeholder, ShellDefault, Use
from builders.core.verbs import TABLE_FORMATS, verb
from builders.store.release_options import AnySplit, QueriesFile, ReleasePath, RunPath, SetName

if TYPE_CHECKING:
    from baselines.retrieve.model_report import ModelRun

_DEFAULT_OUT = "NAME.SPLIT.run.gz"  # the help's placeholder for the default of --out
_LISTWISE = "listwise"  # the kind of a language model behind an endpoint
# Raise this number if the same call gives another run than before.
RESULT_VERSION = 3


@verb(formats=TABLE_FORMATS, resumes=True)
def run_model(
    model: Annotated[ModelName, Use.POSITIONAL, Placeholder("MODEL")],
    release: ReleasePath,
    *,
    split: AnySplit = "dev",
    out: Annotated[Path, Placeholder("RUN"), ShellDefault(_DEFAULT_OUT)] | None = None,
    top_k: TopK = 50,
    set: SetName = "main",
    over: RunPath | None = None,
    queries_file: QueriesFile | None = None,
    family: Family | None = None,
    query_prompt: QueryPrompt | None = None,
    passage_prompt: PassagePrompt | None = None,
    prompt_name: PromptName | None = None,
    pooling: Pooling | None = None,
    truncate_dim: TruncateDim | None = None,
    normalize: Normalize | None = None,
    similarity: Similarity | None = None,
    max_length: MaxLength | None = None,
    trust_remote_code: TrustRemoteCode = False,
    revision: Revision = "",
    kind: Annotated[str, Placeholder("KIND")] | None = None,
    index: Annotated[Path, Placeholder("DIR")] | None = None,
    endpoint: EndpointUrl | None = None,
    parallel: Parallel = 4,
    query_model: QueryModel | None = None,
    dimensions: Dimensions | None = None,
    query_input_type: QueryInputType | None = None,
    passage_input_type: PassageInputType | None = None,
    encoding_format: EncodingFormat = "base64",
    request_texts: RequestTexts = 32,
    request_characters: RequestCharacters = 32_000,
    batch_tokens: BatchTokens | None = None,
    tokenizers: Tokenizers | None = None,
    backend: Backend = "torch",
    device: Device | None = None,
    dtype: Dtype = "auto",
    engine: Engine = "local",
    ray_address: RayAddress | None = None,
    task_cpus: TaskCpus | None = None,
    again: Again = False,
) -> "ModelRun":
    """Any model in one command: encode, search, evaluate.

    MODEL is a name on the hub or a folder. An option determines a setting (prompts, pooling, lengths), else the
    model's family (baselines/models.toml, with a source for each value), else the model's files. The family's pooling
    applies only to models without files of sentence-transformers. The settings and their sources are printed above the
    scores. RUN.manifest.json records the settings, their sources and the release's fingerprints. The last column of
    RUN has the model's name, its commit, and the first digits of a hash of everything that affects the run.

    The index is cached, by default in the folder indexes of the user's cache (docs/stability.md). Another split of the
    same release uses the same index. An interrupted command resumes when it is started again.

    With --over RUN, MODEL is the second stage of a search. MODEL scores only the --top-k best passages of each query
    in RUN, as `rerank` does, and may be a cross-encoder, too. The measures of both stages are printed.

    With --endpoint URL, MODEL is a model behind OpenAI's API of embeddings, or with --over behind an API of re-ranking.
    Passages and queries are sent there. ENDPOINT_API_KEY is the key. Every answer is kept, so that no text is paid for
    twice.

    --trust-remote-code runs Python code of the model's repository on this machine. Read the code first, and add
    --revision.

    Args:
        model: name on the hub, a folder, or name at the endpoint
        out: run to write, gzipped if it ends in .gz (default: NAME.SPLIT.run.gz). Without it, a call from Python
            writes nothing.
        over: score only the best passages of this run
        kind: dense, static, sparse or multi-vector (default: by the model's files)
        index: directory of the index, or DIR.parts with --over (default: cached)

    Returns:
        The run, with the model's settings and the measures in its attribute ``report``.

    Raises:
        InputError: the model cannot be opened, an option does not fit the model, or the split has no queries.

    Examples:
        python -m baselines run BAAI/bge-small-zh-v1.5 --release build/sample --split dev
        python -m baselines run Qwen/Qwen3-Embedding-0.6B --release DIR --prompt-name duretrieval --out RUN
        python -m baselines run NAME --release DIR --endpoint https://api.openai.com/v1
        python -m baselines run ORG/NAME --release DIR --over bm25.dev.run.gz --top-k 20
        python -m baselines run ORG/NAME --release DIR --queries-file questions.tsv --out RUN
        python -m baselines run ORG/NAME --release DIR --query-prompt $'Instruct: find passages\\nQuery: ' --pooling cls
    """
    arguments = dict(locals())  # the parameters, before an import below adds a name

    from baselines.core.endpoint_options import endpoint_name, read_endpoint_options
    from baselines.core.run_manifest import manifest_path, run_outputs
    from baselines.retrieve.family_table import check_family, family_settings
    from baselines.retrieve.model_files import UNCHANGING, device_kind, model_input, shown_name
    from baselines.retrieve.model_report import ModelRun, SearchedSplit
    from builders.core.finished_outputs import VerbCall, find_finished, is_kept, option_values, record_finished
    from builders.core.hub import check_models
    from builders.core.paths import check_outputs
    from builders.core.typed import read_json
    from builders.store.layout import SETS
    from builders.store.original_runs import ORIGINAL_ID_SPLITS
    from builders.store.own_queries import open_queries
    from builders.store.reader import open_release
    from builders.store.runs import read_run
    from builders.store.verb_inputs import release_input, run_input

    # Check the inputs that need neither the hub nor a model library.
    endpoint_options = read_endpoint_options(arguments)
    if endpoint_options is None:
        check_models(model)
    elif endpoint_options.kind == "cross" and over is None:
        raise UsageError("endpoint: a re-ranker needs --over RUN, the run to re-rank")
    if kind == _LISTWISE and engine != "local":
        raise UsageError("engine: a model behind an endpoint has no such option; remove --engine")
    if over is None and endpoint_options is None:
        check_family(model, family, trust_remote_code=trust_remote_code)
    own_queries = None
    searched_name = split  # in the default of --out
    if queries_file is not None:
        own_queries = open_queries(queries_file)
        searched_name = Path(own_queries.name).stem
    if out == Path(_DEFAULT_OUT):
        out = Path(f"{shown_name(model).rpartition('/')[2]}.{searched_name}.run.gz")
    searched_split = SearchedSplit(open_release(release), set, split, own_queries)
    check_outputs(run_outputs(out), [over, queries_file, searched_split.release.path, Path(model)])
    searched_split.expect_texts()  # before a model is downloaded

    # Return the finished run of an earlier, equal call.
    call = None
    if is_kept(out):
        splits = [(SETS[set].corpus, "corpus"), (SETS[set].queries, split)]
        if over is not None:
            splits += ORIGINAL_ID_SPLITS
        inputs = {}
        if own_queries is not None:
            splits.remove((SETS[set].queries, split))
            inputs["queries_file"] = own_queries.as_input()
        inputs["release"] = release_input(searched_split.release, splits)
        is_remote = kind == _LISTWISE or endpoint_options is not None
        if not is_remote:  # a model behind an endpoint has no files
            inputs["model"] = model_input(model, revision)
        if over is not None:
            inputs["over"] = run_input(over)
        recorded_options = option_values(arguments, inputs, (*UNCHANGING, "queries_file"))
        recorded_options["device"] = device_kind(device)
        # The run has the model's name, so the name of a model's folder counts. Its path does not.
        recorded_options["name"] = shown_name(model)
        recorded_options["family"] = family_settings(model, family)
        recorded_options["endpoint"] = endpoint_name(endpoint_options)
        call = VerbCall("run", RESULT_VERSION, recorded_options, inputs)
    finished_run = find_finished(out, call, again=again)
    if finished_run:
        first_stage = None
        if over is not None:
            first_stage = read_run(over)
        return ModelRun(
            finished_run.path,
            None,
            manifest=read_json(manifest_path(finished_run.path), dict[str, Any]),
            searched_split=searched_split,
            first_stage=first_stage,
            stages=[(name, value, cost) for name, value, cost in finished_run.result["stages"]],
        )

    # Now the model libraries, whose import takes seconds.
    from baselines.core.settings import ModelOptions
    from baselines.retrieve.clusters import cluster_of
    from baselines.retrieve.devices import work_of
    from baselines.retrieve.model_run import search_passages, search_run
    from baselines.retrieve.rerankers import endpoint_work

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
    if kind == _LISTWISE or endpoint_options is not None:
        work = endpoint_work(parallel)
    else:
        cluster = cluster_of(engine, ray_address, task_cpus, device)
        work = work_of(device, dtype, batch_tokens, tokenizers, backend, cluster)
    # Search the passages of --over, or all passages of the release.
    if over is not None:
        model_run = search_run(
            model, over, searched_split, options=model_options, work=work, top_k=top_k, out=out, index=index
        )
    else:
        model_run = search_passages(
            model, searched_split, options=model_options, work=work, top_k=top_k, out=out, index=index
        )
    if out is not None:
        record_finished(out, call, files=[out, manifest_path(out)], result={"stages": model_run.stages})
    return model_run
