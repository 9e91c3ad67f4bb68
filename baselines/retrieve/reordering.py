"""Order the passages of a run by new scores."""

import math
from collections.abc import Sequence

from builders.core.errors import InputError
from builders.store.runs import Hit, Run

# Difference between the scores of passages behind --top-k; visible in 32 bits.
_TAIL_STEP = 1e-6


def expect_hits(run: Run) -> None:
    """Raise :class:`InputError` for a run to re-rank that has no passage of any query."""
    if not any(run.rankings.values()):
        raise InputError("is an empty run; expected passages to re-rank; search again to make the run", path=run.path)


def reorder_passages(passage_ids: Sequence[str], new_scores: Sequence[float]) -> list[Hit]:
    """Return a query's passages with new scores: ``new_scores`` of the first passages in ``passage_ids``.

    Passages without a score, or with the score -inf, follow in their old order. Their scores are below all others. For
    example, four passages of which the first two score 0.5 and 0.9 get 0.5, 0.9, 0.499999 and 0.499998.
    """
    hits = []
    for passage_id, score in zip(passage_ids, new_scores, strict=False):
        if score > -math.inf:
            hits.append((passage_id, score))
    scored_ids = {passage_id for passage_id, _ in hits}
    lowest_score = min((score for _, score in hits), default=0.0)
    # A step in proportion to the score, because large numbers have fewer decimal places.
    step = _TAIL_STEP * max(1.0, abs(lowest_score))
    tail_ids = [passage_id for passage_id in passage_ids if passage_id not in scored_ids]
    for tail_rank, passage_id in enumerate(tail_ids, start=1):
        # Nine digits identify a 32-bit number.
        tail_score = float(f"{lowest_score - tail_rank * step:.9g}")
        if not math.isfinite(tail_score):
            raise InputError(f"no finite score is left below {lowest_score:g} for the passages that were not scored")
        hits.append((passage_id, tail_score))
    return hits
