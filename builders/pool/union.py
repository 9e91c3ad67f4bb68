"""The union of runs: which passages of a query they found, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builders.core.errors import InputError, log
from builders.store.runs import Run, read_run

Ranks = tuple[int, ...]  # of a passage in each run, from 1; 0: the run does not have it


@dataclass(frozen=True)
class Union:
    """The best passages of several runs.

    Attributes:
        names: of the runs.
        ranks: by query, by passage, its rank in each run, in the order of ``names``. Queries are in the release's
            order, also those of which no run has a passage.
    """

    names: Sequence[str]
    ranks: Mapping[str, Mapping[str, Ranks]]

    def pairs(self) -> Iterator[tuple[str, str, Ranks]]:
        """(query id, passage id, ranks) of every candidate."""
        for query, passages in self.ranks.items():
            for passage, ranks in passages.items():
                yield query, passage, ranks

    def places(self, query: str, passage: str) -> dict[str, int]:
        """The ranks of a passage by the names of the runs that have it."""
        ranks = self.ranks.get(query, {}).get(passage, ())
        return {name: rank for name, rank in zip(self.names, ranks, strict=False) if rank}

    def without(self, known: set[tuple[str, str]]) -> Union:
        """The candidates that are not among ``known`` pairs."""
        ranks = {
            query: {passage: found for passage, found in passages.items() if (query, passage) not in known}
            for query, passages in self.ranks.items()
        }
        return Union(self.names, ranks)


def union_of(runs: Sequence[Run], names: Sequence[str], queries: Sequence[str], depth: int, split: str) -> Union:
    """The union of the ``depth`` best passages of each run (Section 2.3: 50).

    Args:
        queries: the ids of the queries of ``split``, in the release's order.

    Raises :class:`InputError` where a run has a query that is none of them, or none of theirs.
    """
    known = set(queries)
    for run in runs:
        if strange := next((query for query in run.hits if query not in known), None):
            raise InputError(f"has a query {strange!r} that queries/{split} lacks", path=run.path)
        if not run.hits:
            raise InputError(f"has no query of queries/{split}", path=run.path)
        if missing := len(known) - len(run.hits):
            log.warning("%s lacks %d of %d queries", run.path, missing, len(known))
    found: dict[str, dict[str, list[int]]] = {query: {} for query in queries}
    for position, run in enumerate(runs):
        for query, ranking in run.rankings.items():
            for rank, passage in enumerate(list(dict.fromkeys(ranking))[:depth], 1):
                found[query].setdefault(passage, [0] * len(runs))[position] = rank
    return Union(names, {query: {p: tuple(r) for p, r in passages.items()} for query, passages in found.items()})


def open_runs(paths: Sequence[Path], names: Sequence[str] | None) -> tuple[list[Run], list[str]]:
    """The runs and their names: what the user says, or a file's name up to its first dot. Each name once."""
    found = list(names) if names else [path.name.partition(".")[0] for path in paths]
    if again := [name for name, count in Counter(found).items() if count > 1]:
        raise InputError(f"two runs are called {again[0]!r}; expected --names, a different one for each run")
    return [read_run(path) for path in paths], found
