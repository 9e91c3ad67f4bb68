"""The columns of the search page that need a model. A model encodes one query at a time."""

import argparse
import threading
from collections.abc import Sequence

from baselines.core.passages import Passages
from baselines.core.settings import ModelSettings
from baselines.look.shown_answers import Rerank, Search
from baselines.retrieve.dense import encoding_model, nearest
from baselines.retrieve.devices import devices_of, dtype_of
from baselines.retrieve.encoder import CrossScorer, Encoder
from baselines.retrieve.models import open_cross
from baselines.retrieve.vector_index import named, open_vectors
from builders.core.errors import log
from builders.store.reader import Release
from builders.store.runs import Hit, best_first

_TURN = threading.Lock()  # one query at a time, because several queries would compete for the same cores or GPU


def open_dual_search(args: argparse.Namespace, release: Release, corpus: str, passages: Passages) -> Search:
    """Open exact search of ``--passages`` for queries that ``--model`` encodes. Raises the errors of `search`."""
    vectors, device = open_vectors(args.passages), devices_of(args.device)[0]
    vectors.check("passages", release, corpus, "corpus")
    encoder = Encoder(encoding_model(args.model, vectors, device, args.dtype), "query")
    log.info("%s: %d passages", args.passages, vectors.rows)

    def search(query: str, top_k: int) -> list[Hit]:
        with _TURN:
            return next(named(nearest(vectors, encoder.encode([query]), passages, [device], top_k), passages, top_k))

    return search


def open_cross_ranker(args: argparse.Namespace, passages: Passages) -> Rerank:
    """Open the model ``--reranker``, whose logits re-rank passages. Raises the errors of `rerank`."""
    device = devices_of(args.device)[0]
    scorer = CrossScorer(open_cross(ModelSettings(args.reranker), device, dtype_of(args.dtype, device)))

    def rerank(query: str, ids: Sequence[str]) -> list[Hit]:
        texts = passages.texts(passages.rows(ids).tolist())
        with _TURN:
            scores = scorer.scores([(query, text) for text in texts]).tolist()
        return best_first(zip(ids, scores, strict=True))

    return rerank
