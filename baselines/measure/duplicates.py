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

from baselines.measure.measures import IR_MEASURES, LIST_DEPTH, PAPER, Rankings, cells, fractions, mean, measure
from baselines.measure.qrels import Qrels
from builders.core.errors import InputError
from builders.core.progress import progress
from builders.core.results import Table
from builders.core.tables import percent, text_table
from builders.store.reader import Release
from builders.store.runs import Run
from builders.text.likeness import LikeTexts

_BY = ("exact", "normalised", "n-gram")


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

    An n-gram has ``length`` characters. ``share`` is the smallest Jaccard similarity of near-duplicates. Raises
    :class:`InputError` if the run has a passage that the release lacks.
    """
    tops = {query: run.rankings.get(query, [])[:LIST_DEPTH] for query in qrels.positives}
    judged = qrels.judged()
    wanted = {passage for top in tops.values() for passage in top}
    texts = release.texts(corpus, "corpus", wanted.union(*judged.values()))
    if lacking := sorted(wanted - texts.keys()):
        raise InputError(f"has a passage {lacking[0]!r} that the release's {corpus} lacks", path=run.path)
    copies = Duplicates()
    for query, grades in progress(judged.items(), unit="query", label="near-duplicates"):
        own = {each: texts[each] for each in (*grades, *tops[query]) if each in texts}
        _follow(query, own, grades, length, share, copies)
    return copies


def _follow(
    query: str, texts: Mapping[str, str], grades: Mapping[str, int], length: int, share: float, copies: Duplicates
) -> None:
    """Find the leaders of one query's passages. A leader precedes its copies in ``texts``."""
    likes = LikeTexts(texts, _BY, length, share).find(list(texts.values()))
    leaders = copies.leaders[query] = {}
    for each, like in zip(texts, likes, strict=True):
        leaders[each] = each
        for leader in (other.id for other in like if other.id != each and leaders.get(other.id) == other.id):
            if each in grades and leader in grades and (grades[each] > 0) != (grades[leader] > 0):
                copies.contradicted.append((query, each, leader))
                continue
            leaders[each] = leader
            break


def fair(rankings: Rankings, qrels: Qrels, copies: Duplicates, way: str) -> tuple[dict[str, list[str]], Qrels]:
    """Return the lists and the reference with every passage replaced by its leader.

    If ``way`` is ``removed``, later copies are removed from a list, as if the collection had no copies. If ``way`` is
    ``kept``, a later copy becomes a miss, so that lower passages stay at their ranks.
    """
    lists = {query: _led(query, rankings[query], copies, way) for query in qrels.positives if query in rankings}
    reference = Qrels(qrels.name)
    for query, positives in qrels.positives.items():
        led: dict[str, int] = {}
        for passage, grade in positives.items():
            leader = copies.leader(query, passage)
            led[leader] = max(grade, led.get(leader, grade))
        reference.positives[query] = led
    return lists, reference


def _led(query: str, ranking: Sequence[str], copies: Duplicates, way: str) -> list[str]:
    seen, led = set[str](), list[str]()
    for place, passage in enumerate(ranking):
        leader = copies.leader(query, passage)
        if leader not in seen:
            led.append(leader)
        elif way == "kept":
            led.append(f"copy {place}")  # differs from every id, because no id contains a space
        seen.add(leader)
    return led


