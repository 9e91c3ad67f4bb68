"""Near-duplicates among the retrieved passages, and measures that count near-duplicates as one passage.

The plain measures count an unjudged copy of a positive as a miss, and five copies of a passage as five results. For
each query, the positives, the judged negatives and the first 50 passages of a list are compared, in this order, by the
methods of `builders similar` (MinHash finds the candidates, the n-grams decide). The first passage is a leader. A later
passage either follows the most similar leader, or becomes a leader itself if no leader is similar. So a chain of small
differences does not become one group. A leader replaces its followers in the list and among the judgments. A positive
and a negative are never joined, because people saw a difference, for example the year of a report. Such a pair is
reported as contradicted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from baselines.measure.measures import (
    IR_MEASURES,
    LIST_DEPTH,
    PAPER,
    Rankings,
    exact_mean,
    format_cells,
    mean_fractions,
    measure_rankings,
)
from baselines.measure.qrels import Qrels
from baselines.measure.run_origin import expect_passages
from builders.core.progress import show_progress
from builders.core.results import Table
from builders.core.tables import format_percent, text_table
from builders.store.reader import Release
from builders.store.runs import Run
from builders.text.likeness import LikeText, LikeTexts

_METHODS = ("exact", "normalised", "n-gram")  # of builders.text.likeness
# Figures of a run: shares, which tables print in percent, and counts.
_SHARES = ("repeated@10", "repeated@50", "repeated_queries")
_COUNTS = ("copies", "contradicted", "positives")


@dataclass
class Duplicates:
    """The near-duplicates of one run.

    ``leaders`` has each passage's leader, by query and passage. A passage that follows no other is its own leader.
    ``contradicted`` has the near-duplicates with different labels: (query, negative, positive).
    """

    leaders: dict[str, dict[str, str]] = field(default_factory=dict)
    contradicted: list[tuple[str, str, str]] = field(default_factory=list)

    def leader(self, query: str, passage: str) -> str:
        """Return the leader of a passage, or the passage itself if no leader is known."""
        return self.leaders.get(query, {}).get(passage, passage)


def find_duplicates(run: Run, qrels: Qrels, release: Release, corpus: str, length: int, share: float) -> Duplicates:
    """Find the near-duplicates among the first 50 passages of each list and the judged passages of its query.

    ``corpus`` is the config with the passages' texts. An n-gram has ``length`` characters. ``share`` is the smallest
    Jaccard similarity of near-duplicates. Raises :class:`InputError` if the run has a passage that the release lacks.
    """
    top_lists = {query_id: run.rankings.get(query_id, [])[:LIST_DEPTH] for query_id in qrels.positives}
    grades_by_query = qrels.judged()
    retrieved_ids = set[str]().union(*top_lists.values())
    texts = release.texts(corpus, "corpus", retrieved_ids.union(*grades_by_query.values()))
    expect_passages(run, sorted(retrieved_ids), texts, corpus)
    copies = Duplicates()
    for query_id, grades in show_progress(grades_by_query.items(), unit="query", label="near-duplicates"):
        # Judged passages come first, so that they lead their copies. The release may lack a judged passage.
        query_texts = {}
        for passage_id in (*grades, *top_lists[query_id]):
            if passage_id in texts:
                query_texts[passage_id] = texts[passage_id]
        likes = LikeTexts(query_texts, _METHODS, length, share).find(list(query_texts.values()))
        _choose_leaders(query_id, dict(zip(query_texts, likes, strict=True)), grades, copies)
    return copies


def _choose_leaders(
    query_id: str, likes_by_passage: Mapping[str, Sequence[LikeText]], grades: Mapping[str, int], copies: Duplicates
) -> None:
    """Add the leaders of one query's passages to ``copies``, and its near-duplicates with different labels.

    ``likes_by_passage`` has the similar passages of each passage, the most similar first. A leader precedes its copies.
    """
    leaders: dict[str, str] = {}
    copies.leaders[query_id] = leaders
    for passage_id, likes in likes_by_passage.items():
        leaders[passage_id] = passage_id
        for like in likes:
            is_leader = leaders.get(like.id) == like.id
            if like.id == passage_id or not is_leader:
                continue
            if _labels_differ(passage_id, like.id, grades):
                copies.contradicted.append((query_id, passage_id, like.id))
                continue
            leaders[passage_id] = like.id
            break


def _labels_differ(first_id: str, second_id: str, grades: Mapping[str, int]) -> bool:
    """Return True if one of two judged passages is a positive and the other a negative."""
    if first_id not in grades or second_id not in grades:
        return False
    return (grades[first_id] > 0) != (grades[second_id] > 0)


def replace_by_leaders(
    rankings: Rankings, qrels: Qrels, copies: Duplicates, way: str
) -> tuple[dict[str, list[str]], Qrels]:
    """Return the lists by query and the reference, with every passage replaced by its leader.

    Queries without a positive are left out, and the reference has only positives. If ``way`` is ``removed``, later
    copies are removed from a list, as if the collection had no copies. If ``way`` is ``kept``, a later copy becomes a
    miss, so that lower passages stay at their ranks.
    """
    lists = {}
    reference = Qrels(qrels.name)
    for query_id, positives in qrels.positives.items():
        if query_id in rankings:
            lists[query_id] = _replace_copies(query_id, rankings[query_id], copies, way)
        leader_grades: dict[str, int] = {}
        for passage_id, grade in positives.items():
            # Of several positives with one leader, the highest grade counts.
            leader = copies.leader(query_id, passage_id)
            leader_grades[leader] = max(grade, leader_grades.get(leader, grade))
        reference.positives[query_id] = leader_grades
    return lists, reference


def _replace_copies(query_id: str, ranking: Sequence[str], copies: Duplicates, way: str) -> list[str]:
    """Return a list with every passage replaced by its leader. A repeated leader is removed or, if kept, a miss."""
    listed_leaders = set[str]()
    leader_list = list[str]()
    for position, passage_id in enumerate(ranking):
        leader = copies.leader(query_id, passage_id)
        if leader not in listed_leaders:
            leader_list.append(leader)
        elif way == "kept":
            # Differs from every id, because no id contains a space.
            leader_list.append(f"copy {position}")
        listed_leaders.add(leader)
    return leader_list


def measure_duplicates(
    run: Run, qrels: Qrels, copies: Duplicates, way: str
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Measure one run, counting near-duplicates as one passage. Returns (figures, values by query).

    ``way`` is the way of :func:`replace_by_leaders` for later copies, removed or kept.

    The figures are ``way``, ``repeated@10`` and ``repeated@50`` (mean share of the top 10 or 50 that repeat a
    higher passage), ``repeated_queries`` (share of queries with a repetition in the top 10), and ``official`` and
    ``ir_measures`` (means of the measures). Numbers are ``copies`` (unjudged near-duplicates of positives in the
    lists), ``contradicted`` (near-duplicates with different labels) and ``positives`` (distinct positives). The
    values by query have the names ``fair RR@10`` and so on.
    """
    rankings = run.rankings
    lists, reference = replace_by_leaders(rankings, qrels, copies, way)
    means, by_query = measure_rankings(lists, reference)
    shares_of_10 = [_repeated_share(query_id, rankings, copies, depth=10) for query_id in qrels.positives]
    shares_of_50 = [_repeated_share(query_id, rankings, copies, depth=LIST_DEPTH) for query_id in qrels.positives]
    figures = {
        "way": way,
        "repeated@10": exact_mean(shares_of_10),
        "repeated@50": exact_mean(shares_of_50),
        "repeated_queries": sum(share > 0 for share in shares_of_10) / len(shares_of_10),
        "copies": _count_unjudged_copies(rankings, qrels, copies),
        "contradicted": len(copies.contradicted),
        "positives": reference.pairs,
        # The run's own number of queries, not the number of the reduced lists.
        "official": means["official"] | {"QueriesRanked": len(rankings)},
        "ir_measures": means["ir_measures"],
    }
    return figures, {f"fair {name}": values for name, values in by_query.items()}


