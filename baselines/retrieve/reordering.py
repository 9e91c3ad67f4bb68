"""Order the passages of a run by new scores."""

import math
from collections.abc import Sequence

from builders.core.errors import InputError
from builders.store.runs import Hit, Run

_TAIL = 1e-6  # difference between the scores of passages behind --top-k; visible in 32 bits


def expect_hits(run: Run) -> None:
    """Raise :class:`InputError` for a run to re-rank that has no passage of any query."""
    if not any(run.rankings.values()):
        raise InputError("is an empty run; expected passages to re-rank; search again to make the run", path=run.path)


def reorder_passages(ids: Sequence[str], scores: Sequence[float]) -> list[Hit]:
    """Return a query's passages with new scores. ``scores`` has the new scores of the first passages in ``ids``.

    Passages without a score, or with the score -inf, follow in their old order. Their scores are below all others.
    """
    hits = [(corpus, score) for corpus, score in zip(ids, scores, strict=False) if score > -math.inf]
    scored_ids = {corpus for corpus, _ in hits}
    lowest = min((score for _, score in hits), default=0.0)
    step = _TAIL * max(1.0, abs(lowest))
    rest = [corpus for corpus in ids if corpus not in scored_ids]
    for place, corpus in enumerate(rest, start=1):
        tail_score = float(f"{lowest - place * step:.9g}")  # nine digits identify a 32-bit number
        if not math.isfinite(tail_score):
            raise InputError(f"no finite score is left below {lowest:g} for the passages that were not scored")
        hits.append((corpus, tail_score))
    return hits
