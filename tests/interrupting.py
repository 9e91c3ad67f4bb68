"""Scoring by a cross-encoder, interrupted: which queries were scored, in windows of one query."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import pytest

from baselines.retrieve import rerankers


@contextlib.contextmanager
def scoring_noted(scored: list[str], most: float = math.inf) -> Iterator[None]:
    """Add the text of every query that is scored inside to ``scored``; Ctrl-C before one is more than ``most``."""
    score = rerankers.score_groups

    def noted(job: Any, device: str, groups: Any) -> Any:
        if len(scored) >= most:
            raise KeyboardInterrupt
        scored.append(groups[0][0])
        return score(job, device, groups)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rerankers, "WINDOW", 1)
        patch.setattr(rerankers, "score_groups", noted)
        yield
