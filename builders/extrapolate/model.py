"""Query embeddings by a sentence-transformers model."""

from __future__ import annotations

from collections.abc import Iterable

from builders.common.command import InputError, progress
from builders.common.groups import install
from builders.extrapolate.embeddings import BLOCK_ROWS, Block, Blocks


def encode(model: str, queries: Iterable[tuple[str, str]], batch_size: int = 64, prompt: str | None = None) -> Blocks:
    """The vectors of (id, text) pairs by a sentence-transformers model: a hub name or a folder.

    Raises:
        InputError: sentence-transformers is missing, or cannot load the model.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise InputError(
            f"--model needs sentence-transformers ({error}): {install('models')}; "
            "or give --embeddings, made by any tool"
        ) from None
    try:
        loaded = SentenceTransformer(model)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())  # the hub's errors have several lines
        raise InputError(f"cannot be loaded by sentence-transformers ({reason})", path=model) from error
    options = {} if prompt is None else {"prompt": prompt}
    pairs = list(queries)
    with progress(total=len(pairs), unit="query", label="embed") as bar:
        for start in range(0, len(pairs), BLOCK_ROWS):
            block = pairs[start : start + BLOCK_ROWS]
            texts = [text for _, text in block]
            vectors = loaded.encode(
                texts, batch_size=batch_size, convert_to_numpy=True, show_progress_bar=False, **options
            )
            yield Block(model, start, [query for query, _ in block], vectors)
            bar.update(len(block))
