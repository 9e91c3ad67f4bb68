"""Engines of vector search: the interface, and FAISS. This module does not import PyTorch."""

import abc
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from baselines.core.passages import Rows

Vectors = npt.NDArray[Any]  # 16-bit or 32-bit floats, shape (texts, dimensions)
Floats = npt.NDArray[np.float32]


class Engine(abc.ABC):
    """Find the best passages of every query, block by block. The choice among equal scores is undefined."""

    @abc.abstractmethod
    def prepare(self, block: Vectors) -> Any:
        """Convert a block for :meth:`add`, in another thread, while the engine searches an earlier block."""

    @abc.abstractmethod
    def add(self, start: int, block: Any) -> None:
        """Search a prepared block, whose first passage is row ``start``."""

    @abc.abstractmethod
    def best(self) -> tuple[Floats, Rows]:
        """Return the best (scores, rows) so far, best first, shape (queries, count). Empty places have -inf and -1."""


class FaissEngine(Engine):
    """FAISS's exhaustive search in 32 bits. A GPU needs FAISS's GPU build (extra ``gpu``)."""

    def __init__(self, queries: Vectors, count: int, device: str = "cpu") -> None:
        import faiss

        self._queries = widened(queries)
        self._heap = faiss.ResultHeap(len(queries), count, keep_max=True)
        on_gpu = device != "cpu" and hasattr(faiss, "StandardGpuResources")
        self._resources: Any = faiss.StandardGpuResources() if on_gpu else None
        self._device_number = int(device.rpartition(":")[2]) if ":" in device else 0

    def prepare(self, block: Vectors) -> Floats:
        return widened(block)

    def add(self, start: int, block: Floats) -> None:
        import faiss

        k, metric = min(len(block), self._heap.k), faiss.METRIC_INNER_PRODUCT
        if self._resources is None:
            scores, rows = faiss.knn(self._queries, block, k, metric=metric)
        else:
            scores, rows = faiss.knn_gpu(
                self._resources, self._queries, block, k, metric=metric, device=self._device_number
            )
        self._heap.add_result(scores, rows + start)

    def best(self) -> tuple[Floats, Rows]:
        self._heap.finalize()
        scores = np.where(self._heap.I < 0, -np.inf, self._heap.D).astype(np.float32)
        return scores, self._heap.I


def widened(block: Vectors) -> Floats:
    """Convert embeddings to 32 bits. PyTorch, if it is loaded, takes a tenth of NumPy's time."""
    block = np.ascontiguousarray(block)
    torch = sys.modules.get("torch")
    if torch is not None and block.dtype == np.float16:
        wide: Floats = torch.from_numpy(block).float().numpy()
        return wide
    return block.astype(np.float32, copy=False)
