"""The verb `encode`: embed passages or queries."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

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
    MaxLength,
    ModelName,
    PassagePrompt,
    QueryPrompt,
    RayAddress,
    Revision,
    Similarity,
    TaskCpus,
    Tokenizers,
)
from baselines.retrieve.vector_options import EmbeddingsPath
from builders.core.errors import UsageError
from builders.core.options import Again, AtLeastOne, Excludes, Needs, Placeholder
from builders.core.verbs import verb
from builders.store.release_options import AnySplit, ReleasePath, SetName

if TYPE_CHECKING:
    from baselines.retrieve.index_files import VectorIndex

# Raise this number if the same call gives other embeddings than before.
RESULT_VERSION = 2


@verb(resumes=True)
def encode_texts(
    release: ReleasePath,
    *,
    model: ModelName,
    out: Annotated[Path, Placeholder("DIR")],
    set: SetName = "main",
    queries: bool = False,
    split: Annotated[AnySplit, Needs("queries")] | None = None,
    store: Annotated[Literal["float16", "int8", "binary"], Excludes("queries")] = "float16",
    reuse: EmbeddingsPath | None = None,
    shard_rows: Annotated[AtLeastOne, Placeholder("N")] | None = None,
    endpoint: EndpointUrl | None = None,
    query_prompt: Annotated[QueryPrompt, Needs("endpoint")] | None = None,
    passage_prompt: Annotated[PassagePrompt, Needs("endpoint")] | None = None,
    similarity: Annotated[Similarity, Needs("endpoint")] | None = None,
    parallel: Parallel = 4,
    query_model: QueryModel | None = None,
    dimensions: Dimensions | None = None,
    query_input_type: QueryInputType | None = None,
    passage_input_type: PassageInputType | None = None,
    encoding_format: EncodingFormat = "base64",
    request_texts: RequestTexts = 32,
    request_characters: RequestCharacters = 32_000,
    max_length: MaxLength | None = None,
    batch_tokens: BatchTokens | None = None,
    tokenizers: Tokenizers | None = None,
    backend: Backend = "torch",
    revision: Revision = "",
    device: Device | None = None,
    dtype: Dtype = "auto",
    engine: Engine = "local",
    ray_address: RayAddress | None = None,
    task_cpus: TaskCpus | None = None,
    again: Again = False,
) -> "VectorIndex":
    """Embed a release's passages or queries by a dual-encoder.

    The embeddings are 16-bit floats in NumPy files that can be memory-mapped. Row n is passage n of the release, or
    query n of the split. An interrupted command resumes after the last complete file when it is started again. A
    complete directory from the same release, model and options is not encoded again. manifest.json records the model's
    precision. Each GPU has a process, which holds the texts and embeddings of one file in memory.

    With --endpoint URL, the model is behind OpenAI's API of embeddings. The texts are sent there. ENDPOINT_API_KEY is
    the key. Every vector is kept, so that no text is paid for twice. manifest.json records tokens and seconds.

    --store int8 and --store binary write smaller embeddings of passages: a byte or a bit for each dimension. The codes
    are those of sentence-transformers' quantize_embeddings. The ranges of int8 are the smallest and largest numbers of
    8,192 passages in equal distances (or of all passages), which are encoded first. docs/small_vectors.md has the
    effect on scores.

    The passages are unpacked once into the folder texts of the user's cache (docs/stability.md).

    Args:
        model: sentence-transformers model: hub name or folder; or name at the endpoint
        out: directory of embeddings to write
        queries: encode queries instead of passages
        store: form of the passages' embeddings: 16-bit floats, 8-bit integers or single bits
        reuse: 16-bit embeddings of the same texts and model, to convert or copy instead of encoding
        split: split of the queries, with --queries (default: dev)
        shard_rows: rows per file (default: 131,072 on a GPU or for static models, else 8,192)

    Returns:
        The open index: the directory's path, manifest and files.

    Raises:
        InputError: the model cannot be opened, the release lacks the split, ``out`` has other files, or ``reuse`` has
            other embeddings.

    Examples:
        python -m baselines encode --release build/sample --model build/models/de-bm25-neg \\
          --out build/embeddings/passages
        python -m baselines encode --release DIR --model ORG/NAME --store int8 --out DIR3
        python -m baselines encode --release DIR --model ORG/NAME --queries --split dev --out DIR2
        python -m baselines encode --release DIR --model NAME --endpoint http://localhost:8000/v1 --out DIR2
    """
    arguments = dict(locals())  # the parameters, before an import below adds a name

    from baselines.core.endpoint_options import endpoint_name, read_endpoint_options
    from baselines.core.settings import ModelOptions, ModelSettings
    from baselines.retrieve.index_files import VectorIndex, open_vectors, vectors_input
    from baselines.retrieve.model_files import UNCHANGING, device_kind, model_input, shown_name
    from builders.core.finished_outputs import (
        VerbCall,
        find_finished,
        is_kept,
        known_checksums,
        option_values,
        record_finished,
    )
    from builders.core.hub import check_models
    from builders.core.paths import real_path
    from builders.store.draft import expect_apart
    from builders.store.layout import SETS
    from builders.store.reader import open_release
    from builders.store.verb_inputs import release_input

    endpoint_options = read_endpoint_options(arguments)
    if endpoint_options is None:
        check_models(model)
    elif endpoint_options.kind == "cross":
        raise UsageError("endpoint: expected the address of embeddings, which ends in /v1 or /embeddings")
    opened_release = open_release(release)
    expect_apart(opened_release.path, {"--out": out})
    if isinstance(reuse, Path) and real_path(reuse) == real_path(out):
        raise UsageError(f"--reuse and --out name the same directory {out}; expected different directories")
    if queries:
        config = SETS[set].queries
        encoded_split = split or "dev"
    else:
        config = SETS[set].corpus
        encoded_split = "corpus"

    # Return the finished embeddings of an earlier, equal call.
    call = None
    if is_kept(out):
        inputs = {"release": release_input(opened_release, [(config, encoded_split)])}
        if endpoint_options is None:
            inputs["model"] = model_input(model, revision)
        if reuse is not None:
            inputs["reuse"] = vectors_input(reuse)
        recorded_options = option_values(arguments, inputs, UNCHANGING)
        recorded_options["split"] = encoded_split
        # The manifest has the model's name, so the name of a model's folder counts. Its path does not.
        recorded_options["name"] = shown_name(model)
        recorded_options["device"] = device_kind(device)
        recorded_options["endpoint"] = endpoint_name(endpoint_options)
        call = VerbCall("encode", RESULT_VERSION, recorded_options, inputs)
    finished_index = find_finished(out, call, again=again)
    if finished_index:
        return VectorIndex.read(finished_index.path)

    # Now the model libraries, whose import takes seconds.
    from baselines.retrieve.clusters import cluster_of
    from baselines.retrieve.devices import work_of
    from baselines.retrieve.model_kinds import expect_encoder
    from baselines.retrieve.vector_index import Retriever, open_retriever

    retriever: Retriever
    if endpoint_options is not None:
        from baselines.retrieve.endpoint_models import open_endpoint_encoder

        model_options = ModelOptions(
            query_prompt=query_prompt,
            passage_prompt=passage_prompt,
            similarity=similarity,
            endpoint=endpoint_options,
        )
        retriever = open_endpoint_encoder(model, model_options)
    else:
        cluster = cluster_of(engine, ray_address, task_cpus, device)
        work = work_of(device, dtype, batch_tokens, tokenizers, backend, cluster)
        model_settings = ModelSettings(model, revision=revision, max_length=max_length)
        retriever = open_retriever(model_settings, work, expect_encoder(model_settings))
    reused = None if reuse is None else open_vectors(reuse)
    index = retriever.index(
        opened_release, config, out, encoded_split, shard_rows, again=again, store=store, reused=reused
    )
    record_finished(out, call, checksums=known_checksums(out, index.files))
    return index
