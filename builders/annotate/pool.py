"""Pools of passages to judge: the union of several runs, ranked by the scores of re-rankers (Section 2.3, A.1)."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from builders.annotate.rounds import Ids, Pair
from builders.core.errors import InputError, log
from builders.core.files import write_text
from builders.core.results import Report, Table
from builders.core.tables import round_stat, text_table
from builders.core.typed import json_lines, read_json, typed
from builders.store.judgments import Judged, read_judged
from builders.store.reader import Release
from builders.store.runs import Run, best_first, probability, read_run, write_run

_DEPTHS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1_000)  # the report counts positives up to these ranks

Rank = Annotated[int, Meta(ge=1, le=2**63 - 1)]
# Query -> passage -> rank in each run, from 1, or 0 if the run lacks the passage. Queries are in the release's order.
RankTable = Mapping[str, Mapping[str, tuple[int, ...]]]


class Pooled(Ids, frozen=True, rename="kebab"):
    """One pair of a pool.

    ``score`` is the mean of the re-rankers' scores. ``rank`` is the passage's rank for the query by this score.
    ``runs`` has the rank in each run that found the passage. ``judged`` is the pair's score in the qrels, or None.
    """

    rank: Rank
    score: float
    runs: dict[str, Rank]
    judged: int | None


class _Reranked(msgspec.Struct):
    """The manifest of a re-ranker's run. ``top_k`` is the number of scored passages per query (None: all passages)."""

    top_k: int | None = None


@dataclass(frozen=True)
class Candidates:
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
    earlier_pairs: Sequence[Pooled]
    judged: Judged


def find_candidates(
    release: Release, *, split: str, runs: Sequence[Run | Path], depth: int, earlier_pool: Path | None
) -> Candidates:
    """Return the union of the ``depth`` best passages of each run, without the pairs of an earlier pool.

    Raises:
        InputError: two runs have the same name, or the release lacks a query or passage of a run or of the pool.
    """
    query_ids = release.table("queries", split, ["_id"])["_id"].to_pylist()
    opened_runs, run_names = open_runs(runs)
    all_ranks = union_of(opened_runs, query_ids, depth, split)
    _expect_passages(release, opened_runs, all_ranks)
    earlier_pairs = read_pool(earlier_pool) if earlier_pool else []
    for pair in earlier_pairs:
        if pair.query_id not in all_ranks:
            raise InputError(f"has a query {pair.query_id!r} that queries/{split} lacks", path=earlier_pool)
    in_earlier_pool = {pair.pair for pair in earlier_pairs}
    new_ranks: dict[str, dict[str, tuple[int, ...]]] = {}
    for query_id, ranks_by_passage in all_ranks.items():
        new_ranks[query_id] = {
            passage_id: ranks
            for passage_id, ranks in ranks_by_passage.items()
            if (query_id, passage_id) not in in_earlier_pool
        }
    judged = read_judged(release, "qrels", split)
    return Candidates(run_names, depth, all_ranks, new_ranks, earlier_pairs, judged)


def write_pool_candidates(path: Path, candidates: Candidates, split: str) -> None:
    """Write the new candidates as a run for re-rankers. The score of a passage is 1 / the passage's best rank."""
    scored: dict[str, list[tuple[str, float]]] = {}
    for query_id, ranks_by_passage in candidates.new_ranks.items():
        for passage_id, ranks in ranks_by_passage.items():
            scored.setdefault(query_id, []).append((passage_id, 1 / best_rank(ranks)))
    write_candidates(path, scored, "pool", split)


def best_rank(ranks: Sequence[int]) -> int:
    """Return the best of a passage's ranks in several runs. A rank of 0 means that the run lacks the passage."""
    return min(rank for rank in ranks if rank)


def open_runs(runs: Sequence[Run | Path]) -> tuple[list[Run], list[str]]:
    """Return the runs and their names. A run has its file's name up to the first dot. Names must be unique."""
    paths = [run.path if isinstance(run, Run) else run for run in runs]
    names = [path.name.partition(".")[0] for path in paths]
    if again := [name for name, count in Counter(names).items() if count > 1]:
        raise InputError(f"two runs have the name {again[0]!r} (the file's name up to its first dot); rename one file")
    return [read_run(run) for run in runs], names


