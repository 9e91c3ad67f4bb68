"""Pools of passages to judge: the union of several runs, ranked by the scores of re-rankers (Section 2.3, A.1)."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from builders.annotate.rounds import Pair, PairIds
from builders.core.errors import InputError, log
from builders.core.results import Report, Table
from builders.core.tables import round_stat, text_table
from builders.core.typed import json_lines
from builders.core.write_files import write_text
from builders.store.judgments import Judgments, read_judged
from builders.store.reader import Release
from builders.store.runs import Run, best_first, read_run, scored_depth, sigmoid, write_run

# The report counts positives up to these ranks.
_REPORTED_DEPTHS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1_000)

Rank = Annotated[int, Meta(ge=1, le=2**63 - 1)]
# Query -> passage -> rank in each run, from 1, or 0 if the run lacks the passage. Queries are in the release's order.
RankTable = Mapping[str, Mapping[str, tuple[int, ...]]]


class PooledCandidates(PairIds, frozen=True, rename="kebab"):
    """One pair of a pool.

    ``score`` is the mean of the re-rankers' scores. ``rank`` is the passage's rank for the query by this score.
    ``runs`` has the rank in each run that found the passage. ``judged`` is the pair's score in the qrels, or None.
    """

    rank: Rank
    score: float
    runs: dict[str, Rank]
    judged: int | None


@dataclass(frozen=True)
class RunCandidates:
    """The candidates of a pool.

    Attributes:
        run_names: the name of each run.
        depth: the number of passages that each run adds for a query.
        all_ranks: the candidates of all runs.
        new_ranks: the candidates that the earlier pool lacks.
        earlier_pairs: the pairs of the earlier pool.
        judged: the judgments of the release.
    """

    run_names: Sequence[str]
    depth: int
    all_ranks: RankTable
    new_ranks: RankTable
    earlier_pairs: Sequence[PooledCandidates]
    judged: Judgments


def find_candidates(
    release: Release,
    *,
    split: str,
    runs: Sequence[Run | Path],
    depth: int,
    earlier_pool: Path | None,
) -> RunCandidates:
    """Return the union of the ``depth`` best passages of each run as the candidates of a pool.

    The candidates without the pairs of ``earlier_pool``, which is a file, are in ``new_ranks``.

    Raises:
        InputError: two runs have the same name, or the release lacks a candidate, or a query of a run or of the pool.
    """
    query_ids = release.table("queries", split, ["_id"])["_id"].to_pylist()
    opened_runs, run_names = open_runs(runs)
    all_ranks = union_of(opened_runs, query_ids, depth, split)
    _expect_passages(release, opened_runs, all_ranks)
    earlier_pairs: list[PooledCandidates] = []
    if earlier_pool:
        earlier_pairs = read_pool(earlier_pool)
    for pooled in earlier_pairs:
        if pooled.query_id not in all_ranks:
            raise InputError(f"has a query {pooled.query_id!r} that queries/{split} lacks", path=earlier_pool)
    in_earlier_pool = {pooled.pair for pooled in earlier_pairs}
    # The earlier pool was judged before, so only its scores are needed again.
    new_ranks: dict[str, dict[str, tuple[int, ...]]] = {}
    for query_id, ranks_by_passage in all_ranks.items():
        new_ranks[query_id] = {
            passage_id: ranks
            for passage_id, ranks in ranks_by_passage.items()
            if (query_id, passage_id) not in in_earlier_pool
        }
    judged = read_judged(release, "qrels", split)
    return RunCandidates(run_names, depth, all_ranks, new_ranks, earlier_pairs, judged)


def write_pool_candidates(run_path: Path, candidates: RunCandidates, split: str) -> None:
    """Write the new candidates as a run for re-rankers. The score of a passage is 1 / the passage's best rank."""
    scored: dict[str, list[tuple[str, float]]] = {}
    for query_id, ranks_by_passage in candidates.new_ranks.items():
        for passage_id, ranks in ranks_by_passage.items():
            scored.setdefault(query_id, []).append((passage_id, 1 / best_rank(ranks)))
    write_candidates(run_path, scored, "pool", split)


def best_rank(run_ranks: Sequence[int]) -> int:
    """Return the best of a passage's ranks in several runs. A rank of 0 means that the run lacks the passage."""
    return min(rank for rank in run_ranks if rank)


