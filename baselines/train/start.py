"""What a training starts from, named so that another one is never taken for it: the bytes of a folder, or a commit."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from pathlib import Path

from baselines.models.libraries import cached_commit, hub_commit
from builders.common.command import InputError, log
from builders.common.files import sha256_of

_WEIGHTS = ("*.safetensors", "*.bin")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def weights_sha256(folder: Path) -> str | None:
    """SHA-256 of a model's weights, safetensors or PyTorch's; of several files, that of their paths and SHA-256s."""
    names = sorted({path for pattern in _WEIGHTS for path in folder.rglob(pattern) if path.name != "training_args.bin"})
    found = {path.relative_to(folder).as_posix(): sha256_of(path) for path in names}
    if len(found) < 2:
        return next(iter(found.values()), None)
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


@functools.lru_cache  # a plan's trainings share a start
def start_commit(start: str, revision: str, otherwise: str) -> str | None:
    """The commit that a start on the hub stands for now; None where ``start`` is a folder.

    Asked of the hub; where it cannot be, the libraries' cache says which one it holds. Raises :class:`InputError`, with
    what may be done ``otherwise``, where neither knows one.
    """
    from huggingface_hub import constants

    if Path(start).is_dir():
        return None
    if _COMMIT.fullmatch(revision):
        return revision
    cached = cached_commit(start, revision)
    if constants.HF_HUB_OFFLINE:
        if cached is None:
            raise InputError(f"the model {start} is not in the cache, and HF_HUB_OFFLINE is set; {otherwise}")
        return cached
    try:
        return hub_commit(start, revision, otherwise)
    except ValueError:
        raise InputError(f"{start!r} is neither a folder nor the name of a model on the hub; {otherwise}") from None
    except InputError as error:
        if cached is None:
            raise
        log.warning("%s; the cache has the commit %s", error, cached)
        return cached
