"""Engines of vector search: the interface, and FAISS. This module does not import PyTorch."""

import abc
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from baselines.core.passages import Rows

Vectors = npt.NDArray[Any]  # 16-bit or 32-bit floats, shape (texts, dimensions)
Floats = npt.NDArray[np.float32]


class SearchEngine(abc.ABC):
    """Find the best passages of every query, block by block. The choice among equal scores is undefined."""

    @abc.abstractmethod
    def prepare(self, block: Vectors) -> Any:
        """Convert a block for :meth:`add`, in another thread, while the engine searches an earlier block."""

    @abc.abstractmethod
    def add(self, first_row: int, block: Any) -> None:
        """Search a prepared block, whose first passage is row ``first_row``."""

    @abc.abstractmethod
    def best(self) -> tuple[Floats, Rows]:
        """Return the best (scores, rows) so far, best first, shape (queries, count). Empty places have -inf and -1."""

    def exact_products(self, rows: Rows) -> "npt.NDArray[np.float64] | None":
        """Return the 64-bit inner products of each query with ``rows``, shape (queries, n), or None.

        None: the engine has not kept the passages. A row that another engine has searched, and row -1, has -inf. The
        engine forgets the passages, so it can be asked once.
        """
        return None


class FaissEngine(SearchEngine):
    """FAISS's exhaustive search in 32 bits. A GPU needs FAISS's GPU build (extra ``gpu``)."""

    def __init__(self, query_vectors: Vectors, candidate_count: int, device: str = "cpu") -> None:
        """Search by ``query_vectors`` for ``candidate_count`` passages each. ``device`` is cpu, cuda or cuda:NUMBER."""
        import faiss

        self._queries = widen_embeddings(query_vectors)
        # The best passages so far. keep_max, because the best have the largest inner products.
        self._heap = faiss.ResultHeap(len(query_vectors), candidate_count, keep_max=True)
        self._gpu_resources: Any = None
        # FAISS's CPU build lacks the class.
        if device != "cpu" and hasattr(faiss, "StandardGpuResources"):
            self._gpu_resources = faiss.StandardGpuResources()
        self._device_number = 0
        if ":" in device:
            self._device_number = int(device.rpartition(":")[2])

    def prepare(self, block: Vectors) -> Floats:
        return widen_embeddings(block)

    def add(self, first_row: int, block: Floats) -> None:
        """Merge the best passages of a block, whose first passage is row ``first_row``, into the best so far."""
        import faiss

        count = min(len(block), self._heap.k)
        if self._gpu_resources is None:
            scores, block_rows = faiss.knn(self._queries, block, count, metric=faiss.METRIC_INNER_PRODUCT)
        else:
            scores, block_rows = faiss.knn_gpu(
                self._gpu_resources,
                self._queries,
                block,
                count,
                metric=faiss.METRIC_INNER_PRODUCT,
                device=self._device_number,
            )
        self._heap.add_result(scores, block_rows + first_row)

    def best(self) -> tuple[Floats, Rows]:
        self._heap.finalize()  # sorts the best passages of each query
        rows = self._heap.I
        # FAISS gives an unused entry the row -1 and the smallest finite score.
        scores = np.where(rows < 0, -np.inf, self._heap.D).astype(np.float32)
        return scores, rows


def widen_embeddings(block: Vectors) -> Floats:
    """Convert embeddings to 32 bits. PyTorch, if it is loaded, takes a tenth of NumPy's time."""
    contiguous_block = np.ascontiguousarray(block)
    # This module must not import PyTorch, which takes seconds.
    torch = sys.modules.get("torch")
    if torch is not None and contiguous_block.dtype == np.float16:
        wide_block: Floats = torch.from_numpy(contiguous_block).float().numpy()
        return wide_block
    return contiguous_block.astype(np.float32, copy=False)