def union_of(runs: Sequence[Run], queries: Sequence[str], depth: int, split: str) -> RankTable:
    """Return the union of the ``depth`` best passages of each run (Section 2.3: 50), in the order of ``queries``.

    Raises :class:`InputError` if a run has a query that is not in ``queries``.
    """
    table: dict[str, dict[str, list[int]]] = {query_id: {} for query_id in queries}
    for position, run in enumerate(runs):
        if strange := next((query_id for query_id in run.hits if query_id not in table), None):
            raise InputError(f"has a query {strange!r} that queries/{split} lacks", path=run.path)
        if missing := len(table) - len(run.hits):
            log.warning("%s lacks %d of %d queries", run.path, missing, len(table))
        for query_id, ranking in run.rankings.items():
            distinct_passages = list(dict.fromkeys(ranking))
            for rank, passage_id in enumerate(distinct_passages[:depth], 1):
                table[query_id].setdefault(passage_id, [0] * len(runs))[position] = rank
    ranks_by_query: dict[str, dict[str, tuple[int, ...]]] = {}
    for query_id, ranks_by_passage in table.items():
        ranks_by_query[query_id] = {passage_id: tuple(ranks) for passage_id, ranks in ranks_by_passage.items()}
    return ranks_by_query


def _expect_passages(release: Release, runs: Sequence[Run], ranks: RankTable) -> None:
    candidate_ids: set[str] = set()
    for ranks_by_passage in ranks.values():
        candidate_ids.update(ranks_by_passage)
    missing = set(release.missing("corpus", "corpus", candidate_ids))
    if not missing:
        return
    for run in runs:
        for ranking in run.rankings.values():
            if strange := missing.intersection(ranking):
                raise InputError(f"has a passage {min(strange)!r} that the corpus lacks", path=run.path)


def write_candidates(path: Path, rows: Mapping[str, Sequence[tuple[str, float]]], tag: str, split: str) -> None:
    """Write candidates as a run for re-rankers. ``rows`` has (passage, 1 / the passage's best rank) by query."""
    lines, longest = write_run(path, rows.items(), tag=tag), max(map(len, rows.values()), default=0)
    message = "%s: %d candidates of %d queries; next: `baselines rerank --split %s --top-k %d`"
    log.info(message, path, lines, len(rows), split, longest)


def scored_depth(run: Run) -> int | None:
    """Return the number of passages per query that a re-ranker scored, from the run's manifest. None means all."""
    if run.is_in_memory:
        return typed(run.manifest, _Reranked, run.path, field="manifest").top_k if run.manifest else None
    manifest_path = run.path.with_name(f"{run.path.name}.manifest.json")
    return read_json(manifest_path, _Reranked).top_k if manifest_path.is_file() else None


def scores_of(pairs: Sequence[tuple[str, str]], runs: Sequence[Run], scale: str, made_by: str) -> list[list[float]]:
    """Return each re-ranker's scores of all ``pairs``, in the order of ``pairs``. Other pairs of a run are ignored.

    ``scale="sigmoid"`` turns logits into probabilities. ``"none"`` leaves the scores unchanged. ``made_by`` is the
    command that writes the candidates; the error message names it. Raises :class:`InputError` if a run lacks a pair,
    because a mean of fewer scores is not comparable.
    """
    found = []
    for run in runs:
        depth = scored_depth(run)
        # dict() uses the last score of a repeated passage. In reversed order, the last score is the highest.
        own = {query: dict(reversed(hits[:depth])) for query, hits in run.hits.items()}
        if missing := [(query, passage) for query, passage in pairs if passage not in own.get(query, {})]:
            longest = max(Counter(query for query, _ in pairs).values())
            raise InputError(
                f"lacks {len(missing):,} of {len(pairs):,} candidates (query {missing[0][0]}, passage {missing[0][1]});"
                f" score all candidates: `builders annotate {made_by}`, then `baselines rerank --top-k {longest}`",
                path=run.path,
            )
        values = [own[query][passage] for query, passage in pairs]
        if scale == "sigmoid" and pairs and all(0 <= value <= 1 for value in values):
            log.warning("%s: all scores are from 0 to 1; if they are probabilities, use --scale none", run.path)
        found.append(list(map(probability, values)) if scale == "sigmoid" else values)
    return found


