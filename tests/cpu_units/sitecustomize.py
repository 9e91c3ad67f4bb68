"""Have every Python that starts with this folder on its path report the CPU units that ``CPU_UNITS`` names.

``CPU_UNITS=bf16``: the CPU has units for bf16. ``CPU_UNITS=none``: the CPU has no units at all. PyTorch still computes
with the units that are there; only a program's question about them gets another answer.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

UNITS = {"bf16": {"avx512_bf16": True, "amx_bf16": True}, "none": {}}[os.environ["CPU_UNITS"]]


class _Finder(importlib.abc.MetaPathFinder):
    """Replaces ``torch.cpu.get_capabilities`` when torch is imported: torch is too slow to import in every process."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch.cpu" or not (spec := importlib.machinery.PathFinder.find_spec(name, path)):
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            vars(module)["get_capabilities"] = lambda: dict(UNITS)

        loader.exec_module = executed
        return spec


sys.meta_path.insert(0, _Finder())
