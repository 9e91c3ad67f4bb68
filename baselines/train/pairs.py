"""The pairs that a model is trained on: every query with each of its positives, and the negatives sampled for it.

Held are row numbers and the training queries' texts: some 40 MB for the paper's 86,395 queries and 222,395 positives
with 4 negatives each. The passages' texts are looked up batch by batch (:mod:`baselines.train.rows`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from baselines.passages import Passages
from baselines.runs.lines import raw_lines
from baselines.runs.sets import read_judgments, read_queries
from baselines.train.recipe import Recipe
from builders.common.command import InputError, log
from builders.store.layout import SETS
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
    release: Release, set_name: str, split: str, passages: Passages
) -> tuple[dict[str, str], dict[str, list[int]]]:
    """(texts of the queries, rows of their positives) of a split, by query id; queries without a positive left out.

    Raises :class:`InputError` where the release lacks the split, or a judgment names a passage that is not there.
    """
    configs = SETS[set_name]
    for config in (configs.queries, configs.qrels):
        release.shards(config, split)  # raises
    judged = {q: [c for c, score in s.items() if score > 0] for q, s in read_judgments(release, configs, split).items()}
    texts = dict(read_queries(release, split, configs.queries))
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


def read_negatives(path: Path, passages: Passages, queries: dict[str, list[int]]) -> dict[str, list[int]]:
    """Rows of the negatives of every query, from the JSON lines that ``mine`` writes; queries of other splits left out.

    Raises :class:`InputError` naming the line where it is no such line, or names a passage that is not there.
    """
    ids: list[str] = []
    at: list[tuple[str, int, int]] = []  # query, its number of negatives, its line
    for number, line in raw_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            query, negatives = row["query-id"], row["negative-ids"]
            if not isinstance(query, str) or not all(isinstance(each, str) for each in negatives):
                raise TypeError
        except (ValueError, TypeError, KeyError):
            expected = 'expected {"query-id": ID, "negative-ids": [ID, ...]}'
            raise InputError(expected, path=path, line=number) from None
        at.append((query, len(negatives), number))
        ids += negatives
    rows = passages.rows(ids)
    found, start = {}, 0
    for query, count, number in at:
        own = rows[start : start + count]
        if (own < 0).any():
            missing = ids[start + int(np.argmin(own))]
            raise InputError(f"the collection has no passage {missing!r}", path=path, line=number)
        if query in queries:
            good = set(queries[query])
            found[query] = [row for row in own.tolist() if row not in good]
        start += count
    if not found:
        raise InputError("has none of the queries that are trained on", path=path)
    return found


def read_pairs(release: Release, recipe: Recipe, passages: Passages, negatives: Path | None) -> Pairs:
    """The pairs of the recipe's split; each has ``data.negatives_per_positive`` of its query's negatives.

    They are drawn with the recipe's seed, for every pair anew, without repeats. Where the file has too few for a query,
    passages of the whole collection fill it up (counted, and said).
    """
    data, seed = recipe.data, recipe.train.seed
    texts, judged = positives(release, data.set, data.split, passages)
    mined = read_negatives(negatives, passages, judged) if negatives else {}
    each = data.negatives_per_positive
    query, positive, sampled, filled = [], [], [], 0
    for number, (name, good) in enumerate(judged.items()):
        pool = mined.get(name, [])
        for row in good:
            query.append(number)
            positive.append(row)
            generator = np.random.default_rng([seed, len(positive)])
            drawn = [pool[n] for n in generator.choice(len(pool), min(each, len(pool)), replace=False)] if pool else []
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
    if filled and negatives:
        log.warning("%s has too few negatives: %d of %d are random passages", negatives, filled, len(positive) * each)
    counts = {"queries": len(texts), "positives": len(positive), "negatives": len(positive) * each - filled}
    counts["random_negatives"] = filled
    shape = (len(positive), each)
    return Pairs(list(texts.values()), np.array(query), np.array(positive), np.array(sampled).reshape(shape), counts)
