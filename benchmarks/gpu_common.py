"""Helpers of gpu.py, gpu_checks.py and gpu_speed.py. PyTorch is imported by the functions that need it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


class Kept(Rows):
    """Rows that are saved to a file one by one. A step that is killed at its time limit still reports its rows."""

    file: Path | None = None

    def append(self, row: dict[str, Any]) -> None:
        super().append(row)
        if self.file is not None:
            new = self.file.with_suffix(".new")
            new.write_text(json.dumps(self), encoding="utf-8")
            new.replace(self.file)  # atomic, because the process may be killed at any moment


def check(name: str, passed: bool, seen: str) -> dict[str, Any]:
    """Return the row of a check: its name, its outcome and the measured values."""
    return {"check": name, "passed": passed, "seen": seen}


def unit_vectors(seed: int, rows: int, width: int, device: str = "cpu") -> Any:
    """Return random 16-bit vectors of length 1, shape (rows, width)."""
    import torch

    values = torch.randn(rows, width, generator=torch.Generator(device).manual_seed(seed), device=device)
    return torch.nn.functional.normalize(values, dim=1).half().cpu().numpy()


def write_vectors(folder: Path, rows: int, width: int, device: str) -> Any:
    """Write random embeddings in the format of `encode`, and return their index."""
    import numpy as np

    from baselines.retrieve.exact_search import largest_norm
    from baselines.retrieve.index_files import File, Index

    shards = []
    for start in range(0, rows, 1 << 17):
        part, path = unit_vectors(start + 1, min(1 << 17, rows - start), width, device), folder / f"{start:09d}.npy"
        np.save(path, part)
        shards.append(File(path.name, path.stat().st_size, len(part), "0" * 64, 1.0001 * largest_norm(part)))
    return Index(folder, {}, shards)


def passages_of(setting: Setting, count: int) -> list[str]:
    """Return the first passages of the release, or if ``setting.small``, numbered copies of the tests' passages."""
    from builders.store.reader import open_release

    if setting.small:
        from releases import TEXTS

        return [f"{TEXTS[number % len(TEXTS)]}{number}" for number in range(count)]
    found: list[str] = []
    for batch in open_release(setting.release).batches("corpus", "corpus", ["text"], rows=1024):
        found += batch.column("text").to_pylist()
        if len(found) >= count:
            break
    return found[:count]
