"""Search of smaller embeddings, and the second stage that scores the best passages again (`search --rescore`).

The first stage depends on the form of the passages' embeddings. The second stage scores N times as many passages as the
run will have, and keeps the best:

    =========  =============================  =====================================================
    passages   first stage                    second stage: the query's numbers times
    =========  =============================  =====================================================
    binary     signs of query and passage     the signs of the passage, or other embeddings of it
    int8       numbers of query and passage   16-bit embeddings of the passage
    float16    numbers of query and passage   (none: the first stage is exact)
    =========  =============================  =====================================================

Numbers of a query with the signs of a passage: Yamada et al., Efficient Passage Retrieval with Hashing for Open-domain
Question Answering, 2021 (arXiv 2106.00882). Larger embeddings of the best passages, and the factor N: Shakir, Aarsen
and Lee, Binary and Scalar Embedding Quantization, 2024; ``semantic_search_faiss(rescore_multiplier=...)`` of
sentence-transformers does the same. This module does not import PyTorch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from baselines.core.passages import CachedPassages, Rows
from baselines.retrieve.exact_search import BLOCK, Scores, exact_scores, nearest_with_ties
from baselines.retrieve.hamming_search import nearest_by_signs
from baselines.retrieve.index_files import VectorIndex
from baselines.retrieve.vector_stores import BINARY, FLOAT16, STORE_NAMES, Codes, Halves, VectorStore
from builders.core.errors import InputError

RowsAndScores = Iterator[tuple[Rows, Scores]]


@dataclass(frozen=True)
class Rescoring:
    """The second stage.

    Attributes:
        factor: number of candidates for each passage of the run.
        vectors: embeddings of all passages of the corpus, of which only the candidates are read.
    """

    factor: int
    vectors: VectorIndex


class _PackedBlock:
    """A block of stored embeddings, of which only the selected rows are unpacked."""

    def __init__(self, codes: Codes, store: VectorStore) -> None:
        self._codes = codes
        self._store = store

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, rows: Rows) -> Halves:
        return self._store.unpack(self._codes[rows])


@dataclass(frozen=True)
class _CandidateVectors:
    """The embeddings of an index for :func:`.exact_search.exact_scores`, unpacked only where they are read."""

    index: VectorIndex

    def blocks(self, rows: int = BLOCK) -> Iterator[tuple[int, Any]]:
        for start, codes in self.index.code_blocks(rows):
            yield start, _PackedBlock(codes, self.index.store)


def choose_rescoring(
    passage_vectors: VectorIndex, factor: int | None, larger_vectors: VectorIndex | None
) -> Rescoring | None:
    """Return the second stage of a search, or None for a search of one stage.

    Args:
        passage_vectors: the embeddings that are searched.
        factor: value of --rescore (None: one stage).
        larger_vectors: the embeddings of --rescore-with (None: the same as ``passage_vectors``).

    Raises:
        InputError: the second stage would give the scores of the first, or ``larger_vectors`` are no larger.
    """
    if factor is None:
        return None
    name = passage_vectors.store_name
    if larger_vectors is None:
        if name == BINARY:
            return Rescoring(factor, passage_vectors)
        expected = "remove --rescore" if name == FLOAT16 else "add --rescore-with and 16-bit embeddings"
        raise InputError(
            f"has {name} embeddings, which are searched by all numbers of the query, so --rescore would change "
            f"nothing; {expected}",
            path=passage_vectors.path,
        )
    # STORE_NAMES begins with the largest form.
    if STORE_NAMES.index(larger_vectors.store_name) >= STORE_NAMES.index(name):
        larger_names = " or ".join(STORE_NAMES[: STORE_NAMES.index(name)]) or "binary or int8 --passages"
        raise InputError(
            f"--rescore-with: has {larger_vectors.store_name} embeddings, and --passages has {name} ones; expected "
            f"{larger_names}",
            path=larger_vectors.path,
        )
    return Rescoring(factor, larger_vectors)


def search_stored(
    passage_vectors: VectorIndex,
    query_vectors: Halves,
    passages: CachedPassages,
    devices: Sequence[str],
    top_k: int,
    *,
    engine_name: str = "",
    rescoring: Rescoring | None = None,
) -> RowsAndScores:
    """Yield (rows of the corpus, scores) of each query's best passages, unsorted.

    Without ``rescoring``, further passages that tie with the last may follow. With ``rescoring``, all candidates are
    yielded.

    Args:
        passage_vectors: embeddings in any form, of all ``passages`` or of the rows ``passage_vectors.chosen``.
        query_vectors: 16-bit embeddings of the queries.
        devices: devices, which share the blocks of passages. Binary embeddings need none.
        engine_name: torch or faiss (default: faiss on a CPU with FAISS, else torch).
        top_k: passages per query.
        rescoring: the second stage (default: none).
    """
    first_count = top_k * rescoring.factor if rescoring else top_k
    if passage_vectors.store_name == BINARY:
        first_hits: RowsAndScores = nearest_by_signs(passage_vectors, query_vectors, passages.ranks, first_count)
    else:
        first_hits = nearest_with_ties(passage_vectors, query_vectors, passages, devices, first_count, engine_name)
    if rescoring is None:
        return first_hits
    return _rescore(first_hits, query_vectors, passages, first_count, rescoring)


def _rescore(
    first_hits: Iterable[tuple[Rows, Scores]],
    query_vectors: Halves,
    passages: CachedPassages,
    first_count: int,
    rescoring: Rescoring,
) -> RowsAndScores:
    """Yield (rows, scores of the second stage) of each query's ``first_count`` best passages of the first stage."""
    ranks = passages.ranks()
    candidate_rows = []
    for rows, scores in first_hits:
        # The first stage may add passages that tie with the last. The id decides which of them are candidates.
        best_first = np.lexsort((ranks[rows], -scores))[:first_count]
        candidate_rows.append(rows[best_first])
    # A matrix with a line of rows for each query. The row -1 fills up shorter lines.
    longest = max((len(rows) for rows in candidate_rows), default=0)
    row_matrix = np.full((len(candidate_rows), longest), -1)
    for line, rows in zip(row_matrix, candidate_rows, strict=True):
        line[: len(rows)] = rows
    candidate_vectors: Any = _CandidateVectors(rescoring.vectors)
    score_matrix = exact_scores(query_vectors, candidate_vectors, row_matrix)
    for rows, scores in zip(candidate_rows, score_matrix, strict=True):
        yield rows, scores[: len(rows)]
