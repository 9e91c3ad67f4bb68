"""Engines of exact search: each keeps, on its device, the best passages of every query while blocks of them go by.

Scores are 32-bit sums and only choose candidates (:mod:`baselines.vectors.scan`). A device holds the queries, their
best so far, one block of passages and at most ``SCORES`` scores: never more of the passages.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from baselines.vectors.embeddings import widened

Halves = npt.NDArray[np.float16]
Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

SCORES = 1 << 26  # at once on a device: 268 MB in 32 bits
_QUERIES = 1 << 12  # merged at once on a CPU: about what its caches hold
_GROUP = 32


class Engine(Protocol):
    """Finds the best passages of every query, a block at a time."""

    def prepare(self, block: Halves) -> Any:
        """A block in 16 bits as ``add`` takes it; called by another thread while a block is searched."""

    def add(self, start: int, block: Any) -> None:
        """Search a prepared block, whose first passage is row ``start``."""

    def best(self) -> tuple[Floats, Rows]:
        """(scores, rows) of each query so far, best first, shape (queries, count); -inf and -1 where there are fewer.

        Which of several equal ones are kept is undefined.
        """


class _Best:
    """The best rows of every query so far, on a device: merged there, so that nothing waits for a CPU."""

    def __init__(self, queries: int, count: int, device: str) -> None:
        self.scores = torch.full((queries, count), -torch.inf, device=device)
        self.rows = torch.full((queries, count), -1, device=device)

    def merge(self, place: slice, scores: torch.Tensor, rows: torch.Tensor) -> None:
        """Take in the best of a block for the queries at ``place``, shape (queries, k)."""
        scores, rows = torch.cat([self.scores[place], scores], 1), torch.cat([self.rows[place], rows], 1)
        self.scores[place], chosen = torch.topk(scores, self.scores.shape[1])
        self.rows[place] = rows.gather(1, chosen)

    def numpy(self) -> tuple[Floats, Rows]:
        return self.scores.cpu().numpy(), self.rows.cpu().numpy()


class FaissEngine:
    """FAISS's exhaustive search in 32 bits: on a CPU, or a GPU where FAISS is built for it (group ``gpu``)."""

    def __init__(self, queries: Halves, count: int, device: str = "cpu") -> None:
        import faiss

        self._queries, self._best = widened(queries), _Best(len(queries), count, "cpu")
        on_gpu = device != "cpu" and hasattr(faiss, "StandardGpuResources")
        self._resources: Any = faiss.StandardGpuResources() if on_gpu else None
        self._number = torch.device(device).index or 0

    def prepare(self, block: Halves) -> Floats:
        return widened(block)

    def add(self, start: int, block: Floats) -> None:
        import faiss

        k, metric = min(len(block), self._best.scores.shape[1]), faiss.METRIC_INNER_PRODUCT
        if self._resources is None:
            scores, rows = faiss.knn(self._queries, block, k, metric=metric)
        else:
            scores, rows = faiss.knn_gpu(self._resources, self._queries, block, k, metric=metric, device=self._number)
        for low in range(0, len(scores), _QUERIES):
            place = slice(low, low + _QUERIES)
            self._best.merge(place, torch.from_numpy(scores[place]), torch.from_numpy(rows[place]) + start)

    def best(self) -> tuple[Floats, Rows]:
        return self._best.numpy()


class TorchEngine:
    """Matrix products and top-k by PyTorch, in ``fp32`` or ``bf16``.

    On a GPU, fp32 is the products of the 16-bit numbers as they are, summed in 32 bits: matrix units do that at fifteen
    times the rate of 32-bit products. A product of two 16-bit numbers fits into 32 bits, so nothing else is rounded.
    """

    def __init__(self, queries: Halves, count: int, device: str = "cpu", precision: str = "fp32") -> None:
        torch.set_float32_matmul_precision("highest")
        self._device = device
        self._sums: dict[str, Any] = {}
        self._dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
        if device.startswith("cuda") and precision == "fp32":
            self._dtype = torch.float16
            self._sums = {"out_dtype": torch.float32}
        self._queries = torch.from_numpy(queries).to(device).to(self._dtype)
        self._best = _Best(len(queries), count, device)

    def prepare(self, block: Halves) -> torch.Tensor:
        passages = torch.from_numpy(block)
        return passages.pin_memory() if self._device.startswith("cuda") else passages.to(self._dtype)

    def add(self, start: int, block: torch.Tensor) -> None:
        with torch.inference_mode():
            passages = block.to(self._device, non_blocking=True).to(self._dtype)
            k, step = min(len(block), self._best.scores.shape[1]), max(1, SCORES // len(block))
            for low in range(0, len(self._queries), step):
                place = slice(low, low + step)
                scores, rows = top(torch.mm(self._queries[place], passages.T, **self._sums), k)
                self._best.merge(place, scores.float(), rows + start)

    def best(self) -> tuple[Floats, Rows]:
        return self._best.numpy()


def top(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``torch.topk`` over the last of two dimensions, which need not look at every column closely.

    The best k lie in the k groups of columns with the highest maxima. Which of several equal ones come is undefined.
    """
    groups = scores.shape[1] // _GROUP
    if scores.shape[1] % _GROUP or groups < 2 * k:
        return torch.topk(scores, k)
    grouped = scores.view(len(scores), groups, _GROUP)
    chosen = torch.topk(grouped.amax(2), k, sorted=False).indices
    inside = grouped.gather(1, chosen[:, :, None].expand(-1, -1, _GROUP)).flatten(1)
    values, columns = torch.topk(inside, k)
    return values, chosen.gather(1, columns // _GROUP) * _GROUP + columns % _GROUP