def open_runs(runs: Sequence[Run | Path]) -> tuple[list[Run], list[str]]:
    """Return the runs and their names. A run has its file's name up to the first dot. Names must be unique."""
    run_names: list[str] = []
    for run in runs:
        run_path = run.path if isinstance(run, Run) else run
        run_names.append(run_path.name.partition(".")[0])
    for name, count in Counter(run_names).items():
        if count > 1:
            raise InputError(f"two runs have the name {name!r} (the file's name up to its first dot); rename one file")
    return [read_run(run) for run in runs], run_names


def union_of(
    opened_runs: Sequence[Run],
    query_ids: Sequence[str],
    depth: int,
    split: str,
) -> RankTable:
    """Return the union of the ``depth`` best passages of each run (Section 2.3: 50), in the order of ``query_ids``.

    ``split`` is the split of the queries, for the error. A warning counts the queries that a run lacks. Raises
    :class:`InputError` if a run has a query that is not in ``query_ids``.
    """
    # Query -> passage -> rank in each run. A rank is 0 until the run's passage is seen.
    ranks_by_query: dict[str, dict[str, list[int]]] = {query_id: {} for query_id in query_ids}
    for run_number, run in enumerate(opened_runs):
        for query_id in run.hits:
            if query_id not in ranks_by_query:
                raise InputError(f"has a query {query_id!r} that queries/{split} lacks", path=run.path)
        missing_count = len(ranks_by_query) - len(run.hits)
        if missing_count:
            log.warning("%s lacks %d of %d queries", run.path, missing_count, len(ranks_by_query))
        for query_id, ranking in run.rankings.items():
            # A repeated passage has its first rank.
            distinct_passages = list(dict.fromkeys(ranking))
            for rank, passage_id in enumerate(distinct_passages[:depth], 1):
                run_ranks = ranks_by_query[query_id].setdefault(passage_id, [0] * len(opened_runs))
                run_ranks[run_number] = rank
    # Tuples, because the table is not changed any more.
    rank_table: dict[str, dict[str, tuple[int, ...]]] = {}
    for query_id, ranks_by_passage in ranks_by_query.items():
        rank_table[query_id] = {passage_id: tuple(run_ranks) for passage_id, run_ranks in ranks_by_passage.items()}
    return rank_table


def _expect_passages(release: Release, opened_runs: Sequence[Run], rank_table: RankTable) -> None:
    """Raise :class:`InputError` if the corpus lacks a candidate. The error names the first run that has one."""
    candidate_ids: set[str] = set()
    for ranks_by_passage in rank_table.values():
        candidate_ids.update(ranks_by_passage)
    unknown_ids = set(release.missing_ids("corpus", "corpus", candidate_ids))
    if not unknown_ids:
        return
    for run in opened_runs:
        for ranking in run.rankings.values():
            unknown_in_ranking = unknown_ids.intersection(ranking)
            if unknown_in_ranking:
                raise InputError(f"has a passage {min(unknown_in_ranking)!r} that the corpus lacks", path=run.path)


def write_candidates(
    run_path: Path, scored: Mapping[str, Sequence[tuple[str, float]]], run_tag: str, split: str
) -> None:
    """Write candidates as a run for re-rankers, and log the command that scores the run.

    ``scored`` has (passage id, score) pairs by query id. ``split`` is the split of the queries.
    """
    line_count = write_run(run_path, scored.items(), tag=run_tag)
    # The next command needs a --top-k that covers the longest list.
    most_candidates = max(map(len, scored.values()), default=0)
    message = "%s: %d candidates of %d queries; next: `baselines rerank --split %s --top-k %d`"
    log.info(message, run_path, line_count, len(scored), split, most_candidates)


