"""The (query, positive passage) pairs that a model learns from, each with its negatives.

Test splits are read only to refuse their questions among a machine's labels. Memory holds the training queries' texts
and the passages' row numbers in the collection: about 40 MB for the paper's 86,395 queries and 222,395 positives with 4
negatives each.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from baselines.core.passages import CachedPassages
from baselines.measure.qrels import read_judgments, read_queries
from baselines.train.denoising import question_splits
from baselines.train.recipe import FROM_RELEASE, Recipe
from builders.core.errors import InputError, log
from builders.store.judgments import read_machine_labels, read_negative_ids
from builders.store.layout import REMOVED, SETS, base_set, is_for_tuning, set_of
from builders.store.names import TESTED_SPLITS
from builders.store.reader import Release
from builders.store.runs import Hit, read_run, scored_depth
from builders.text.likeness import normalise_text

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
        scores: the teacher's score of the positive and of each negative, shape (pairs, 1 + k). None without a teacher.
    """

    texts: list[str]
    query: PassageRows
    positive: PassageRows
    negatives: PassageRows
    counts: dict[str, int] = field(default_factory=dict)
    scores: npt.NDArray[np.float64] | None = None


def read_positives(
    release: Release, set_name: str, split: str, passages: CachedPassages, *, with_similar: bool = False
) -> tuple[dict[str, str], dict[str, list[int]]]:
    """Return the query texts of a split by query id, and the rows of their positive passages by query id.

    Queries without a positive are skipped. ``with_similar``: also return the training questions that were removed as
    similar to dev or test questions (Section 2.3).

    Raises :class:`InputError` if the release lacks the split, the collection lacks a positive passage, or no query has
    a positive.
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
    ids_by_key: Mapping[str, list[str]], passages: CachedPassages, path: Path, lines: Mapping[str, int] | None = None
) -> dict[str, list[int]]:
    """Look up the rows of all passages at once, and return them by the keys of ``ids_by_key``.

    A key is the id of a query, or a line number as text. ``path`` is the file or release that has the ids, and
    ``lines`` has the number of each key's line in this file, for the error.

    Raises :class:`InputError` if the collection lacks a passage.
    """
    all_ids = [passage_id for passage_ids in ids_by_key.values() for passage_id in passage_ids]
    all_rows = passages.rows(all_ids)
    if (all_rows < 0).any():
        for key, passage_ids in ids_by_key.items():
            passages.expect(passage_ids, path, (lines or {}).get(key))
    remaining_rows = iter(all_rows.tolist())
    rows_by_key = {}
    for key, passage_ids in ids_by_key.items():
        rows_by_key[key] = list(itertools.islice(remaining_rows, len(passage_ids)))
    return rows_by_key


def read_pairs(
    release: Release,
    recipe: Recipe,
    passages: CachedPassages,
    negative_files: Sequence[Path],
    *,
    label_files: Sequence[Path] = (),
    teacher: Path | None = None,
) -> PairRows:
    """Return the (query, positive) pairs of the recipe's split, each with ``data.negatives_per_positive`` negatives.

    ``negative_files``: files that `mine` wrote. A file may cover only some queries. Without files, the negatives come
    from the release or are random (``data.negatives``). A query's negatives of several files or lines are joined, and
    the recipe's seed shuffles them. The query's positives take negatives from this list in turn, and from its start
    again when the list ends. If a query has too few negatives for one positive, random passages are added. With
    ``data.leave_out``, the tuning questions are skipped.

    ``label_files``: files of a machine's labels, which add positives and questions (:func:`add_machine_labels`).
    ``teacher``: the run whose scores a distillation learns. Then only passages of the run are used, without random
    passages. Without ``negative_files``, the best passages of the run follow the negatives of the label files
    (:func:`pair_with_scores`).
    """
    data = recipe.data
    negatives_each = data.negatives_per_positive
    query_texts, positive_rows = read_positives(release, data.set, data.split, passages, with_similar=data.similar)
    hard_negatives: dict[str, list[int]] = {}
    machine_count = 0
    refused_texts = _refused_texts(release, with_similar=data.similar) if label_files else set()
    for path in label_files:
        machine_count += add_machine_labels(path, passages, query_texts, positive_rows, hard_negatives, refused_texts)
    # After all files, because a positive of a later file may be a negative of an earlier one.
    hard_negatives = _without_positives(hard_negatives, positive_rows)
    left_out_ids = set()
    if data.leave_out:
        left_out_ids = {query_id for query_id in positive_rows if is_for_tuning(query_id)}
    for query_id in left_out_ids:
        del positive_rows[query_id]

    if negatives_each and negative_files:
        for path in negative_files:
            for query_id, rows in read_negatives(path, passages, positive_rows).items():
                hard_negatives.setdefault(query_id, []).extend(rows)
    elif negatives_each and data.negatives == FROM_RELEASE:
        for query_id, rows in release_negatives(release, data.set, data.split, passages, positive_rows).items():
            hard_negatives.setdefault(query_id, []).extend(rows)

    if teacher is not None:
        scored_pairs = pair_with_scores(
            read_teacher_scores(teacher, passages, positive_rows),
            query_texts,
            positive_rows,
            hard_negatives,
            recipe,
            teacher,
            add_best=not negative_files,
        )
        if label_files:
            scored_pairs.counts["machine_positives"] = machine_count
        return scored_pairs

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
    if label_files:
        counts["machine_positives"] = machine_count
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

    The list, which is changed in place, stays too short if the collection of ``passage_count`` passages has no further
    passages.
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

    ``positive_rows``: rows of the positives by query id. Other queries and these positives are skipped. The negatives
    come from the official dual.train.tsv and cross.train.tsv, without repetitions for a query. Raises
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


def add_machine_labels(
    path: Path,
    passages: CachedPassages,
    query_texts: dict[str, str],
    positive_rows: dict[str, list[int]],
    hard_negatives: dict[str, list[int]],
    refused_texts: Collection[str],
) -> int:
    """Add the positives, questions and negatives of a file of a machine's labels. Return the number of new positives.

    They are added to ``query_texts``, ``positive_rows`` and ``hard_negatives`` (all by query id). A line without a text
    belongs to a training question, and is skipped if the training does not read that question. ``refused_texts``:
    normalised questions that must not be learned (:func:`_refused_texts`). Raises :class:`InputError` for these
    questions, a question with another text in the release, a wrong line, a passage that the collection lacks, or if no
    line belongs to the training.
    """
    added_count = 0
    used_lines = 0
    for labels in read_machine_labels(path):
        query_id = labels.query_id
        if labels.query is not None and normalise_text(labels.query) in refused_texts:
            problem = (
                f"the question {query_id!r} is a dev or test question of the release, or was removed as similar to "
                "one; expected other questions"
            )
            raise InputError(problem, path=path, line=labels.line)
        if labels.query is not None and query_texts.setdefault(query_id, labels.query) != labels.query:
            problem = f"the question {query_id!r} has another text in the training data; expected the same text"
            raise InputError(problem, path=path, line=labels.line)
        if query_id not in query_texts:
            continue
        used_lines += 1
        passage_ids = labels.positive_ids + labels.negative_ids
        passages.expect(passage_ids, path, labels.line)
        rows = passages.rows(passage_ids).tolist()
        judged_rows = positive_rows.setdefault(query_id, [])
        for row in rows[: len(labels.positive_ids)]:
            if row not in judged_rows:
                judged_rows.append(row)
                added_count += 1
        hard_negatives.setdefault(query_id, []).extend(rows[len(labels.positive_ids) :])
    if not used_lines:
        raise InputError("has no labels of the training questions; check the release and the split", path=path)
    return added_count


def _refused_texts(release: Release, *, with_similar: bool) -> set[str]:
    """Return the questions that must not be learned, as :func:`normalise_text` returns them.

    These are the dev and test questions of all sets, and the training questions that were removed as similar to them
    (Section 2.3), unless ``with_similar``.
    """
    texts = set()
    for config, split in question_splits(release):
        if split in TESTED_SPLITS or (config == REMOVED and not with_similar):
            texts |= {normalise_text(text) for _, text in read_queries(release, split, config)}
    return texts


def read_teacher_scores(
    path: Path, passages: CachedPassages, positive_rows: Mapping[str, list[int]]
) -> dict[str, dict[int, float]]:
    """Return the teacher's scores by query id and row of the collection, best first.

    Queries that the training does not read are skipped, and so are passages that a re-ranker has not scored
    (:func:`builders.store.runs.scored_depth`). Raises :class:`InputError` if the run has none of the training
    questions, no scores, or a passage that the collection lacks.
    """
    teacher_run = read_run(path)
    depth = scored_depth(teacher_run)
    hits_by_query = {}
    for query_id, hits in teacher_run.lazy_hits.items():
        if query_id in positive_rows:
            hits_by_query[query_id] = list(hits[:depth])
    if not hits_by_query:
        raise InputError("has no hits for the training questions; expected a run of the training split", path=path)
    if all(_are_ranks(hits) for hits in hits_by_query.values()):
        raise InputError("has ranks and no scores to learn; expected a run with the scores of a model", path=path)
    ids_by_query = {}
    for query_id, hits in hits_by_query.items():
        ids_by_query[query_id] = [passage_id for passage_id, _ in hits]
    rows_by_query = _look_up_rows(ids_by_query, passages, path)
    scores: dict[str, dict[int, float]] = {}
    for query_id, rows in rows_by_query.items():
        query_scores: dict[int, float] = {}
        for row, (_, score) in zip(rows, hits_by_query[query_id], strict=True):
            # If a passage occurs twice, the higher score counts.
            query_scores.setdefault(row, score)
        scores[query_id] = query_scores
    return scores


def _are_ranks(hits: Sequence[Hit]) -> bool:
    """True if hits have the scores 1, 1/2, 1/3 ..., which :func:`read_run` gives to hits without scores."""
    return [score for _, score in hits] == [1 / rank for rank in range(1, len(hits) + 1)]


def pair_with_scores(
    teacher_scores: Mapping[str, dict[int, float]],
    query_texts: Mapping[str, str],
    positive_rows: Mapping[str, list[int]],
    hard_negatives: Mapping[str, list[int]],
    recipe: Recipe,
    path: Path,
    *,
    add_best: bool,
) -> PairRows:
    """Return the pairs whose positive and negatives the teacher has scored, with these scores.

    ``hard_negatives``: the rows of the negatives by query id. ``add_best``: if a query has too few scored negatives,
    others of the first ``distil.top_k`` passages of the run follow. The recipe's seed shuffles both lists, and the
    query's positives take negatives from the lists in turn. Pairs with an unscored positive or with too few scored
    negatives are skipped, with a warning that names the run's ``path``. Raises :class:`InputError` if no pair is left.
    """
    assert recipe.distil is not None
    negatives_each = recipe.data.negatives_per_positive
    pair_queries: list[int] = []
    pair_positives: list[int] = []
    pair_negatives: list[list[int]] = []
    pair_scores: list[list[float]] = []
    unscored_count = 0
    too_few_count = 0
    for number, (query_id, positives) in enumerate(positive_rows.items()):
        scores = teacher_scores.get(query_id, {})
        listed_rows = dict.fromkeys(hard_negatives.get(query_id, []))
        candidates = [row for row in listed_rows if row in scores and row not in positives]
        best_rows = []
        if add_best:
            for row in itertools.islice(scores, recipe.distil.top_k):
                if row not in positives and row not in candidates:
                    best_rows.append(row)
        generator = np.random.default_rng([recipe.train.seed, number])
        shuffled = itertools.cycle(generator.permutation(candidates).tolist())
        shuffled_best = itertools.cycle(generator.permutation(best_rows).tolist())
        for positive_row in positives:
            if positive_row not in scores:
                unscored_count += 1
                continue
            if len(candidates) + len(best_rows) < negatives_each:
                too_few_count += 1
                continue
            negatives = list(itertools.islice(shuffled, min(negatives_each, len(candidates))))
            negatives += itertools.islice(shuffled_best, negatives_each - len(negatives))
            pair_queries.append(number)
            pair_positives.append(positive_row)
            pair_negatives.append(negatives)
            pair_scores.append([scores[row] for row in (positive_row, *negatives)])
    skipped = (
        f"{unscored_count} positives without a score, {too_few_count} with fewer than {negatives_each} scored negatives"
    )
    if not pair_positives:
        raise InputError(f"leaves no pair to learn from: {skipped}; re-rank a run with more passages", path=path)
    if unscored_count or too_few_count:
        log.warning("%s: skipped pairs: %s", path, skipped)
    counts = {
        "queries": len(set(pair_queries)),
        "positives": len(pair_positives),
        "negatives": len(pair_positives) * negatives_each,
        "random_negatives": 0,
        "unscored_positives": unscored_count,
        "positives_with_few_negatives": too_few_count,
    }
    return PairRows(
        texts=[query_texts[query_id] for query_id in positive_rows],
        query=np.array(pair_queries),
        positive=np.array(pair_positives),
        negatives=np.array(pair_negatives),
        counts=counts,
        scores=np.array(pair_scores),
    )
