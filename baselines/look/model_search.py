"""The columns of the search page that need a model. A model encodes one query at a time."""

import threading
from collections.abc import Sequence
from pathlib import Path

from baselines.core.passages import CachedPassages
from baselines.core.settings import ModelSettings
from baselines.look.shown_answers import Rerank, Search
from baselines.retrieve.dense import encoding_model
from baselines.retrieve.devices import devices_of, dtype_of
from baselines.retrieve.encoder import CrossScorer, TextEncoder
from baselines.retrieve.exact_search import nearest_with_ties
from baselines.retrieve.index_files import VectorIndex, open_vectors
from baselines.retrieve.models import open_cross
from baselines.retrieve.vector_index import name_hits
from builders.core.errors import log
from builders.store.reader import Release
from builders.store.runs import Hit, best_first

# One query at a time, because several queries would compete for the same cores or GPU.
_ONE_QUERY = threading.Lock()


def open_dual_search(
    model: str,
    embeddings: VectorIndex | Path,
    release: Release,
    corpus: str,
    passages: CachedPassages,
    *,
    device: str | None,
    dtype: str,
) -> Search:
    """Return a function that encodes a query with a model, and searches the passages' embeddings exactly.

    ``corpus`` is the config of the passages, and ``passages`` has their texts and ids. ``device`` and ``dtype`` are the
    values of --device and --dtype. Raises :class:`InputError` if the embeddings are of another release or model.
    """
    vectors = open_vectors(embeddings)
    query_device = devices_of(device)[0]
    vectors.check("passages", release, corpus, "corpus")
    encoder = TextEncoder(encoding_model(model, vectors, query_device, dtype), "query")
    log.info("%s: %d passages", vectors.path, vectors.rows)

    def search_dense(query_text: str, top_k: int) -> list[Hit]:
        with _ONE_QUERY:
            query_vectors = encoder.encode([query_text])
            rows_and_scores = nearest_with_ties(vectors, query_vectors, passages, [query_device], top_k)
            return next(name_hits(rows_and_scores, passages, top_k))

    return search_dense


def open_cross_ranker(model: str, passages: CachedPassages, *, device: str | None, dtype: str) -> Rerank:
    """Return a function that re-ranks passages by the logits of a cross-encoder.

    ``device`` and ``dtype`` are the values of --device and --dtype. Raises :class:`InputError` if the model cannot be
    opened as a cross-encoder.
    """
    one_device = devices_of(device)[0]
    scorer = CrossScorer(open_cross(ModelSettings(model), one_device, dtype_of(dtype, one_device)))

    def rerank_passages(query_text: str, passage_ids: Sequence[str]) -> list[Hit]:
        texts = passages.texts(passages.rows(passage_ids).tolist())
        pairs = [(query_text, text) for text in texts]
        with _ONE_QUERY:
            scores = scorer.scores(pairs).tolist()
        return best_first(zip(passage_ids, scores, strict=True))

    return rerank_passages
