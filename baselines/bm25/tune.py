"""Select k1 and b by MRR@10 on judged questions.

b and k1 are tuned in turn until both stay the same: the best of nine values of b with k1 fixed, then the best of nine
values of k1 with b fixed. Tuning takes about 30 searches (a grid: 81). Ties go to the value nearest the current one.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baselines.bm25.bm25_index import search_columns
from baselines.bm25.engine_numba import NumbaIndex
from baselines.bm25.tokens import K1, B
from baselines.measure.measures import MRR_DEPTH, official_figures
from baselines.measure.qrels import Qrels, read_queries, release_qrels
from builders.core.errors import InputError, log
from builders.core.write_files import write_text
from builders.store.layout import SETS
from builders.store.reader import Release

QUESTIONS = 1_000  # questions to tune on
K1_TRIED = (0.3, 0.6, 0.9, 1.2, 1.5, 1.8, 2.1, 2.4, 3.0)
B_TRIED = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0)


@dataclass(frozen=True)
class TuningSettings:
    """The data that k1 and b are selected on.

    Attributes:
        split: the judged split to tune on.
        searched_split: the split that the run searches. Questions that both splits have are reported.
        set_name: the set of both splits.
        seed: seed of the sample of questions.
        threads: threads of a search.
        out: JSON file of all tried values, or None.
    """

    split: str
    searched_split: str
    set_name: str
    seed: int
    threads: int
    out: Path | None


def tune_parameters(index: NumbaIndex, release: Release, settings: TuningSettings) -> tuple[float, float]:
    """Return the best k1 and b, and write all tried values to ``settings.out``.

    Raises :class:`InputError` if the split has no judged question.
    """
    # Select the judged questions to tune on.
    config = SETS[settings.set_name].queries
    qrels = release_qrels(release, settings.split, settings.set_name)
    queries = read_queries(release, settings.split, config)
    judged_queries = [(query_id, text) for query_id, text in queries if query_id in qrels.positives]
    searched_texts = {text for _, text in read_queries(release, settings.searched_split, config)}
    shared_texts = searched_texts & {text for _, text in judged_queries}
    if shared_texts:  # such questions make the scores of the run too high
        log.warning(
            "--tune %s: %d of its questions also occur in %s",
            settings.split,
            len(shared_texts),
            settings.searched_split,
        )
    sample_size = min(len(judged_queries), QUESTIONS)
    sample = random.Random(settings.seed).sample(judged_queries, sample_size)
    if not sample:
        raise InputError(f"has no judged question in its split {settings.split!r}", path=release.path)
    # Measure values of k1 and b. A pair of values is measured once.
    sample_qrels = Qrels(qrels.name, {query_id: qrels.positives[query_id] for query_id, _ in sample})
    mrr_by_values: dict[tuple[float, float], float] = {}

    def measure_mrr(k1: float, b: float) -> float:
        if (k1, b) not in mrr_by_values:
            rankings: dict[str, list[str]] = {}
            for block in search_columns(index.with_parameters(k1, b), sample, MRR_DEPTH, settings.threads):
                rankings |= block.rankings()
            mrr_by_values[k1, b] = official_figures(rankings, sample_qrels)["MRR@10"]
        return mrr_by_values[k1, b]

    k1, b = climb_by_coordinate(measure_mrr)
    best_mrr = mrr_by_values[k1, b]
    log.info("tuned on %d questions of %s: k1 %g, b %g, MRR@10 %.4f", len(sample), settings.split, k1, b, best_mrr)
    if settings.out is not None:
        analyzer = index.analyzer
        result: dict[str, Any] = {
            "k1": k1,
            "b": b,
            "MRR@10": best_mrr,
            "tuned_on": settings.split,
            "questions": len(sample),
            "seed": settings.seed,
            "analyzer": analyzer.tokenizer.name if analyzer.tokenizer else analyzer.name,
            "stop_words": "drop" if analyzer.drop_stop_words else "keep",
            "tried": [{"k1": k1, "b": b, "MRR@10": value} for (k1, b), value in mrr_by_values.items()],
        }
        write_text(settings.out, json.dumps(result, indent=1) + "\n")
    return k1, b


def climb_by_coordinate(measure: Callable[[float, float], float]) -> tuple[float, float]:
    """Return the k1 and b that maximise ``measure(k1, b)``. Start at the defaults, and change one value at a time."""
    k1 = K1
    b = B
    while True:
        next_b = _best_b(measure, k1, b)
        next_k1 = _best_k1(measure, k1, next_b)
        if (next_k1, next_b) == (k1, b):
            return k1, b
        k1 = next_k1
        b = next_b


def _best_b(measure: Callable[[float, float], float], k1: float, current_b: float) -> float:
    return max(B_TRIED, key=lambda b: (measure(k1, b), -abs(b - current_b)))


def _best_k1(measure: Callable[[float, float], float], current_k1: float, b: float) -> float:
    return max(K1_TRIED, key=lambda k1: (measure(k1, b), -abs(k1 - current_k1)))
