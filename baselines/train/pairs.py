"""The pairs that a model is trained on: every query with each of its positives, and the negatives sampled for it.

Held are row numbers and the training queries' texts: some 40 MB for the paper's 86,395 queries and 222,395 positives
with 4 negatives each. The passages' texts are looked up batch by batch (:mod:`baselines.train.rows`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from baselines.retrieve.passages import Passages
from baselines.runs.sets import read_judgments, read_queries
from baselines.train.negatives import read_negatives, release_negatives
from baselines.train.recipe import FROM_RELEASE, Recipe
from builders.core.errors import InputError, log
from builders.store.layout import REMOVED, set_of
from builders.store.reader import Release

Rows = npt.NDArray[np.int64]


@dataclass
class Pairs:
    """Every (query, positive passage) of a split, with the negatives sampled for it.

    Attributes:
        texts: the queries' texts.
        query: shape (pairs,), indexes into ``texts``.
        positive: shape (pairs,), rows of the collection.
        negatives: shape (pairs, k), rows of the collection.
        counts: what ``training.json`` says of them.
    """

    texts: list[str]
    query: Rows
    positive: Rows
    negatives: Rows
    counts: dict[str, int] = field(default_factory=dict)


def positives(
    release: Release, set_name: str, split: str, passages: Passages, similar: bool = False
) -> tuple[dict[str, str], dict[str, list[int]]]:
    """(texts of the queries, rows of their positives) of a split, by query id; queries without a positive left out.

    ``similar``: the training questions that were removed as similar come after them, judged by their own passages.

    Raises :class:`InputError` where the release lacks the split, or a judgment names a passage that is not there.
    """
    configs = set_of(set_name)
    for config in (configs.queries, configs.qrels):
        release.shards(config, split)  # raises
    scores = read_judgments(release, configs, split)
    texts = dict(read_queries(release, split, configs.queries))
    if similar:
        scores |= read_judgments(release, configs, split, REMOVED)
        texts |= read_queries(release, split, REMOVED)
    judged = {query: [corpus for corpus, score in own.items() if score > 0] for query, own in scores.items()}
    ids = [corpus for query in judged.values() for corpus in query]
    rows = passages.rows(ids)
    if (rows < 0).any():
        missing = ids[int(np.argmin(rows))]
        raise InputError(
            f"{int((rows < 0).sum())} judgments of {configs.qrels}/{split} name passages that {configs.corpus} lacks "
            f"({missing!r}); build the release again",
            path=release.path,
        )
    found, start = {}, 0
    for query, wanted in judged.items():
        if wanted and query in texts:
            found[query] = rows[start : start + len(wanted)].tolist()
        start += len(wanted)
    if not found:
        raise InputError(f"has no query with a positive passage in {configs.qrels}/{split}", path=release.path)
    return {query: texts[query] for query in found}, found


def read_pairs(release: Release, recipe: Recipe, passages: Passages, negatives: Sequence[Path]) -> Pairs:
    """The pairs of the recipe's split; each has ``data.negatives_per_positive`` of its query's negatives.

    ``negatives``: what `mine` wrote, for some of the queries each; without any, what ``data.negatives`` says. A query's
    negatives are dealt out to its positives in the order of the recipe's seed, from the beginning again where they run
    out: with 4 for each positive, as `mine` draws them and as the official rows have them, each is learned from. Where
    a query has too few, passages of the whole collection fill them up (counted, and said).
    """
    data, seed = recipe.data, recipe.train.seed
    texts, judged = positives(release, data.set, data.split, passages, data.similar)
    each = data.negatives_per_positive
    hard: dict[str, list[int]] = {}
    for path in negatives if each else ():
        hard |= read_negatives(path, passages, judged)
    if each and not negatives and data.negatives == FROM_RELEASE:
        hard = release_negatives(release, data.set, data.split, passages, judged)
    query, positive, sampled, filled = [], [], [], 0
    for number, (name, good) in enumerate(judged.items()):
        generator = np.random.default_rng([seed, number])
        pool = list(dict.fromkeys(hard.get(name, [])))
        dealt = itertools.cycle(generator.permutation(pool).tolist()) if pool else iter(())
        for row in good:
            query.append(number)
            positive.append(row)
            drawn: list[int] = list(itertools.islice(dealt, min(each, len(pool))))
            taken = {*good, *drawn}
            while len(drawn) < each and len(taken) < len(passages):
                other = int(generator.integers(len(passages)))
                if other not in taken:
                    drawn.append(other)
                    taken.add(other)
                    filled += 1
            if len(drawn) < each:
                raise InputError(f"has too few passages for {each} negatives of the query {name!r}", path=release.path)
            sampled.append(drawn)
    if filled and hard:
        every, where = len(positive) * each, " and ".join(map(str, negatives)) or release.path
        log.warning("%s has too few negatives: %d of %d are random passages", where, filled, every)
    counts = {"queries": len(texts), "positives": len(positive), "negatives": len(positive) * each - filled}
    counts["random_negatives"] = filled
    shape = (len(positive), each)
    return Pairs(list(texts.values()), np.array(query), np.array(positive), np.array(sampled).reshape(shape), counts)
