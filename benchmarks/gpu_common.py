"""Helpers of gpu.py, gpu_checks.py and gpu_speed.py. PyTorch is imported by the functions that need it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROWS_PER_SHARD = 1 << 17
_NORM_MARGIN = 1.0001  # the recorded norm is an upper bound, because norms are computed with rounding errors
_NO_CHECKSUM = "0" * 64  # random embeddings are not verified

Rows = list[dict[str, Any]]  # the rows of a step's table


@dataclass(frozen=True)
class Setting:
    """The input of a step.

    Attributes:
        device: cuda:N or cpu.
        small: True if the models and data are tiny.
        model: the folder of a pretrained dual-encoder.
        release: a release directory with the sets main, cmedqa and ccovid.
        settings: the settings file of `reproduce`.
        work: the folder for trainings and large temporary files.
        seconds: the step's time limit.
    """

    device: str
    small: bool
    model: Path
    release: Path
    settings: Path
    work: Path
    seconds: float = 0.0

    @property
    def cuda(self) -> bool:
        return self.device.startswith("cuda")

    def of(self, large: int, small: int) -> int:
        """Return the number ``small`` if the models and data are tiny, otherwise ``large``."""
        return small if self.small else large


Step = tuple[Callable[[Setting], Rows], int]  # a function, and its time limit in seconds


class SavedRows(Rows):
    """Rows that are saved to a file one by one. A step that is killed at its time limit still reports its rows."""

    file: Path | None = None

    def append(self, row: dict[str, Any]) -> None:
        super().append(row)
        if self.file is not None:
            new_path = self.file.with_suffix(".new")
            new_path.write_text(json.dumps(self), encoding="utf-8")
            new_path.replace(self.file)  # atomic, because the process may be killed at any moment


def check(name: str, passed: bool, measured: str) -> dict[str, Any]:
    """Return the row of a check: its name, its outcome and the measured values."""
    return {"check": name, "passed": passed, "seen": measured}


def unit_vectors(seed: int, rows: int, width: int, device: str = "cpu") -> Any:
    """Return random 16-bit vectors of length 1, shape (rows, width)."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    vectors = torch.randn(rows, width, generator=generator, device=device)
    return torch.nn.functional.normalize(vectors, dim=1).half().cpu().numpy()


def write_vectors(folder: Path, rows: int, width: int, device: str) -> Any:
    """Write ``rows`` random embeddings in the format of `encode`, and return their index.

    ``device`` computes the embeddings.
    """
    import numpy as np

    from baselines.retrieve.exact_search import largest_norm
    from baselines.retrieve.index_files import IndexFile, VectorIndex

    shards = []
    for start in range(0, rows, _ROWS_PER_SHARD):
        # Each shard has a seed of its own. The callers use the seed 0 for queries.
        vectors = unit_vectors(start + 1, min(_ROWS_PER_SHARD, rows - start), width, device)
        path = folder / f"{start:09d}.npy"
        np.save(path, vectors)
        longest = _NORM_MARGIN * largest_norm(vectors)
        shards.append(IndexFile(path.name, path.stat().st_size, len(vectors), _NO_CHECKSUM, longest))
    return VectorIndex(folder, {}, shards)


def passages_of(setting: Setting, count: int) -> list[str]:
    """Return the first passages of the release, or if ``setting.small``, numbered copies of the tests' passages."""
    from builders.store.reader import open_release

    if setting.small:
        from releases import TEXTS

        return [f"{TEXTS[number % len(TEXTS)]}{number}" for number in range(count)]
    passages: list[str] = []
    for batch in open_release(setting.release).batches("corpus", "corpus", ["text"], rows=1024):
        passages += batch.column("text").to_pylist()
        if len(passages) >= count:
            break
    return passages[:count]