def _count_unjudged_copies(rankings: Rankings, qrels: Qrels, copies: Duplicates) -> int:
    """Count the passages in the lists' top 50 that are copies of a positive, but no positives."""
    copy_count = 0
    for query_id, positives in qrels.positives.items():
        for passage_id in set(rankings.get(query_id, ())[:LIST_DEPTH]):
            if passage_id not in positives and copies.leader(query_id, passage_id) in positives:
                copy_count += 1
    return copy_count


def duplicate_pairs(run: Run, qrels: Qrels, copies: Duplicates) -> Iterator[dict[str, Any]]:
    """Yield every passage that follows another passage (its leader), and every contradicted pair, for inspection.

    :class:`Duplicates` explains leaders and contradicted pairs.

    The keys are ``run``, ``query-id``, ``corpus-id``, ``like`` (id of the other passage) and ``labels`` (the grades of
    the two passages, None if unjudged).
    """
    pairs: list[tuple[str, str, str]] = []
    for query_id, leaders in copies.leaders.items():
        for passage_id, leader in leaders.items():
            if passage_id != leader:
                pairs.append((query_id, passage_id, leader))
    pairs += copies.contradicted
    grades_by_query = qrels.judged()
    for query_id, passage_id, like_id in pairs:
        grades = grades_by_query[query_id]
        yield {
            "run": str(run.path),
            "query-id": query_id,
            "corpus-id": passage_id,
            "like": like_id,
            "labels": [grades.get(passage_id), grades.get(like_id)],
        }


