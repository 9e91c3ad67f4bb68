"""The meter: floating-point operations and live bytes, of fake tensors as of real ones."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts while it is entered. ``known`` tensors (weights, gradients) and what shares their memory are left out.

    ``live`` and ``peak``: bytes of storages that are alive, now and at most. They are seen as the operations' results,
    so what a kernel takes and gives back inside an operation is not seen.
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._seen: dict[int, Any] = {_key(tensor): None for tensor in known}
        self._flops: Any = FlopCounterMode(display=False)

    @property
    def flops(self) -> int:
        """Operations of matrix products and attention so far; a multiplication and an addition are two."""
        return int(self._flops.get_total_flops())

    def __enter__(self) -> Meter:
        self._flops.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._flops.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor)
        return found

    def _see(self, tensor: torch.Tensor) -> None:
        key = _key(tensor)
        if key not in self._seen:
            storage = tensor.untyped_storage()
            size = storage.nbytes()
            self._seen[key] = weakref.finalize(storage, self._forget, key, size)
            self.live += size
            self.peak = max(self.peak, self.live)

    def _forget(self, key: int, size: int) -> None:
        del self._seen[key]
        self.live -= size


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