def mean_scores(candidates: RankTable, runs: Sequence[Run], scale: str) -> dict[str, dict[str, float]]:
    """Return query -> passage -> mean of the scores that :func:`scores_of` returns (A.1)."""
    pairs = [(query, passage) for query, own in candidates.items() for passage in own]
    scores = zip(*scores_of(pairs, runs, scale, "pool candidates"), strict=True)
    # fsum is exact, so the order of the re-rankers does not change the mean.
    means = {pair: math.fsum(own) / len(own) for pair, own in zip(pairs, scores, strict=True)}
    return {query: {passage: means[query, passage] for passage in own} for query, own in candidates.items()}


def select_pairs(candidates: Candidates, scores: Mapping[str, dict[str, float]], top: int) -> Iterator[Pooled]:
    """Yield the ``top`` best candidates of each query by mean score. Ties are broken by passage id.

    ``scores`` has the mean scores of the new candidates, by query and passage. The pairs of an earlier pool are ranked
    by their old scores, but not yielded again.
    """
    earlier_scores: dict[str, dict[str, float]] = {}
    for pair in candidates.earlier_pairs:
        earlier_scores.setdefault(pair.query_id, {})[pair.corpus_id] = pair.score
    for query_id, new_scores in scores.items():
        before = earlier_scores.get(query_id, {})
        ordered = best_first((new_scores | before).items())
        for rank, (passage_id, score) in enumerate(ordered[:top], 1):
            if passage_id in before:
                continue
            ranks_by_run: dict[str, int] = {}
            run_ranks = candidates.all_ranks[query_id][passage_id]
            for run_name, run_rank in zip(candidates.run_names, run_ranks, strict=True):
                if run_rank:
                    ranks_by_run[run_name] = run_rank
            grade = candidates.judged.get(query_id, {}).get(passage_id)
            yield Pooled(query_id, passage_id, rank, score, ranks_by_run, grade)


def write_pool(path: Path, pairs: Iterable[Pooled]) -> None:
    """Write a pool, gzipped if ``path`` ends in ``.gz``."""
    write_text(path, "".join(f"{msgspec.json.encode(pair).decode()}\n" for pair in pairs))


def read_pool(path: Path) -> list[Pooled]:
    """Return the pairs of a pool in the file's order. Raises :class:`InputError` with the line for a repeated pair."""
    found: dict[tuple[str, str], Pooled] = {}
    for number, pair in json_lines(path, Pooled):
        if found.setdefault(pair.pair, pair) is not pair:
            raise InputError(f"repeats the pair {pair.query_id} {pair.corpus_id}", path=path, line=number)
    return list(found.values())


def pool_report(figures: Mapping[str, Any]) -> Report:
    """Return the report of :func:`pool_figures`."""
    tables = []
    for name in ("candidates", "selected"):
        if name in figures:
            tables.append(_table_of(name, [{"queries": figures["queries"], **figures[name]}], text_columns=0))
    tables.append(_table_of("runs", figures["runs"], text_columns=1))
    tables.append(_table_of("depths", figures["depths"], text_columns=0))
    if figures.get("ranks"):
        tables.append(_table_of("ranks", figures["ranks"], text_columns=0))
    return Report(figures, _text_of(figures), tables)


def _table_of(title: str, rows: Sequence[Mapping[str, Any]], text_columns: int) -> Table:
    cells = [list(row.values()) for row in rows]
    return Table(list(rows[0]), cells, title, percent_columns=("share",), text_columns=text_columns)