def scores_of(
    pairs: Sequence[tuple[str, str]], scored_runs: Sequence[Run], scale: str, candidates_step: str
) -> list[list[float]]:
    """Return each re-ranker's scores of all ``pairs``, in the order of ``pairs``. Other pairs of a run are ignored.

    ``scale="sigmoid"`` turns logits into probabilities. ``"none"`` leaves the scores unchanged. ``candidates_step`` is
    the command that writes the candidates; the error message names it. Raises :class:`InputError` if a run lacks a
    pair, because a mean of fewer scores is not comparable.
    """
    scores_by_run = []
    for run in scored_runs:
        run_scores = _scores_of_run(pairs, run, candidates_step)
        if scale == "sigmoid":
            if pairs and all(0 <= score <= 1 for score in run_scores):
                log.warning("%s: all scores are from 0 to 1; if they are probabilities, use --scale none", run.path)
            run_scores = list(map(sigmoid, run_scores))
        scores_by_run.append(run_scores)
    return scores_by_run


def _scores_of_run(pairs: Sequence[tuple[str, str]], run: Run, candidates_step: str) -> list[float]:
    """Return the unchanged scores of all ``pairs`` in one run. Raises :class:`InputError` if the run lacks a pair."""
    depth = scored_depth(run)  # below this depth, the run has the first retriever's scores
    scores_by_query: dict[str, dict[str, float]] = {}
    for query_id, hits in run.hits.items():
        # dict() uses the last score of a repeated passage. In reversed order, the last score is the highest.
        scores_by_query[query_id] = dict(reversed(hits[:depth]))
    pair_scores = []
    unscored_pairs = []
    for query_id, passage_id in pairs:
        score = scores_by_query.get(query_id, {}).get(passage_id)
        if score is None:
            unscored_pairs.append((query_id, passage_id))
        else:
            pair_scores.append(score)
    if unscored_pairs:
        query_id, passage_id = unscored_pairs[0]
        longest = max(Counter(query_id for query_id, _ in pairs).values())
        raise InputError(
            f"lacks {len(unscored_pairs):,} of {len(pairs):,} candidates (query {query_id}, passage {passage_id});"
            f" score all candidates: `builders annotate {candidates_step}`, then `baselines rerank --top-k {longest}`",
            path=run.path,
        )
    return pair_scores


def mean_scores(
    rank_table: RankTable,
    scored_runs: Sequence[Run],
    scale: str,
) -> dict[str, dict[str, float]]:
    """Return query -> passage -> mean of the re-rankers' scores (A.1), for the pairs of ``rank_table``.

    ``scored_runs`` has one run for each re-ranker. ``scale`` and the errors are those of :func:`scores_of`.
    """
    pairs = list(_ranks_by_pair(rank_table))
    scores_by_run = scores_of(pairs, scored_runs, scale, "pool candidates")
    means: dict[str, dict[str, float]] = {query_id: {} for query_id in rank_table}
    scores_by_pair = zip(*scores_by_run, strict=True)
    for (query_id, passage_id), pair_scores in zip(pairs, scores_by_pair, strict=True):
        # fsum is exact, so the order of the re-rankers does not change the mean.
        means[query_id][passage_id] = math.fsum(pair_scores) / len(pair_scores)
    return means


def select_pairs(
    candidates: RunCandidates, scores_by_query: Mapping[str, dict[str, float]], top_k: int
) -> Iterator[PooledCandidates]:
    """Yield the ``top_k`` best candidates of each query by mean score. Ties are broken by passage id.

    ``scores_by_query`` has the mean scores of the new candidates, by query and passage. The pairs of an earlier pool
    are ranked by their old scores, but not yielded again.
    """
    earlier_scores: dict[str, dict[str, float]] = {}
    # Pairs of the earlier pool compete with the new candidates for the best ranks.
    for pair in candidates.earlier_pairs:
        earlier_scores.setdefault(pair.query_id, {})[pair.corpus_id] = pair.score
    for query_id, new_scores in scores_by_query.items():
        old_scores = earlier_scores.get(query_id, {})
        ranked_passages = best_first((new_scores | old_scores).items())
        for rank, (passage_id, score) in enumerate(ranked_passages[:top_k], 1):
            if passage_id in old_scores:
                continue
            ranks_by_run: dict[str, int] = {}
            run_ranks = candidates.all_ranks[query_id][passage_id]
            for run_name, run_rank in zip(candidates.run_names, run_ranks, strict=True):
                if run_rank:
                    ranks_by_run[run_name] = run_rank
            # The pool shows the present grade, so that `export --unjudged` can skip the pair.
            grade = candidates.judged.get(query_id, {}).get(passage_id)
            yield PooledCandidates(query_id, passage_id, rank, score, ranks_by_run, grade)


