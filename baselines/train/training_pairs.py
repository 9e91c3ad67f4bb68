"""The (query, positive passage) pairs that a model learns from, each with its negatives.

The test split is never read. Memory holds the training queries' texts and the passages' row numbers in the collection:
about 40 MB for the paper's 86,395 queries and 222,395 positives with 4 negatives each.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from baselines.core.passages import CachedPassages
from baselines.measure.qrels import read_judgments, read_queries
from baselines.train.recipe import FROM_RELEASE, Recipe
from builders.core.errors import InputError, log
from builders.store.judgments import read_negative_ids
from builders.store.layout import REMOVED, SETS, base_set, is_for_tuning, set_of
from builders.store.reader import Release

PassageRows = npt.NDArray[np.int64]
_ROWS_PER_BATCH = 4_096  # joined rows of a release that are read at once


@dataclass
class PairRows:
    """Every (query, positive passage) pair of a split, with its sampled negatives.

    Attributes:
        texts: the texts of the queries.
        query: indexes into ``texts``, shape (pairs,).
        positive: rows of the collection, shape (pairs,).
        negatives: rows of the collection, shape (pairs, k).
        counts: the numbers of queries, positives and negatives, for ``training.json``.
    """

    texts: list[str]
    query: PassageRows
    positive: PassageRows
    negatives: PassageRows
    counts: dict[str, int] = field(default_factory=dict)


def read_positives(
    release: Release, set_name: str, split: str, passages: CachedPassages, *, with_similar: bool = False
) -> tuple[dict[str, str], dict[str, list[int]]]:
    """Return the query texts of a split and the rows of the positive passages, by query id.

    Queries without a positive are skipped. ``with_similar``: also return the training questions that were removed as
    similar to dev or test questions (Section 2.3).

    Raises :class:`InputError` if the release lacks the split, or the collection lacks a judged passage.
    """
    configs = set_of(set_name)
    for config in (configs.queries, configs.qrels):
        release.shards(config, split)  # raises InputError if the split is missing
    judgments = read_judgments(release, configs, split)
    query_texts = dict(read_queries(release, split, configs.queries))
    if with_similar:
        judgments |= read_judgments(release, configs, split, REMOVED)
        query_texts |= read_queries(release, split, REMOVED)
    positive_ids = {}
    for query_id, grades in judgments.items():
        positive_ids[query_id] = [passage_id for passage_id, grade in grades.items() if grade > 0]
    positive_rows = _look_up_rows(positive_ids, passages, release.path)
    # Queries without a positive passage cannot be learned from.
    trainable = {query_id: rows for query_id, rows in positive_rows.items() if rows and query_id in query_texts}
    if not trainable:
        raise InputError(f"has no query with a positive passage in {configs.qrels}/{split}", path=release.path)
    return {query_id: query_texts[query_id] for query_id in trainable}, trainable


def _look_up_rows(
    ids_by_query: Mapping[str, list[str]], passages: CachedPassages, path: Path, lines: Mapping[str, int] | None = None
) -> dict[str, list[int]]:
    """Look up the rows of all passages at once, and return them by the keys of ``ids_by_query``.

    The keys are query ids or lines. ``lines``: the line number of each key in ``path``.

    Raises :class:`InputError` if the collection lacks a passage.
    """
    all_ids = [passage_id for passage_ids in ids_by_query.values() for passage_id in passage_ids]
    all_rows = passages.rows(all_ids)
    if (all_rows < 0).any():
        for query_id, passage_ids in ids_by_query.items():
            passages.expect(passage_ids, path, (lines or {}).get(query_id))
    remaining_rows = iter(all_rows.tolist())
    rows_by_query = {}
    for query_id, passage_ids in ids_by_query.items():
        rows_by_query[query_id] = list(itertools.islice(remaining_rows, len(passage_ids)))
    return rows_by_query


def read_pairs(release: Release, recipe: Recipe, passages: CachedPassages, negative_files: Sequence[Path]) -> PairRows:
    """Return the (query, positive) pairs of the recipe's split, each with ``data.negatives_per_positive`` negatives.

    ``negative_files``: files that `mine` wrote. A file may cover only some queries. Without files, the negatives come
    from the release or are random (``data.negatives``). A query's negatives of several files or lines are joined, and
    the recipe's seed shuffles them. The query's positives take negatives from this list in turn, and from its start
    again when the list ends. If a query has too few negatives for one positive, random passages are added.
    """
    data = recipe.data
    negatives_each = data.negatives_per_positive
    query_texts, positive_rows = read_positives(release, data.set, data.split, passages, with_similar=data.similar)
    left_out_ids = set()
    if data.leave_out:
        left_out_ids = {query_id for query_id in positive_rows if is_for_tuning(query_id)}
    for query_id in left_out_ids:
        del positive_rows[query_id]

    hard_negatives: dict[str, list[int]] = {}
    if negatives_each and negative_files:
        for path in negative_files:
            for query_id, rows in read_negatives(path, passages, positive_rows).items():
                hard_negatives.setdefault(query_id, []).extend(rows)
    elif negatives_each and data.negatives == FROM_RELEASE:
        hard_negatives = release_negatives(release, data.set, data.split, passages, positive_rows)

    pair_queries: list[int] = []
    pair_positives: list[int] = []
    pair_negatives: list[list[int]] = []
    random_count = 0
    for number, (query_id, rows) in enumerate(positive_rows.items()):
        generator = np.random.default_rng([recipe.train.seed, number])
        candidates = list(dict.fromkeys(hard_negatives.get(query_id, [])))
        shuffled = itertools.cycle(generator.permutation(candidates).tolist())
        for positive_row in rows:
            negatives: list[int] = list(itertools.islice(shuffled, min(negatives_each, len(candidates))))
            random_count += _add_random_passages(negatives, negatives_each, rows, len(passages), generator)
            if len(negatives) < negatives_each:
                problem = f"has too few passages for {negatives_each} negatives of the query {query_id!r}"
                raise InputError(problem, path=release.path)
            pair_queries.append(number)
            pair_positives.append(positive_row)
            pair_negatives.append(negatives)

    negative_count = len(pair_positives) * negatives_each
    if random_count and hard_negatives:
        source = " and ".join(str(path) for path in negative_files) or release.path
        log.warning("%s has too few negatives: %d of %d are random passages", source, random_count, negative_count)
    counts = {
        "queries": len(positive_rows),
        "positives": len(pair_positives),
        "negatives": negative_count - random_count,
        "random_negatives": random_count,
    }
    if data.leave_out:
        counts["left_out"] = len(left_out_ids)
    return PairRows(
        texts=[query_texts[query_id] for query_id in positive_rows],
        query=np.array(pair_queries),
        positive=np.array(pair_positives),
        negatives=np.array(pair_negatives).reshape(len(pair_positives), negatives_each),
        counts=counts,
    )


def _add_random_passages(
    negatives: list[int],
    wanted_count: int,
    positive_rows: Collection[int],
    passage_count: int,
    generator: np.random.Generator,
) -> int:
    """Fill up a list of negatives with random passages of the collection. Return the number of added passages.

    The list stays too short if the collection has no further passages.
    """
    added_count = 0
    while len(negatives) < wanted_count and len({*positive_rows, *negatives}) < passage_count:
        row = int(generator.integers(passage_count))
        if row not in positive_rows and row not in negatives:
            negatives.append(row)
            added_count += 1
    return added_count


def read_negatives(
    path: Path, passages: CachedPassages, positive_rows: Mapping[str, list[int]]
) -> dict[str, list[int]]:
    """Read a file that `mine` wrote, and return the rows of the negatives by query id.

    ``positive_rows``: rows of the positives by query id. Other queries and these positives are skipped. Raises
    :class:`InputError` for a malformed line, or a passage that is not in the collection.
    """
    negatives = read_negative_ids(path)
    # A query may have several lines, so the rows are looked up by line.
    ids_by_line = {str(line): passage_ids for _, passage_ids, line in negatives}
    lines = {str(line): line for _, _, line in negatives}
    rows_by_line = _look_up_rows(ids_by_line, passages, path, lines)
    rows: dict[str, list[int]] = {}
    for query_id, _, line in negatives:
        rows.setdefault(query_id, []).extend(rows_by_line[str(line)])
    if not rows.keys() & positive_rows.keys():
        raise InputError("has no negatives for the training queries; check the release and the split", path=path)
    return _without_positives(rows, positive_rows)


def release_negatives(
    release: Release, set_name: str, split: str, passages: CachedPassages, positive_rows: Mapping[str, list[int]]
) -> dict[str, list[int]]:
    """Return the rows of the negatives by query id, from the column ``negative_passages`` of the joined config.

    These negatives come from the official dual.train.tsv and cross.train.tsv, without repetitions for a query. Raises
    :class:`InputError` if the release has no negatives, or if a negative is not in the collection.
    """
    config = SETS[base_set(set_name)].joined[split]
    columns = ["query_id", "negative_passages.list.element.docid"]
    negative_rows: dict[str, list[int]] = {}
    for batch in release.batches(config, split, columns, rows=_ROWS_PER_BATCH):
        ids_by_query = {}
        for row in batch.to_pylist():
            ids_by_query[row["query_id"]] = [passage["docid"] for passage in row["negative_passages"]]
        rows = _look_up_rows(ids_by_query, passages, release.path)
        negative_rows |= _without_positives(rows, positive_rows)
    if not any(negative_rows.values()):
        raise InputError(
            f"has no hard negatives in {config}/{split}, which data.negatives = release needs; build a release with "
            "`python -m builders official`, or give --negatives a file from `python -m baselines mine`",
            path=release.path,
        )
    return negative_rows


def _without_positives(
    rows_by_query: Mapping[str, list[int]], positive_rows: Mapping[str, list[int]]
) -> dict[str, list[int]]:
    """Remove the positives from the negatives of the training queries. Other queries are skipped."""
    negatives = {}
    for query_id, rows in rows_by_query.items():
        if query_id in positive_rows:
            negatives[query_id] = [row for row in rows if row not in positive_rows[query_id]]
    return negatives
