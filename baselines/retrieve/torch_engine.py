"""Search by PyTorch's matrix products, on a CPU or a GPU."""

from typing import Any

import torch

from baselines.core.passages import Rows
from baselines.retrieve.search_engines import Engine, Floats, Vectors

SCORES = 1 << 26  # scores in a device's memory: 268 MB in 32 bits
_GROUP = 32  # columns per group in top()


class TorchEngine(Engine):
    """Matrix products and top-k by PyTorch, in 32 bits.

    A GPU multiplies 16-bit numbers and adds the products in 32 bits, because multiplying 32-bit numbers takes fifteen
    times as long. The product of two 16-bit numbers fits into 32 bits, so only the sums are rounded.
    """

    def __init__(self, queries: Vectors, count: int, device: str = "cpu") -> None:
        self._scores = torch.full((len(queries), count), -torch.inf, device=device)
        self._rows = torch.full((len(queries), count), -1, device=device)
        torch.set_float32_matmul_precision("highest")
        self._device, on_gpu = device, device.startswith("cuda")
        self._dtype = torch.float16 if on_gpu else torch.float32
        self._sums: dict[str, Any] = {"out_dtype": torch.float32} if on_gpu else {}
        self._queries = torch.from_numpy(queries).to(device).to(self._dtype)

    def prepare(self, block: Vectors) -> torch.Tensor:
        passages = torch.from_numpy(block)
        return passages.pin_memory() if self._device.startswith("cuda") else passages.to(self._dtype)

    def add(self, start: int, block: torch.Tensor) -> None:
        with torch.inference_mode():
            passages = block.to(self._device, non_blocking=True).to(self._dtype)
            k, step = min(len(block), self._scores.shape[1]), max(1, SCORES // len(block))
            for low in range(0, len(self._queries), step):
                place = slice(low, low + step)
                scores, rows = top(torch.mm(self._queries[place], passages.T, **self._sums), k)
                self._merge(place, scores, rows + start)

    def best(self) -> tuple[Floats, Rows]:
        return self._scores.cpu().numpy(), self._rows.cpu().numpy()

    def _merge(self, place: slice, scores: torch.Tensor, rows: torch.Tensor) -> None:
        """Merge a block's best passages, shape (queries, k), into the best so far. ``place`` selects the queries.

        PyTorch merges on the GPU, so that the GPU does not wait for the CPU.
        """
        scores, rows = torch.cat([self._scores[place], scores], 1), torch.cat([self._rows[place], rows], 1)
        self._scores[place], chosen = torch.topk(scores, self._scores.shape[1])
        self._rows[place] = rows.gather(1, chosen)


def top(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same as ``torch.topk(scores, k)`` of a matrix, but faster.

    The k best scores of a row lie in the k groups of columns with the highest maxima, so only these groups are
    searched. The choice among equal scores is undefined.
    """
    groups = scores.shape[1] // _GROUP
    if scores.shape[1] % _GROUP or groups < 2 * k:
        return torch.topk(scores, k)
    grouped = scores.view(len(scores), groups, _GROUP)
    chosen = torch.topk(grouped.amax(2), k, sorted=False).indices
    inside = grouped.gather(1, chosen[:, :, None].expand(-1, -1, _GROUP)).flatten(1)
    values, columns = torch.topk(inside, k)
    return values, chosen.gather(1, columns // _GROUP) * _GROUP + columns % _GROUP