def write_pool(pool_path: Path, pairs: Iterable[PooledCandidates]) -> None:
    """Write a pool, gzipped if ``pool_path`` ends in ``.gz``."""
    write_text(pool_path, "".join(f"{msgspec.json.encode(pair).decode()}\n" for pair in pairs))


def read_pool(pool_path: Path) -> list[PooledCandidates]:
    """Return the pairs of a pool in the file's order. Raises :class:`InputError` with the line for a repeated pair."""
    pooled_by_pair: dict[Pair, PooledCandidates] = {}
    for line_number, pooled in json_lines(pool_path, PooledCandidates):
        if pooled.pair in pooled_by_pair:
            raise InputError(f"repeats the pair {pooled.query_id} {pooled.corpus_id}", path=pool_path, line=line_number)
        pooled_by_pair[pooled.pair] = pooled
    return list(pooled_by_pair.values())


def pool_report(figures: Mapping[str, Any]) -> Report:
    """Return the report of :func:`pool_figures`."""
    tables = []
    for name in ("candidates", "selected"):
        if name in figures:
            row = {"queries": figures["queries"]} | figures[name]
            tables.append(_table_of(name, [row], text_columns=0))
    tables.append(_table_of("runs", figures["runs"], text_columns=1))
    tables.append(_table_of("depths", figures["depths"], text_columns=0))
    if figures.get("ranks"):
        tables.append(_table_of("ranks", figures["ranks"], text_columns=0))
    return Report(figures, _text_of(figures), tables)


def _table_of(title: str, table_rows: Sequence[Mapping[str, Any]], text_columns: int) -> Table:
    """Return a table of rows that have the same keys. ``text_columns`` is that of :class:`Table`."""
    columns = list(table_rows[0])
    cells = [list(row.values()) for row in table_rows]
    return Table(columns, cells, title, percent_columns=("share",), text_columns=text_columns)


def pool_figures(
    candidates: RunCandidates,
    selected_pairs: Sequence[PooledCandidates] | None = None,
) -> dict[str, Any]:
    """Return the figures of a pool as JSON values.

    - ``queries``: the number of queries with a candidate;
    - ``candidates``: numbers of new candidates by their judgments;
    - ``runs``: a row for each run; ``depths``: a row for each depth;
    - ``selected`` and ``ranks``: numbers of selected pairs by their judgments, and a row for each rank of the pool.

    ``selected_pairs`` has the pairs of the new pool. Without it, no pool was written, and the last two are missing.
    """
    # Known grades by pair, for the counts below.
    grades: dict[Pair, int] = {}
    for query_id, relevance in candidates.judged.items():
        for passage_id, grade in relevance.items():
            grades[query_id, passage_id] = grade
    new_pairs = _ranks_by_pair(candidates.new_ranks)
    all_pairs = _ranks_by_pair(candidates.all_ranks)
    figures: dict[str, Any] = {
        "queries": sum(map(bool, candidates.all_ranks.values())),
        "candidates": _grade_counts([grades.get(pair) for pair in new_pairs]),
        "runs": _run_figures(candidates.run_names, new_pairs, grades, selected_pairs),
        "depths": _depth_figures(all_pairs, grades, candidates.depth),
    }
    if selected_pairs is not None:
        figures["selected"] = _grade_counts([pooled.judged for pooled in selected_pairs])
        figures["ranks"] = _rank_figures(selected_pairs)
    return figures


def _ranks_by_pair(rank_table: RankTable) -> dict[Pair, tuple[int, ...]]:
    """Return pair -> rank in each run, in the order of ``rank_table``."""
    ranks_by_pair: dict[Pair, tuple[int, ...]] = {}
    for query_id, ranks_by_passage in rank_table.items():
        for passage_id, run_ranks in ranks_by_passage.items():
            ranks_by_pair[query_id, passage_id] = run_ranks
    return ranks_by_pair