def _repeated_share(query_id: str, rankings: Rankings, copies: Duplicates, depth: int) -> float:
    """Return the share of a list's first ``depth`` passages that repeat a higher passage."""
    top_passages = rankings.get(query_id, ())[:depth]
    if not top_passages:
        return 0.0
    distinct_leaders = {copies.leader(query_id, passage_id) for passage_id in top_passages}
    return 1 - len(distinct_leaders) / len(top_passages)


def duplicates_text(results: Sequence[Mapping[str, Any]], qrels: Qrels) -> str:
    """Format the tables of near-duplicates. ``results`` has the form of the JSON that ``errors duplicates`` prints."""
    count_rows = []
    measure_rows = []
    for result in results:
        figures = result["duplicates"]
        shares = [format_percent(figures[name]) for name in _SHARES]
        count_rows.append([result["run"], *shares, f"{figures['copies']:,}", f"{figures['contradicted']:,}"])
        measure_rows.append([result["run"], *format_cells(figures)])
    first_figures = results[0]["duplicates"]
    way = first_figures["way"]
    return "\n".join(
        [
            "near-duplicates: percent of passages that repeat a higher passage, percent of queries with a repetition",
            "in the top 10, number of unjudged copies of positives, number of near-duplicates with different labels",
            text_table(["run", "repeated@10", "repeated@50", "queries", "copies", "contradicted"], count_rows),
            "",
            f"measures in percent, with near-duplicates counted as one passage; later copies are {way} "
            f"({first_figures['positives']} of {qrels.pairs} positives are distinct)",
            text_table(["run", *PAPER.values(), *IR_MEASURES], measure_rows),
        ]
    )


def duplicates_tables(results: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return the tables of :func:`duplicates_text`: the counts of near-duplicates, and the measures."""
    count_columns = [*_SHARES, *_COUNTS]
    measure_columns = [*PAPER.values(), *IR_MEASURES]
    count_rows = []
    measure_rows = []
    for result in results:
        figures = result["duplicates"]
        count_rows.append([result["run"]] + [figures[name] for name in count_columns])
        measure_rows.append([result["run"], *mean_fractions(figures)])
    way = results[0]["duplicates"]["way"]
    return [
        Table(["run", *count_columns], count_rows, title="near-duplicates, percent", percent_columns=_SHARES),
        Table(
            ["run", *measure_columns],
            measure_rows,
            title=f"measures with near-duplicates counted as one passage, percent; later copies are {way}",
            percent_columns=measure_columns,
        ),
    ]
