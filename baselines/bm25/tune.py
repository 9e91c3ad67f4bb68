"""Select k1 and b by MRR@10 on judged questions.

b and k1 are tuned in turn until both stay the same: the best of nine values of b with k1 fixed, then the best of nine
values of k1 with b fixed. Tuning takes about 30 searches (a grid: 81). Ties go to the value nearest the current one.
"""

import argparse
import json
import random
from collections.abc import Callable
from typing import Any

from baselines.bm25.bm25_index import search_columns
from baselines.bm25.engine_numba import NumbaIndex
from baselines.bm25.tokens import K1, B
from baselines.measure.measures import MRR_DEPTH, official
from baselines.measure.qrels import Qrels, read_queries, release_qrels
from builders.core.errors import InputError, log
from builders.core.files import write_text
from builders.store.layout import SETS
from builders.store.reader import Release

QUESTIONS = 1_000  # questions to tune on
K1_TRIED = (0.3, 0.6, 0.9, 1.2, 1.5, 1.8, 2.1, 2.4, 3.0)
B_TRIED = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0)


def tune(index: NumbaIndex, release: Release, args: argparse.Namespace) -> tuple[float, float]:
    """Return the best k1 and b, and write ``RUN.tuned.json``. ``args``: the options of `bm25`.

    Raises :class:`InputError` if the split has no judged question.
    """
    config = SETS[args.set].queries
    qrels = release_qrels(release, args.tune, args.set)
    asked = [query for query in read_queries(release, args.tune, config) if query[0] in qrels.positives]
    if shared := {text for _, text in asked} & {text for _, text in read_queries(release, args.split, config)}:
        log.warning("--tune %s: %d of its questions also occur in %s", args.tune, len(shared), args.split)
    drawn = random.Random(args.seed).sample(asked, min(len(asked), QUESTIONS))
    if not drawn:
        raise InputError(f"has no judged question in its split {args.tune!r}", path=release.path)
    some = Qrels(qrels.name, {query: qrels.positives[query] for query, _ in drawn})
    tried: dict[tuple[float, float], float] = {}

    def measured(k1: float, b: float) -> float:
        if (k1, b) not in tried:
            parts = search_columns(index.reopened(k1, b), drawn, MRR_DEPTH, args.threads)
            rankings = {query: ids for part in parts for query, ids in part.rankings().items()}
            tried[k1, b] = official(rankings, some)["MRR@10"]
        return tried[k1, b]

    k1, b = best = descend(measured)
    log.info("tuned on %d questions of %s: k1 %g, b %g, MRR@10 %.4f", len(drawn), args.tune, k1, b, tried[best])
    result: dict[str, Any] = {
        **{"k1": k1, "b": b, "MRR@10": tried[best], "tuned_on": args.tune, "questions": len(drawn)},
        **{"seed": args.seed, "analyzer": args.analyzer, "stop_words": args.stop_words},
        "tried": [{"k1": k1, "b": b, "MRR@10": value} for (k1, b), value in tried.items()],
    }
    write_text(args.out.with_name(f"{args.out.name}.tuned.json"), json.dumps(result, indent=1) + "\n")
    return best


def descend(measured: Callable[[float, float], float]) -> tuple[float, float]:
    """Return the k1 and b that maximise ``measured(k1, b)``. Start at the defaults, and change one value at a time."""
    best, found = None, (K1, B)
    while found != best:
        best = k1, last = found
        b = max(B_TRIED, key=lambda b: (measured(k1, b), -abs(b - last)))
        found = max(K1_TRIED, key=lambda k: (measured(k, b), -abs(k - k1))), b
    return found
