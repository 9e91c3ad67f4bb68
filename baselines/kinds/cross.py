"""Cross-encoders: a query and a passage read together, one logit (:mod:`baselines.models.encoder`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sentence_transformers import CrossEncoder

from baselines.kinds import Work
from baselines.models.encoder import CrossScorer
from baselines.models.loading import commit_of, described, moved, open_pairs
from baselines.models.settings import ModelSettings
from builders.core.errors import InputError


class Cross:
    """See :class:`baselines.kinds.Reranker`: logits, the order of ``CrossEncoder.predict``."""

    kind = "cross"

    def __init__(self, settings: ModelSettings, work: Work) -> None:
        self.settings, self._work = replace(settings, revision=commit_of(settings.name, settings.revision)), work
        self._scorer: CrossScorer | None = None

    def open_model(self) -> CrossEncoder:
        """The model as it is used, in fp32 on the CPU."""
        model = open_pairs(self.settings)
        if (prompt := self.settings.query_prompt) is not None:
            model.prompts, model.default_prompt_name = {**model.prompts, "asked": prompt}, "asked"
        return model

    def told(self, model: CrossEncoder) -> dict[str, Any]:
        """What is said of the open model."""
        return {"kind": self.kind, **described(self.settings, model, self._work.dtype)}

    def about(self) -> dict[str, Any]:
        return self.told(self.open_model())

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        if not pairs:
            return []
        if self._scorer is None:
            model = moved(self.open_model(), self._work.devices[0], self._work.dtype)
            self._scorer = CrossScorer(model, self._work.batch_tokens, self._work.tokenizers or 0)
        scores: list[float] = self._scorer.scores(pairs).tolist()
        return scores


def expect_no(settings: ModelSettings, what: str, *names: str) -> None:
    """:class:`InputError` where something is said that such a model knows nothing of."""
    for name in names:
        if getattr(settings, name) not in (None, "", False):
            raise InputError(f"{name}: {what} has none", path=settings.name)


def open_kind(settings: ModelSettings, work: Work) -> Cross:
    """A cross-encoder as a re-ranker."""
    return Cross(settings, work)
