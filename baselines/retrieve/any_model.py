"""The verb `run`: encode, search and evaluate with any model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from baselines.core.model_options import (
    Backend,
    BatchTokens,
    Device,
    Dtype,
    Family,
    MaxLength,
    ModelName,
    Normalize,
    PassagePrompt,
    Pooling,
    PromptName,
    QueryPrompt,
    Revision,
    Similarity,
    Tokenizers,
    TopK,
    TruncateDim,
    TrustRemoteCode,
)
from builders.core.options import ShellDefault, Shown, Use
from builders.core.verbs import TABLE_FORMATS, verb
from builders.store.release_options import AnySplit, ReleasePath, RunPath, SetName

if TYPE_CHECKING:
    from baselines.retrieve.model_run import ModelRun

_DEFAULT_OUT = "NAME.SPLIT.run.gz"


@verb(formats=TABLE_FORMATS)
def run_model(
    model: Annotated[ModelName, Use.POSITIONAL, Shown("MODEL")],
    release: ReleasePath,
    *,
    split: AnySplit = "dev",
    out: Annotated[Path, Shown("RUN"), ShellDefault(_DEFAULT_OUT)] | None = None,
    top_k: TopK = 50,
    set: SetName = "main",
    over: RunPath | None = None,
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
    kind: Annotated[str, Shown("KIND")] | None = None,
    index: Annotated[Path, Shown("DIR")] | None = None,
    batch_tokens: BatchTokens | None = None,
    tokenizers: Tokenizers | None = None,
    backend: Backend = "torch",
    device: Device | None = None,
    dtype: Dtype = "auto",
) -> "ModelRun":
    """Any model in one command: encode, search, evaluate.

    MODEL is a name on the hub or a folder. An option determines a setting (prompts, pooling, lengths), else the
    model's family (baselines/models.toml, with a source for each value), else the model's files. The family's pooling
    applies only to models without files of sentence-transformers. The settings and their sources are printed above the
    scores. RUN.manifest.json records the settings, their sources and the release's fingerprints. The last column of
    RUN has the model's name, its commit, and the first digits of a hash of everything that affects the run.

    The index is cached, by default in $XDG_CACHE_HOME/dureader_retrieval/indexes. Another split of the same release
    uses the same index. An interrupted command resumes when it is started again.

    With --over RUN, MODEL is the second stage of a search. MODEL scores only the --top-k best passages of each query
    in RUN, as `rerank` does, and may be a cross-encoder, too. The measures of both stages are printed.

    --trust-remote-code runs Python code of the model's repository on this machine. Read the code first, and add
    --revision.

    Args:
        model: name on the hub, or a folder
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
        python -m baselines run ORG/NAME --release DIR --over bm25.dev.run.gz --top-k 20
        python -m baselines run ORG/NAME --release DIR --query-prompt $'Instruct: find passages\\nQuery: ' --pooling cls
    """
    from builders.core.hub import check_models

    check_models(model)  # before the import of the model libraries, which takes seconds

    from baselines.core.settings import ModelOptions
    from baselines.retrieve.devices import work_of
    from baselines.retrieve.model_run import SearchedSplit, search_passages, search_run
    from baselines.retrieve.models import shown_name
    from baselines.retrieve.rerankers import endpoint_work
    from builders.core.files import check_file
    from builders.store.reader import open_release

    if out == Path(_DEFAULT_OUT):
        out = Path(f"{shown_name(model).rpartition('/')[2]}.{split}.run.gz")
    if out is not None:
        check_file(out)
    options = ModelOptions(
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
    )
    searched = SearchedSplit(open_release(release), set, split)
    work = endpoint_work() if kind == "listwise" else work_of(device, dtype, batch_tokens, tokenizers, backend)
    if over is not None:
        return search_run(model, over, searched, options=options, work=work, top_k=top_k, out=out, index=index)
    return search_passages(model, searched, options=options, work=work, top_k=top_k, out=out, index=index)
