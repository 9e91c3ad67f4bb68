"""Some rows of a directory of embeddings, searched as if they were all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from baselines.vectors.embeddings import Vectors


@dataclass(frozen=True)
class SomeVectors(Vectors):
    """Embeddings of which only ``chosen`` (rows, ascending) are seen: they are numbered from 0, in their order."""

    chosen: npt.NDArray[np.int64]

    @property
    def rows(self) -> int:
        return len(self.chosen)

    def blocks(self, rows: int = 1 << 16) -> Iterator[tuple[int, npt.NDArray[np.float16]]]:
        """As of all rows; a block is copied, and may be short."""
        begin = 0
        for start, block in super().blocks(rows):
            end = int(np.searchsorted(self.chosen, start + len(block)))
            if end > begin:
                yield begin, block[self.chosen[begin:end] - start]
            begin = end