def measure_duplicates(
    run: Run, qrels: Qrels, copies: Duplicates, way: str
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Measure one run, counting near-duplicates as one passage. Returns (figures, values by query).

    The figures are ``repeated@10`` and ``repeated@50`` (mean share of the top 10 or 50 that repeat a higher passage),
    ``repeated_queries`` (share of queries with a repetition in the top 10), and ``official`` and ``ir_measures`` (means
    of the measures). Numbers are ``copies`` (unjudged near-duplicates of positives in the lists), ``contradicted``
    (near-duplicates with different labels) and ``positives`` (distinct positives). The values by query have the names
    ``fair RR@10`` and so on.
    """
    rankings = run.rankings
    lists, reference = fair(rankings, qrels, copies, way)
    means, by_query = measure(lists, reference)
    tens, fifties = ([_repeated(query, rankings, copies, depth) for query in qrels.positives] for depth in (10, 50))
    figures = {
        "way": way,
        "repeated@10": mean(tens),
        "repeated@50": mean(fifties),
        "repeated_queries": sum(value > 0 for value in tens) / len(tens),
        "copies": sum(
            passage not in positives and copies.leader(query, passage) in positives
            for query, positives in qrels.positives.items()
            for passage in set(rankings.get(query, ())[:LIST_DEPTH])
        ),
        "contradicted": len(copies.contradicted),
        "positives": reference.pairs,
        **means,
        "official": means["official"] | {"QueriesRanked": len(rankings)},
    }
    return figures, {f"fair {name}": each for name, each in by_query.items()}


def duplicate_pairs(run: Run, qrels: Qrels, copies: Duplicates) -> Iterator[dict[str, Any]]:
    """Yield every passage whose leader is another passage, and every contradicted pair, for inspection.

    The keys are ``run``, ``query-id``, ``corpus-id``, ``like`` (id of the other passage) and ``labels`` (the grades of
    the two passages, None if unjudged).
    """
    judged = qrels.judged()
    followers = ((query, each, to) for query, led in copies.leaders.items() for each, to in led.items() if each != to)
    for query, passage, other in (*followers, *copies.contradicted):
        labels = [judged[query].get(each) for each in (passage, other)]
        yield {"run": str(run.path), "query-id": query, "corpus-id": passage, "like": other, "labels": labels}


def _repeated(query: str, rankings: Rankings, copies: Duplicates, depth: int) -> float:
    top = rankings.get(query, ())[:depth]
    return 1 - len({copies.leader(query, passage) for passage in top}) / len(top) if top else 0.0


def duplicates_text(results: Sequence[Mapping[str, Any]], qrels: Qrels) -> str:
    """Format the tables of near-duplicates. ``results`` has the form of the JSON that ``errors duplicates`` prints."""
    counts, values = [], []
    for result in results:
        each = result["duplicates"]
        shares = (percent(each[name]) for name in ("repeated@10", "repeated@50", "repeated_queries"))
        counts.append([result["run"], *shares, f"{each['copies']:,}", f"{each['contradicted']:,}"])
        values.append([result["run"], *cells(each)])
    first = results[0]["duplicates"]
    return "\n".join(
        [
            "near-duplicates: percent of passages that repeat a higher passage, percent of queries with a repetition",
            "in the top 10, number of unjudged copies of positives, number of near-duplicates with different labels",
            text_table(["run", "repeated@10", "repeated@50", "queries", "copies", "contradicted"], counts),
            "",
            f"measures in percent, with near-duplicates counted as one passage; later copies are {first['way']} "
            f"({first['positives']} of {qrels.pairs} positives are distinct)",
            text_table(["run", *PAPER.values(), *IR_MEASURES], values),
        ]
    )


def duplicates_tables(results: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return the tables of :func:`duplicates_text`: the counts of near-duplicates, and the measures."""
    shares, counts = ["repeated@10", "repeated@50", "repeated_queries"], ["copies", "contradicted", "positives"]
    count_rows, measure_rows = [], []
    for result in results:
        figures = result["duplicates"]
        count_rows.append([result["run"], *(figures[name] for name in (*shares, *counts))])
        measure_rows.append([result["run"], *fractions(figures)])
    names = [*PAPER.values(), *IR_MEASURES]
    way = results[0]["duplicates"]["way"]
    return [
        Table(["run", *shares, *counts], count_rows, title="near-duplicates, percent", percent_columns=shares),
        Table(
            ["run", *names],
            measure_rows,
            title=f"measures with near-duplicates counted as one passage, percent; later copies are {way}",
            percent_columns=names,
        ),
    ]
