"""Search a release by a user's own encoder, and re-rank a run by a user's own model, without PyTorch.

A SentenceTransformer runs in this project's batches (:class:`.dense.OpenDense`), so that its scores equal those of the
same model in a folder.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from baselines.core.passages import CachedPassages, Rows, open_passages
from baselines.core.settings import ModelSettings
from baselines.measure.qrels import read_queries
from baselines.retrieve.exact_search import Scores, nearest_with_ties, pair_scores
from baselines.retrieve.own_models import (
    Numbers,
    OwnModel,
    WrongOutput,
    is_encoder,
    name_of,
    open_own_encoder,
    open_own_reranker,
    similarity_of,
)
from baselines.retrieve.own_vectors import OwnVectors, build_vectors, to_32_bits, unit_rows
from baselines.retrieve.reordering import expect_hits, reorder_passages
from builders.core.cache import writable_cache
from builders.core.errors import InputError, log
from builders.core.exit_codes import raise_if_stopped
from builders.core.folders import key_of
from builders.core.locks import temporary_folder
from builders.core.progress import show_progress
from builders.store.layout import SETS
from builders.store.own_queries import OwnQueries
from builders.store.reader import Release
from builders.store.runs import Hit, Run, best_first

if TYPE_CHECKING:
    from baselines.retrieve.dense import OpenDense

BATCH_SIZE = 256  # texts or pairs per call
# Highest power of two by which a score is multiplied. Products of 32-bit numbers are between 2**-298 and 2**300, and 64
# bits hold 2**1000.
_LARGEST_EXPONENT = 700
# Two texts that most models tell apart. Vectors of an API vary slightly between calls, but the dimension in which the
# two texts differ most does not vary.
PROBE_TEXTS = ["在北京的冬天我们可以怎么找到一个问题的答案", "水"]
Group = tuple[str, list[str]]  # text of a query, ids of its passages


@dataclass(frozen=True)
class SearchedTexts:
    """The passages and queries of a search. ``own_queries`` replace the queries of ``split``."""

    release: Release
    set_name: str
    split: str
    own_queries: OwnQueries | None = None

    @property
    def corpus(self) -> str:
        return SETS[self.set_name].corpus

    def passages(self) -> CachedPassages:
        return open_passages(self.release, self.corpus)

    def queries(self) -> list[tuple[str, str]]:
        """Return (id, text) of every query."""
        if self.own_queries is not None:
            return self.own_queries.rows
        return read_queries(self.release, self.split, SETS[self.set_name].queries)


@dataclass(frozen=True)
class OwnSettings:
    """The settings of a user's model.

    Attributes:
        query_prompt, passage_prompt: text put before every query or passage (None: the prompt of a
            SentenceTransformer, or no text).
        similarity: cosine or dot (None: the similarity of a model of sentence-transformers, or cosine).
        batch_size: texts or pairs per call (None: :data:`BATCH_SIZE`).
    """

    query_prompt: str | None = None
    passage_prompt: str | None = None
    similarity: str | None = None
    batch_size: int | None = None


class OwnEncoderSearch:
    """A user's encoder, opened for queries and passages."""

    def __init__(self, model: object, settings: OwnSettings) -> None:
        self._batch_size = settings.batch_size or BATCH_SIZE
        self._query_model = open_own_encoder(model, "query", self._batch_size)
        self._passage_model = open_own_encoder(model, "document", self._batch_size)
        self._query_prompt = settings.query_prompt or ""
        self._passage_prompt = settings.passage_prompt or ""
        self._similarity = settings.similarity or similarity_of(model)
        # The vectors of two texts show the number of dimensions, and tell models of the same name apart.
        query_probes = self.encode_queries(PROBE_TEXTS)
        passage_probes = self.encode_passages(PROBE_TEXTS)
        query_dim = query_probes.shape[1]
        passage_dim = passage_probes.shape[1]
        if query_dim != passage_dim:
            raise InputError(
                f"{self._query_model.name}: queries have {query_dim} dimensions, but passages have {passage_dim}"
            )
        self.dim = query_dim
        self._fingerprint = [widest_dimension(query_probes), widest_dimension(passage_probes)]

    def encode_queries(self, texts: Sequence[str], dim: int | None = None) -> Numbers:
        prompted = [self._query_prompt + text for text in texts]
        return self._scale(self._query_model.vectors(prompted, dim))

    def encode_passages(self, texts: Sequence[str], dim: int | None = None) -> Numbers:
        prompted = [self._passage_prompt + text for text in texts]
        return self._scale(self._passage_model.vectors(prompted, dim))

    def _scale(self, vectors: Numbers) -> Numbers:
        if self._similarity == "cosine":
            return unit_rows(vectors)
        return vectors

    def store_vectors(self, texts: SearchedTexts, index: Path, rows: Rows | None = None) -> OwnVectors:
        """Return the vectors of all passages, in the folder ``index``, or only of ``rows``, in a folder beside it.

        Passages that any of these folders has are not encoded again.
        """
        passages = texts.passages()
        dependencies = {  # everything that the vectors depend on
            "model": self._query_model.name,
            "fingerprint": self._fingerprint,
            "passage_prompt": self._passage_prompt,
            "similarity": self._similarity,
            "corpus": texts.release.fingerprint(texts.corpus, "corpus"),
            "dim": self.dim,
        }
        # Vectors of some rows are in a folder beside the index, because the index itself has all rows.
        parts_folder = index.with_name(f"{index.name}.parts")
        vectors_folder = index
        if rows is not None:
            parts_folder.mkdir(parents=True, exist_ok=True)
            # Named models have folders of other names.
            vectors_folder = parts_folder / f"own-{key_of(rows.tolist())}"
        vectors = build_vectors(
            vectors_folder,
            dependencies,
            corpus_rows=len(passages),
            chosen=rows,
            texts_of=passages.texts,
            encode=lambda batch_texts: self.encode_passages(batch_texts, self.dim),
            texts_per_call=self._batch_size,
            sources=[index, *sorted(parts_folder.glob("own-*"))],
        )
        if vectors.zeros:
            log.warning("%d of %d passages have a vector of zeros", vectors.zeros, vectors.rows)
        return vectors

    def query_vectors(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
        """Return the queries' vectors, divided by powers of two, and the exponents of these powers, shape (queries,).

        The division gives numbers of any magnitude a place in 32 bits. :func:`_restore` multiplies the scores again.
        """
        with show_progress(total=len(texts), unit="query", label="encode queries") as bar, bar.task(len(texts)):
            vectors = self.encode_queries(texts, self.dim)
        zero_count = int((vectors == 0).all(axis=1).sum())
        if texts and zero_count == len(texts):
            raise WrongOutput(f"{self._query_model.name}: expected vectors, found only zeros for all queries")
        if zero_count:
            log.warning(
                "%d of %d queries have a vector of zeros, so their hits are in the order of ids", zero_count, len(texts)
            )
        largest_numbers = np.abs(vectors).max(axis=1, initial=0)
        _, exponents = np.frexp(largest_numbers)
        scaled_vectors = np.ldexp(vectors, -exponents[:, None])
        return to_32_bits(scaled_vectors, self._query_model.name), exponents


def widest_dimension(probe_vectors: Numbers) -> int:
    """Return the dimension in which the vectors of the two probe texts differ most."""
    first_vector, second_vector = probe_vectors
    return int(np.abs(first_vector - second_vector).argmax())


def search_by_encoder(
    model: object, texts: SearchedTexts, settings: OwnSettings, *, top_k: int, index: Path | None = None
) -> dict[str, list[Hit]]:
    """Search all passages by a user's encoder. Return the hits by query id, best first.

    ``index`` is the folder of the vectors (default: a temporary folder). Raises :class:`InputError`.
    """
    queries = texts.queries()
    if is_sentence_transformer(model):
        retriever = open_sentence_transformer(model, settings)
        with _index_folder(index) as folder:
            return dict(retriever.hits(texts.release, texts.corpus, folder, queries, top_k))
    encoder = OwnEncoderSearch(model, settings)
    with _index_folder(index) as folder:
        vectors = encoder.store_vectors(texts, folder)
        query_vectors, exponents = encoder.query_vectors([text for _, text in queries])
        passages = texts.passages()
        nearest_rows = nearest_with_ties(vectors, query_vectors, passages, ["cpu"], top_k)
        hits_by_query = {}
        for (query_id, _), exponent, (rows, scaled_scores) in zip(
            queries, exponents.tolist(), nearest_rows, strict=True
        ):
            raise_if_stopped()
            passage_ids = passages.ids(rows.tolist())
            hits = zip(passage_ids, _restore(scaled_scores, exponent), strict=True)
            hits_by_query[query_id] = best_first(hits)[:top_k]
    return hits_by_query


def _restore(scores: Scores, exponent: int) -> list[float]:
    """Multiply the scores of a query by 2 ** ``exponent``, by which its vector was divided. Their order stays.

    The product of extreme queries and passages is beyond 64 bits. Such scores get a smaller or larger factor, because
    scores are compared only within a query.
    """
    limited_exponent = min(max(exponent, -_LARGEST_EXPONENT), _LARGEST_EXPONENT)
    restored_scores = np.ldexp(scores, limited_exponent)
    # Nine digits identify 24 binary digits.
    return [float(f"{score:.9g}") for score in restored_scores]


def rerank_by_object(
    model: object,
    first_run: Run,
    texts: SearchedTexts,
    settings: OwnSettings,
    *,
    top_k: int,
    index: Path | None = None,
) -> dict[str, list[Hit]]:
    """Score the ``top_k`` best passages of every query of a run by a user's encoder or re-ranker.

    Further passages follow in their old order. Raises :class:`InputError` for an unknown query or passage.
    """
    expect_hits(first_run)
    query_texts = dict(texts.queries())
    passages = texts.passages()

    # Collect the passages to score, and report unknown ids before the model is opened.
    rankings: dict[str, list[str]] = {}
    groups: list[Group] = []
    for query_id, passage_ids in first_run.rankings.items():
        rankings[query_id] = list(dict.fromkeys(passage_ids))
        if query_id not in query_texts:
            source = f"the split {texts.split!r}" if texts.own_queries is None else texts.own_queries.name
            raise InputError(f"has a query {query_id!r} that {source} lacks", path=first_run.path)
        passages.expect(rankings[query_id], first_run.path)
        groups.append((query_texts[query_id], rankings[query_id][:top_k]))

    # Score the passages by the kind of object that the user has passed.
    if is_sentence_transformer(model):
        retriever = open_sentence_transformer(model, settings)
        with _index_folder(index) as folder:
            scores, _ = retriever.scores(texts.release, texts.corpus, folder, groups)
    elif is_encoder(model):
        scores = _score_by_encoder(OwnEncoderSearch(model, settings), texts, groups, index)
    else:
        reranker = open_own_reranker(model, settings.batch_size or BATCH_SIZE)
        scores = _score_by_reranker(reranker, passages, groups, settings.query_prompt or "")

    hits_by_query = {}
    for (query_id, passage_ids), query_scores in zip(rankings.items(), scores, strict=True):
        hits_by_query[query_id] = reorder_passages(passage_ids, query_scores)
    return hits_by_query


def _score_by_reranker(
    reranker: OwnModel, passages: CachedPassages, groups: Sequence[Group], query_prompt: str
) -> list[list[float]]:
    """Return a re-ranker's scores of each query's passages."""
    pair_count = sum(len(passage_ids) for _, passage_ids in groups)
    scores = []
    with show_progress(total=pair_count, unit="pair", label="rerank") as bar:
        for query_text, passage_ids in groups:
            passage_texts = passages.texts(passages.rows(passage_ids).tolist())
            pairs = [(query_prompt + query_text, passage_text) for passage_text in passage_texts]
            with bar.task(len(pairs)):
                scores.append(reranker.scores(pairs))
    return scores


def _score_by_encoder(
    encoder: OwnEncoderSearch, texts: SearchedTexts, groups: Sequence[Group], index: Path | None
) -> list[list[float]]:
    """Return the similarity of each query to each of its passages. A passage of several queries is encoded once."""
    passages = texts.passages()
    rows_by_group = [passages.rows(passage_ids) for _, passage_ids in groups]
    # The empty array keeps the type of the rows if there is no group.
    distinct_rows: Rows = np.unique(np.concatenate([np.empty(0, np.int64), *rows_by_group]))
    if not len(distinct_rows):
        return [[] for _ in groups]
    scores = []
    with _index_folder(index) as folder:
        vectors = encoder.store_vectors(texts, folder, distinct_rows)
        query_vectors, exponents = encoder.query_vectors([query_text for query_text, _ in groups])
        for query_number, group_rows in enumerate(rows_by_group):
            # The file has the vectors of the distinct rows, in their order.
            passage_vectors = vectors.at(np.searchsorted(distinct_rows, group_rows))
            query_vector = query_vectors[query_number : query_number + 1]
            repeated_query = np.repeat(query_vector, len(group_rows), axis=0)
            scaled_scores = pair_scores(repeated_query, passage_vectors)
            scores.append(_restore(scaled_scores, int(exponents[query_number])))
    return scores


@contextlib.contextmanager
def _index_folder(index: Path | None) -> Iterator[Path]:
    """Yield the folder of an index: ``index``, or a temporary folder."""
    if index is not None:
        yield index
        return
    with temporary_folder(writable_cache()) as folder:
        yield folder / "index"


def is_sentence_transformer(model: object) -> bool:
    """True for a SentenceTransformer. A process that has such an object has imported the library."""
    library = sys.modules.get("sentence_transformers")
    return library is not None and isinstance(model, library.SentenceTransformer)


def open_sentence_transformer(model: Any, settings: OwnSettings) -> "OpenDense":
    """Return the retriever of a SentenceTransformer, which runs in this project's batches."""
    from baselines.retrieve.dense import OpenDense
    from baselines.retrieve.devices import Work, default_batch_tokens, devices_of

    device = devices_of(None)[0]
    work = Work((device,), "own", default_batch_tokens(device))
    model_settings = ModelSettings(
        name_of(model),
        query_prompt=settings.query_prompt,
        passage_prompt=settings.passage_prompt,
        similarity=settings.similarity,
    )
    return OpenDense(model_settings, work, model)
