"""Static embeddings (StaticEmbedding): a vector a token, looked up and averaged. A dual-encoder without a network.

Nothing is padded and nothing waits for a device: files and batches are as large as a GPU's, on a CPU, too.
"""

from __future__ import annotations

from baselines.encode import ROWS_ON_GPU
from baselines.kinds import Work
from baselines.kinds.dense import Dense
from baselines.models.settings import ModelSettings

_BATCH_TOKENS = 1 << 20


class Static(Dense):
    """See :class:`baselines.kinds.Retriever`. The folder is one of `encode`, which `search` takes as well."""

    rows_on_cpu = ROWS_ON_GPU
    batch_tokens = _BATCH_TOKENS


def open_kind(settings: ModelSettings, work: Work) -> Static:
    """A model of static embeddings as a retriever."""
    return Static(settings, work)