def pool_figures(candidates: Candidates, selected: Sequence[Pooled] | None = None) -> dict[str, Any]:
    """Return the figures of a pool as JSON values.

    ``selected`` has the pairs of the new pool, or is None if no pool was written.
    """
    grades: dict[Pair, int] = {}
    for query_id, relevance in candidates.judged.items():
        for passage_id, grade in relevance.items():
            grades[query_id, passage_id] = grade
    new_pairs = _ranks_by_pair(candidates.new_ranks)
    figures: dict[str, Any] = {
        "queries": sum(map(bool, candidates.all_ranks.values())),
        "candidates": _counts([grades.get(pair) for pair in new_pairs]),
        "runs": _run_figures(candidates.run_names, new_pairs, grades, selected),
        "depths": _depth_figures(_ranks_by_pair(candidates.all_ranks), grades, candidates.depth),
    }
    if selected is not None:
        pairs_at = Counter(pair.rank for pair in selected)
        positives_at = Counter(pair.rank for pair in selected if (pair.judged or 0) > 0)
        figures["selected"] = _counts([pair.judged for pair in selected])
        figures["ranks"] = [
            {"rank": rank, "pairs": pairs_at[rank], "positives": positives_at[rank]} for rank in sorted(pairs_at)
        ]
    return figures


def _ranks_by_pair(ranks: RankTable) -> dict[Pair, tuple[int, ...]]:
    by_pair: dict[Pair, tuple[int, ...]] = {}
    for query_id, ranks_by_passage in ranks.items():
        for passage_id, passage_ranks in ranks_by_passage.items():
            by_pair[query_id, passage_id] = passage_ranks
    return by_pair


def _run_figures(
    run_names: Sequence[str],
    new_pairs: Mapping[Pair, tuple[int, ...]],
    grades: Mapping[Pair, int],
    selected: Sequence[Pooled] | None,
) -> list[dict[str, Any]]:
    """Count the pairs and the positives of each run. ``alone`` counts the pairs that no other run has."""
    rows = []
    for position, name in enumerate(run_names):
        pairs = alone = positives = positives_alone = 0
        for pair, ranks in new_pairs.items():
            if not ranks[position]:
                continue
            is_alone = sum(map(bool, ranks)) == 1
            is_positive = grades.get(pair, 0) > 0
            pairs += 1
            alone += is_alone
            positives += is_positive
            positives_alone += is_alone and is_positive
        row: dict[str, Any] = {
            "run": name,
            "pairs": pairs,
            "alone": alone,
            "positives": positives,
            "positives_alone": positives_alone,
        }
        if selected is not None:
            of_run = [pair for pair in selected if name in pair.runs]
            row["selected"] = len(of_run)
            row["selected_alone"] = sum(len(pair.runs) == 1 for pair in of_run)
        rows.append(row)
    return rows


def _depth_figures(
    all_pairs: Mapping[Pair, tuple[int, ...]], grades: Mapping[Pair, int], depth: int
) -> list[dict[str, Any]]:
    """Count the known positives among the best 1, 2, 3 ... passages of the runs, up to ``depth``."""
    known_positives = sum(grade > 0 for grade in grades.values())
    best_ranks = [(best_rank(ranks), grades.get(pair, 0) > 0) for pair, ranks in all_pairs.items()]
    rows = []
    for limit in [*(each for each in _DEPTHS if each < depth), depth]:
        within_limit = [is_positive for rank, is_positive in best_ranks if rank <= limit]
        positives = sum(within_limit)
        share = round_stat(positives / known_positives) if known_positives else None
        rows.append({"depth": limit, "pairs": len(within_limit), "positives": positives, "share": share})
    return rows


def _counts(grades: Sequence[int | None]) -> dict[str, int]:
    judged = [grade for grade in grades if grade is not None]
    positives = sum(grade > 0 for grade in judged)
    return {
        "pairs": len(grades),
        "judged": len(judged),
        "positives": positives,
        "unjudged": len(grades) - len(judged),
    }


def _text_of(figures: Mapping[str, Any]) -> str:
    """Return the figures as aligned text."""
    lines = [f"{figures['queries']:,} queries"]
    for name in ("candidates", "selected"):
        if counts := figures.get(name):
            mean = counts["pairs"] / figures["queries"] if figures["queries"] else 0
            lines.append(
                f"{name}: {counts['pairs']:,} pairs ({mean:.2f} a query), {counts['unjudged']:,} unjudged,"
                f" {counts['judged']:,} judged, {counts['positives']:,} of them positive"
            )
    for rows in (figures["runs"], figures["depths"], figures.get("ranks")):
        if rows:
            header = [key.replace("_", " ") for key in rows[0]]
            lines += ["", text_table(header, [[_cell(value) for value in row.values()] for row in rows])]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.2%}"
    return f"{value:,}" if isinstance(value, int) else str(value)
