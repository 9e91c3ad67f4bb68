"""The verb `encode`: embed passages or queries."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from baselines.core.model_options import (
    Backend,
    BatchTokens,
    Device,
    Dtype,
    MaxLength,
    ModelName,
    Revision,
    Tokenizers,
)
from builders.core.options import AtLeastOne, Needs, Shown
from builders.core.verbs import verb
from builders.store.release_options import AnySplit, ReleasePath, SetName

if TYPE_CHECKING:
    from baselines.retrieve.vector_index import Index


@verb()
def encode_texts(
    release: ReleasePath,
    *,
    model: ModelName,
    out: Annotated[Path, Shown("DIR")],
    set: SetName = "main",
    queries: bool = False,
    split: Annotated[AnySplit, Needs("queries")] | None = None,
    shard_rows: Annotated[AtLeastOne, Shown("N")] | None = None,
    max_length: MaxLength | None = None,
    batch_tokens: BatchTokens | None = None,
    tokenizers: Tokenizers | None = None,
    backend: Backend = "torch",
    revision: Revision = "",
    device: Device | None = None,
    dtype: Dtype = "auto",
) -> "Index":
    """Embed a release's passages or queries by a dual-encoder.

    The embeddings are 16-bit floats in NumPy files that can be memory-mapped. Row n is passage n of the release, or
    query n of the split. An interrupted command resumes after the last complete file when it is started again. A
    complete directory from the same release, model and options is not encoded again. manifest.json records the model's
    precision. Each GPU has a process, which holds the texts and embeddings of one file in memory.

    The passages are unpacked once into the folder dureader_retrieval/texts in $XDG_CACHE_HOME or ~/.cache.

    Args:
        model: sentence-transformers model: hub name or folder
        out: directory of embeddings to write
        queries: encode queries instead of passages
        split: split of the queries, with --queries (default: dev)
        shard_rows: rows per file (default: 131,072 on a GPU or for static models, else 8,192)

    Returns:
        The open index: the directory's path, manifest and files.

    Raises:
        InputError: the model cannot be opened, the release lacks the split, or ``out`` has other files.

    Examples:
        python -m baselines encode --release build/sample --model build/models/de-bm25-neg \\
          --out build/embeddings/passages
        python -m baselines encode --release DIR --model ORG/NAME --queries --split dev --out DIR2
    """
    from builders.core.hub import check_models

    check_models(model)  # before the import of the model libraries, which takes seconds

    from baselines.core.settings import ModelSettings
    from baselines.retrieve.devices import work_of
    from baselines.retrieve.models import kind_of_model
    from baselines.retrieve.vector_index import open_retriever
    from builders.store.layout import SETS
    from builders.store.reader import open_release

    configs = SETS[set]
    work = work_of(device, dtype, batch_tokens, tokenizers, backend)
    release = open_release(release)
    settings = ModelSettings(model, revision=revision, max_length=max_length)
    kind = "static" if kind_of_model(settings) == "static" else "dense"
    retriever = open_retriever(settings, work, kind)
    if queries:
        return retriever.index(release, configs.queries, out, split or "dev", shard_rows)
    return retriever.index(release, configs.corpus, out, "corpus", shard_rows)
