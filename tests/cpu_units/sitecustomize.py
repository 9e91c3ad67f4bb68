"""Simulate a CPU for every Python that starts with this folder on its path.

``CPU_UNITS=bf16``: torch reports units for bf16. ``CPU_UNITS=none``: torch reports no units. Computations still use the
real units of the CPU.
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
    """Replaces ``torch.cpu.get_capabilities`` when a process imports torch, which most processes do not import."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch.cpu":
            return None
        module_spec = importlib.machinery.PathFinder.find_spec(name, path)
        if not module_spec:
            return None
        loader: Any = module_spec.loader
        execute_module = loader.exec_module

        def execute_and_replace(module: ModuleType) -> None:
            execute_module(module)
            vars(module)["get_capabilities"] = lambda: dict(UNITS)

        loader.exec_module = execute_and_replace
        return module_spec


sys.meta_path.insert(0, _Finder())