def _rank_figures(selected_pairs: Sequence[PooledCandidates]) -> list[dict[str, Any]]:
    """Count the selected pairs and positives at each rank of the pool."""
    pairs_by_rank = Counter(pooled.rank for pooled in selected_pairs)
    positives_by_rank = Counter(pooled.rank for pooled in selected_pairs if (pooled.judged or 0) > 0)
    rows = []
    for rank in sorted(pairs_by_rank):
        rows.append({"rank": rank, "pairs": pairs_by_rank[rank], "positives": positives_by_rank[rank]})
    return rows


def _run_figures(
    run_names: Sequence[str],
    new_pairs: Mapping[Pair, tuple[int, ...]],
    grade_by_pair: Mapping[Pair, int],
    selected_pairs: Sequence[PooledCandidates] | None,
) -> list[dict[str, Any]]:
    """Count the pairs and the positives of each run. ``alone`` counts the pairs that no other run has.

    ``new_pairs`` maps the new candidates to their ranks in the runs. ``selected`` counts the pairs of the new pool, if
    ``selected_pairs`` has them.
    """
    rows = []
    for run_number, run_name in enumerate(run_names):
        row: dict[str, Any] = {"run": run_name, "pairs": 0, "alone": 0, "positives": 0, "positives_alone": 0}
        for pair, run_ranks in new_pairs.items():
            if not run_ranks[run_number]:
                continue
            is_alone = sum(map(bool, run_ranks)) == 1
            is_positive = grade_by_pair.get(pair, 0) > 0
            row["pairs"] += 1
            row["alone"] += is_alone
            row["positives"] += is_positive
            row["positives_alone"] += is_alone and is_positive
        if selected_pairs is not None:
            selected_of_run = [pooled for pooled in selected_pairs if run_name in pooled.runs]
            row["selected"] = len(selected_of_run)
            row["selected_alone"] = sum(len(pooled.runs) == 1 for pooled in selected_of_run)
        rows.append(row)
    return rows


def _depth_figures(
    all_pairs: Mapping[Pair, tuple[int, ...]], grade_by_pair: Mapping[Pair, int], run_depth: int
) -> list[dict[str, Any]]:
    """Count the known positives among the best 1, 2, 3 ... passages of the runs, up to ``run_depth``.

    ``all_pairs`` maps all candidates to their ranks in the runs. ``share`` is the share of all known positives.
    """
    positive_count = sum(grade > 0 for grade in grade_by_pair.values())
    pair_ranks = []  # best rank in any run, and True for a positive
    for pair, run_ranks in all_pairs.items():
        pair_ranks.append((best_rank(run_ranks), grade_by_pair.get(pair, 0) > 0))
    rows = []
    limits = [limit for limit in _REPORTED_DEPTHS if limit < run_depth]
    limits.append(run_depth)
    for limit in limits:
        within_limit = [is_positive for rank, is_positive in pair_ranks if rank <= limit]
        positives = sum(within_limit)
        share = None
        if positive_count:
            share = round_stat(positives / positive_count)
        rows.append({"depth": limit, "pairs": len(within_limit), "positives": positives, "share": share})
    return rows


def _grade_counts(grades: Sequence[int | None]) -> dict[str, int]:
    """Count pairs by their grades in the qrels. None is the grade of an unjudged pair."""
    judged_grades = [grade for grade in grades if grade is not None]
    return {
        "pairs": len(grades),
        "judged": len(judged_grades),
        "positives": sum(grade > 0 for grade in judged_grades),
        "unjudged": len(grades) - len(judged_grades),
    }


def _text_of(figures: Mapping[str, Any]) -> str:
    """Return the figures as aligned text."""
    lines = [f"{figures['queries']:,} queries"]
    for name in ("candidates", "selected"):
        counts = figures.get(name)
        if counts:
            mean_pairs = counts["pairs"] / figures["queries"] if figures["queries"] else 0
            lines.append(
                f"{name}: {counts['pairs']:,} pairs ({mean_pairs:.2f} a query), {counts['unjudged']:,} unjudged,"
                f" {counts['judged']:,} judged, {counts['positives']:,} of them positive"
            )
    for rows in (figures["runs"], figures["depths"], figures.get("ranks")):
        if rows:
            header = [column.replace("_", " ") for column in rows[0]]
            cells = [list(map(_format_cell, row.values())) for row in rows]
            lines += ["", text_table(header, cells)]
    return "\n".join(lines)


def _format_cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):  # a share
        return f"{value:.2%}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)
