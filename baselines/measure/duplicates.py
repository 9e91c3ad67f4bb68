"""Near-duplicates among the retrieved passages, and measures that take a passage and its copies for one.

A copy of a positive that nobody judged counts as a miss, and a list that shows one passage five times as five results.
For each query the positives, the judged negatives and the first 50 of a list are compared in the ways of `builders
similar` (MinHash finds the candidates, the n-grams decide). Each passage follows its leader: the passage before it, in
this order, that it is most like and that is no follower itself, so that a chain of small differences joins nothing. The
leader stands for all of them in the list and among the judgments. Two passages of which one was judged positive and one
negative are never one: people saw a difference (two years of one report); such pairs are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from baselines.measure.measures import IR_MEASURES, LIST_DEPTH, PAPER, Rankings, cells, mean, measure
from baselines.measure.qrels import Qrels
from builders.core.errors import InputError
from builders.core.progress import progress
from builders.core.tables import percent, text_table
from builders.similar.likeness import LikeTexts
from builders.store.reader import Release
from builders.store.runs import Run

_BY = ("exact", "normalised", "n-gram")


@dataclass
class Found:
    """The near-duplicates of one run.

    Attributes:
        leaders: by query, by passage, the passage that stands for it (itself, mostly).
        contradicted: pairs of near-duplicates, one judged positive and one negative: query, negative, positive.
    """

    leaders: dict[str, dict[str, str]] = field(default_factory=dict)
    contradicted: list[tuple[str, str, str]] = field(default_factory=list)

    def leader(self, query: str, passage: str) -> str:
        """The passage that stands for this one."""
        return self.leaders.get(query, {}).get(passage, passage)


def find(run: Run, qrels: Qrels, release: Release, corpus: str, length: int, share: float) -> Found:
    """The near-duplicates among the first 50 of each list and what is judged for its query.

    Args:
        corpus: the config of the passages.
        length, share: characters of an n-gram, and the Jaccard similarity from which on two texts are near-duplicates.

    Raises :class:`InputError` where the run has a passage that the release lacks.
    """
    rankings = run.rankings
    tops = {query: rankings.get(query, [])[:LIST_DEPTH] for query in qrels.positives}
    judged = qrels.judged()
    wanted = {passage for top in tops.values() for passage in top}
    texts = release.texts(corpus, "corpus", wanted.union(*judged.values()))
    if lacking := sorted(wanted - texts.keys()):
        raise InputError(f"has a passage {lacking[0]!r} that the release's {corpus} lacks", path=run.path)
    found = Found()
    for query, grades in progress(judged.items(), unit="query", label="near-duplicates"):
        order = dict.fromkeys([*grades, *tops[query]])
        _follow(query, {each: texts[each] for each in order if each in texts}, grades, length, share, found)
    return found


def _follow(
    query: str, texts: Mapping[str, str], grades: Mapping[str, int], length: int, share: float, found: Found
) -> None:
    """``texts``: in the order in which they may lead."""
    likes = LikeTexts(texts, _BY, length, share).find(list(texts.values()))
    leaders = found.leaders[query] = {}
    for each, like in zip(texts, likes, strict=True):
        leaders[each] = each
        for leader in (other.id for other in like if other.id != each and leaders.get(other.id) == other.id):
            if each in grades and leader in grades and (grades[each] > 0) != (grades[leader] > 0):
                found.contradicted.append((query, each, leader))
                continue
            leaders[each] = leader
            break


def fair(rankings: Rankings, qrels: Qrels, found: Found, way: str) -> tuple[dict[str, list[str]], Qrels]:
    """The lists and the reference in which leaders stand for their copies.

    Args:
        way: what becomes of a passage whose like stands above it: ``removed`` moves up what is below, as if the copies
            were not in the collection; ``kept`` leaves it as a place that counts nothing, as a reader meets it.
    """
    lists = {query: _led(query, rankings[query], found, way) for query in qrels.positives if query in rankings}
    reference = Qrels(qrels.name)
    for query, positives in qrels.positives.items():
        led: dict[str, int] = {}
        for passage, grade in positives.items():
            leader = found.leader(query, passage)
            led[leader] = max(grade, led.get(leader, grade))
        reference.positives[query] = led
    return lists, reference


def _led(query: str, ranking: Sequence[str], found: Found, way: str) -> list[str]:
    seen: set[str] = set()
    led = []
    for place, passage in enumerate(ranking):
        leader = found.leader(query, passage)
        if leader not in seen:
            led.append(leader)
        elif way == "kept":
            led.append(f"copy {place}")  # a blank: no passage's id
        seen.add(leader)
    return led


def duplicates(run: Run, qrels: Qrels, found: Found, way: str) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """(figures, values by query) of one run.

    The figures: ``repeated@10``, ``repeated@50`` (the mean share of these places that repeat one above),
    ``repeated_queries`` (the share of queries with a repeat in the first 10), ``copies`` (unjudged near-duplicates of
    positives in the lists), ``contradicted`` (pairs), ``positives`` (those that are left), and the measures under
    ``official`` and ``ir_measures``. The values by query: ``fair RR@10``, ``fair AP`` ...
    """
    rankings = run.rankings
    lists, reference = fair(rankings, qrels, found, way)
    means, by_query = measure(lists, reference)
    tens, fifties = ([_repeated(query, rankings, found, depth) for query in qrels.positives] for depth in (10, 50))
    figures = {
        "way": way,
        "repeated@10": mean(tens),
        "repeated@50": mean(fifties),
        "repeated_queries": sum(value > 0 for value in tens) / len(tens),
        "copies": sum(
            passage not in positives and found.leader(query, passage) in positives
            for query, positives in qrels.positives.items()
            for passage in set(rankings.get(query, ())[:LIST_DEPTH])
        ),
        "contradicted": len(found.contradicted),
        "positives": reference.pairs,
        **means,
        "official": means["official"] | {"QueriesRanked": len(rankings)},
    }
    return figures, {f"fair {name}": each for name, each in by_query.items()}


def pairs(run: Run, qrels: Qrels, found: Found) -> Iterator[dict[str, Any]]:
    """Every passage that follows another, and every contradicted pair, for a look at them.

    ``run``, ``query-id``, ``corpus-id``, ``like`` (the other passage's id), ``labels`` (both grades, None: unjudged).
    """
    judged = qrels.judged()
    followers = ((query, each, to) for query, led in found.leaders.items() for each, to in led.items() if each != to)
    for query, passage, other in (*followers, *found.contradicted):
        labels = [judged[query].get(each) for each in (passage, other)]
        yield {"run": str(run.path), "query-id": query, "corpus-id": passage, "like": other, "labels": labels}


def _repeated(query: str, rankings: Rankings, found: Found, depth: int) -> float:
    top = rankings.get(query, ())[:depth]
    return 1 - len({found.leader(query, passage) for passage in top}) / len(top) if top else 0.0


def text(results: Sequence[Mapping[str, Any]], qrels: Qrels) -> str:
    """The tables of the runs' near-duplicates. ``results``: as the verb ``evaluate`` prints them as JSON."""
    counts, values = [], []
    for result in results:
        each = result["duplicates"]
        shares = (percent(each[name]) for name in ("repeated@10", "repeated@50", "repeated_queries"))
        counts.append([result["run"], *shares, f"{each['copies']:,}", f"{each['contradicted']:,}"])
        values.append([result["run"], *cells(each)])
    first = results[0]["duplicates"]
    return "\n".join(
        [
            "near-duplicates: percent of places that repeat one above, of queries with such a place in the first 10;",
            "unjudged passages that are copies of a positive; near-duplicates that were judged differently",
            text_table(["run", "repeated@10", "repeated@50", "queries", "copies", "contradicted"], counts),
            "",
            f"a passage and its copies as one, later copies {first['way']}, percent ({first['positives']} positives of "
            f"{qrels.pairs} are left)",
            text_table(["run", *PAPER.values(), *IR_MEASURES], values),
        ]
    )
