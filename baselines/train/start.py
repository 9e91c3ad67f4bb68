"""What a training starts from, named so that another one is never taken for it: the bytes of a folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from builders.core.files import sha256_of

_WEIGHTS = ("*.safetensors", "*.bin")


def weights_sha256(folder: Path) -> str | None:
    """SHA-256 of a model's weights, safetensors or PyTorch's; of several files, that of their paths and SHA-256s."""
    names = sorted({path for pattern in _WEIGHTS for path in folder.rglob(pattern) if path.name != "training_args.bin"})
    found = {path.relative_to(folder).as_posix(): sha256_of(path) for path in names}
    if len(found) < 2:
        return next(iter(found.values()), None)
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()
