"""Search by PyTorch's matrix products, on a CPU or a GPU.

The engine gets the passages block by block, and keeps the ``count`` best scores of every query in two matrices, the
scores and their rows. Two steps are less than plain:

- The merge of a block. The block's best scores are put beside the best scores so far, and the best of both remain.
  For one query and count = 2:

      ===============  ============  ==========
      step             scores        rows
      ===============  ============  ==========
      best so far      9, 4          12, 3
      best of block    7, 5          40, 41
      side by side     9, 4, 7, 5    12, 3, 40, 41
      top 2            9, 7          12, 40
      ===============  ============  ==========

- The top k of a block (:func:`fast_topk`). ``torch.topk`` of wide rows is slow, so the columns are divided into groups,
  and only the maximum of each group is compared at first. A group whose maximum is not among the k largest maxima
  cannot have one of the k best scores, because k scores in other groups are at least as high. Approximate top-k on TPUs
  begins in the same way, but keeps only the maxima (Chern et al., TPU-KNN, 2022). For k = 2 and groups of 3 columns:

      groups   | 1 2 9 | 3 3 3 | 8 7 0 | 2 0 1 |
      maxima   |   9   |   3   |   8   |   2   |   the groups 0 and 2 have the two largest maxima
      topk of  | 1 2 9 |       | 8 7 0 |           9 and 8, in the columns 2 and 6

A GPU keeps the passages that it has searched if they fit into half of its free memory. The candidates are then scored
in 64 bits on the GPU (:meth:`TorchEngine.exact_products`).
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from baselines.core.passages import Rows
from baselines.retrieve.search_engines import Floats, SearchEngine, Vectors

SCORES = 1 << 26  # scores in a device's memory: 268 MB in 32 bits
_GROUP_COLUMNS = 32  # columns per group in top()
# With fewer groups for each of the k scores, top() searches the whole row.
_FEWEST_GROUPS_PER_HIT = 2
_KEPT_SHARE = 0.5  # of a GPU's free memory, for passages that are scored again
_PAIRS_PER_STEP = 1 << 15  # pairs of exact products at once: 600 MB at 768 dimensions


class TorchEngine(SearchEngine):
    """Matrix products and top-k by PyTorch, in 32 bits.

    A GPU multiplies 16-bit numbers and adds the products in 32 bits, because multiplying 32-bit numbers takes fifteen
    times as long. The product of two 16-bit numbers fits into 32 bits, so only the sums are rounded.
    """

    def __init__(
        self, query_vectors: Vectors, candidate_count: int, device: str = "cpu", keep_bytes: int | None = None
    ) -> None:
        """Search by ``query_vectors`` for ``candidate_count`` passages each, on a device.

        ``keep_bytes`` is the memory for passages that :meth:`exact_products` needs (default: half of a GPU's free
        memory, and nothing on a CPU).
        """
        self._best_scores = torch.full((len(query_vectors), candidate_count), -torch.inf, device=device)
        self._best_rows = torch.full((len(query_vectors), candidate_count), -1, device=device)
        # Otherwise a GPU may round 32-bit numbers to TF32.
        torch.set_float32_matmul_precision("highest")
        self._device = device
        self._is_on_gpu = device.startswith("cuda")
        self._dtype = torch.float32
        self._product_options: dict[str, Any] = {}
        if self._is_on_gpu:
            self._dtype = torch.float16
            self._product_options["out_dtype"] = torch.float32
        self._queries = torch.from_numpy(query_vectors).to(device).to(self._dtype)
        if keep_bytes is None:
            keep_bytes = int(_KEPT_SHARE * torch.cuda.mem_get_info(device)[0]) if self._is_on_gpu else 0
        self._free_bytes = keep_bytes
        # 32-bit numbers would lose digits on a GPU.
        self._is_keeping = keep_bytes > 0 and query_vectors.dtype == np.float16
        self._kept_blocks: list[tuple[int, torch.Tensor]] = []

    def prepare(self, block: Vectors) -> torch.Tensor:
        """Convert a block to a tensor in the CPU's memory, for :meth:`add`."""
        if block.dtype != np.float16:
            # The passages have 32-bit numbers, which would lose digits on a GPU.
            self._is_keeping = False
        passages = torch.from_numpy(block)
        # A GPU copies pinned memory while it computes.
        return passages.pin_memory() if self._is_on_gpu else passages.to(self._dtype)

    def add(self, first_row: int, block: torch.Tensor) -> None:
        """Merge the best passages of a block, whose first passage is row ``first_row``, into the best so far."""
        with torch.inference_mode():
            passages = block.to(self._device, non_blocking=True).to(self._dtype)
            count = min(len(block), self._best_scores.shape[1])
            queries_per_step = max(1, SCORES // len(block))
            for first_query in range(0, len(self._queries), queries_per_step):
                step = slice(first_query, first_query + queries_per_step)
                products = torch.mm(self._queries[step], passages.T, **self._product_options)
                block_scores, block_rows = fast_topk(products, count)
                self._merge_best(step, block_scores, block_rows + first_row)
        self._keep(first_row, passages)

    def _keep(self, first_row: int, passages: torch.Tensor) -> None:
        """Keep a block for :meth:`exact_products`, or forget all blocks if the memory is too small for them."""
        self._free_bytes -= passages.nbytes
        if self._free_bytes < 0:
            self._is_keeping = False
        if self._is_keeping:
            self._kept_blocks.append((first_row, passages))
        else:
            self._kept_blocks.clear()

    def exact_products(self, rows: Rows) -> npt.NDArray[np.float64] | None:
        """Return the 64-bit products of each query with its line of ``rows``, or None if passages were not kept.

        A row that this engine has not searched has -inf. Afterwards, the engine forgets the passages.
        """
        if not self._is_keeping:
            return None
        flat_rows = torch.from_numpy(rows.reshape(-1)).to(self._device)
        # Sorted by passage, the pairs of a block follow each other.
        sorted_rows, order = torch.sort(flat_rows, stable=True)
        sorted_queries = order // rows.shape[1]
        products = torch.full(flat_rows.shape, -torch.inf, dtype=torch.float64, device=self._device)
        with torch.inference_mode():
            for start, passages in self._kept_blocks:
                limits = torch.tensor([start, start + len(passages)], device=self._device)
                first_pair, end_pair = torch.searchsorted(sorted_rows, limits).tolist()
                for step_start in range(first_pair, end_pair, _PAIRS_PER_STEP):
                    step = slice(step_start, min(step_start + _PAIRS_PER_STEP, end_pair))
                    wide_queries = self._queries[sorted_queries[step]].double()
                    wide_passages = passages[sorted_rows[step] - start].double()
                    products[order[step]] = (wide_queries * wide_passages).sum(1)
        self._kept_blocks.clear()
        self._is_keeping = False
        exact: npt.NDArray[np.float64] = products.reshape(rows.shape).cpu().numpy()
        return exact

    def best(self) -> tuple[Floats, Rows]:
        return self._best_scores.cpu().numpy(), self._best_rows.cpu().numpy()

    def _merge_best(self, step: slice, block_scores: torch.Tensor, block_rows: torch.Tensor) -> None:
        """Merge a block's best passages, shape (queries, k), into the best so far. ``step`` selects the queries.

        PyTorch merges on the GPU, so that the GPU does not wait for the CPU.
        """
        scores = torch.cat([self._best_scores[step], block_scores], 1)
        rows = torch.cat([self._best_rows[step], block_rows], 1)
        self._best_scores[step], best_columns = torch.topk(scores, self._best_scores.shape[1])
        self._best_rows[step] = rows.gather(1, best_columns)


def fast_topk(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same as ``torch.topk(scores, k)`` of a matrix, but faster.

    The k best scores of a row lie in the k groups of columns with the highest maxima, so only these groups are
    searched (see the example at the head of this module). The choice among equal scores is undefined.
    """
    row_count, column_count = scores.shape
    group_count = column_count // _GROUP_COLUMNS
    if column_count % _GROUP_COLUMNS or group_count < _FEWEST_GROUPS_PER_HIT * k:
        return torch.topk(scores, k)
    grouped_scores = scores.view(row_count, group_count, _GROUP_COLUMNS)
    best_groups = torch.topk(grouped_scores.amax(2), k, sorted=False).indices
    group_indices = best_groups[:, :, None].expand(-1, -1, _GROUP_COLUMNS)
    scores_of_groups = grouped_scores.gather(1, group_indices).flatten(1)
    values, positions = torch.topk(scores_of_groups, k)
    # A position counts the columns of the selected groups. Convert it to a column of ``scores``.
    groups = best_groups.gather(1, positions // _GROUP_COLUMNS)
    return values, groups * _GROUP_COLUMNS + positions % _GROUP_COLUMNS
