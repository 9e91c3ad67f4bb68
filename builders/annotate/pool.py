"""Pool the best passages of several runs for judging (Section 2.3).

`candidates` writes the union of each run's best 50 passages as a new run. The paper pools BM25 and four neural
retrievers. `baselines rerank` then scores the candidates with each re-ranker of an ensemble. `select` averages the
re-rankers' scores (A.1), and writes the best 5 passages of each query as a pool. People judge the pairs of the pool.

A pool is a file of JSON lines. `query-id` and `corpus-id` identify the pair. `score` is the mean of the re-rankers'
scores, and `rank` is the passage's rank by `score`. `runs` has the passage's rank in each run that found the passage.
`judged` is the pair's score in the release's qrels, or null for an unjudged pair.

Every re-ranker must score every candidate. `baselines rerank` writes logits, whose range differs between re-rankers.
By default, a sigmoid therefore turns each logit into a probability. `--scale none` leaves the scores unchanged.

Both actions print how many pairs only one run found, how many pairs are unjudged, and how many known positives are
among the runs' best 1, 2, 3 ... passages. `--pool` extends an earlier pool with new runs. `candidates` then skips the
pairs of the earlier pool. `select` ranks old and new pairs together, and writes the new pairs among the best 5. With
the same re-rankers, the two pools together contain every pair that a single pool of all runs would contain.

example:
  python -m builders annotate pool candidates --release build/sample --split dev \\
      --out build/pool/candidates.dev.run.gz --runs build/runs/bm25.dev.run.gz build/runs/de-bm25-neg.dev.run.gz
  python -m builders annotate pool select --release build/sample --split dev --out build/pool/dev.jsonl.gz \\
      --runs build/runs/bm25.dev.run.gz build/runs/de-bm25-neg.dev.run.gz \\
      --scores build/pool/ce-one.dev.run.gz build/pool/ce-two.dev.run.gz
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from builders.annotate.rounds import Ids
from builders.core.command import add_format, whole_number
from builders.core.errors import InputError, log
from builders.core.files import write_text
from builders.core.tables import print_result, round_stat, text_table
from builders.core.typed import json_lines, read_json
from builders.store.judgments import Judged, read_judged
from builders.store.layout import SPLITS
from builders.store.reader import Release, open_release
from builders.store.runs import Run, best_first, probability, read_run, write_run

DEPTH, TOP = 50, 5  # passages of each run, passages of each query (Section 2.3)
SCALES = ("sigmoid", "none")
_DEPTHS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1_000)  # the report counts positives up to these ranks

Rank = Annotated[int, Meta(ge=1, le=2**63 - 1)]
# Query -> passage -> rank in each run, from 1, or 0 if the run lacks the passage. Queries are in the release's order.
Union = Mapping[str, Mapping[str, tuple[int, ...]]]


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["candidates", "select"])
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="release directory")
    parser.add_argument("--split", choices=SPLITS, default="dev", help="split of the queries (default: dev)")
    parser.add_argument("--runs", type=Path, nargs="+", required=True, metavar="RUN", help="TREC runs to pool")
    depth = f"pool the K best passages of each run (default: {DEPTH})"
    parser.add_argument("--depth", type=whole_number(1), default=DEPTH, metavar="K", help=depth)
    parser.add_argument("--pool", type=Path, metavar="OLD", help="earlier pool to extend")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="run or pool (select); .gz: gzipped")
    select = parser.add_argument_group("select")
    select.add_argument("--scores", type=Path, nargs="+", metavar="RUN", help="a run with scores from each re-ranker")
    select.add_argument(
        "--scale", choices=SCALES, default=SCALES[0], help="conversion of each score before the mean (default: sigmoid)"
    )
    top = f"select the N best passages of each query (default: {TOP})"
    select.add_argument("--top", type=whole_number(1), default=TOP, metavar="N", help=top)
    add_format(parser)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> None:
    if args.action == "select" and not args.scores:
        args.usage_error("select needs --scores")
    release = open_release(args.release)
    queries = release.table("queries", args.split, ["_id"])["_id"].to_pylist()
    runs, names = open_runs(args.runs)
    union = union_of(runs, queries, args.depth, args.split)
    _expect_passages(release, runs, union)
    old = read_pool(args.pool) if args.pool else []
    if strange := next((pair.query_id for pair in old if pair.query_id not in union), None):
        raise InputError(f"has a query {strange!r} that queries/{args.split} lacks", path=args.pool)
    known = {pair.pair for pair in old}
    new = {
        query: {passage: ranks for passage, ranks in own.items() if (query, passage) not in known}
        for query, own in union.items()
    }
    judged, pairs = read_judged(release, "qrels", args.split), None
    if args.action == "candidates":
        rows = {query: [(p, 1 / min(filter(None, r))) for p, r in own.items()] for query, own in new.items() if own}
        write_candidates(args.out, rows, "pool", args.split)
    else:
        means = mean_scores(new, [read_run(path) for path in args.scores], args.scale)
        pairs = list(select(means, union, names, judged, args.top, old))
        write_pool(args.out, pairs)
    found = report(names, union, new, judged, args.depth, pairs)
    print_result(found, as_text(found), args.format)


def open_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Return the runs and their names. A run has its file's name up to the first dot. Names must be unique."""
    names = [path.name.partition(".")[0] for path in paths]
    if again := [name for name, count in Counter(names).items() if count > 1]:
        raise InputError(f"two runs have the name {again[0]!r} (the file's name up to its first dot); rename one file")
    return [read_run(path) for path in paths], names


def union_of(runs: Sequence[Run], queries: Sequence[str], depth: int, split: str) -> Union:
    """Return the union of the ``depth`` best passages of each run (Section 2.3: 50), in the order of ``queries``.

    Raises :class:`InputError` if a run has a query that is not in ``queries``.
    """
    found: dict[str, dict[str, list[int]]] = {query: {} for query in queries}
    for position, run in enumerate(runs):
        if strange := next((query for query in run.hits if query not in found), None):
            raise InputError(f"has a query {strange!r} that queries/{split} lacks", path=run.path)
        if missing := len(found) - len(run.hits):
            log.warning("%s lacks %d of %d queries", run.path, missing, len(found))
        for query, ranking in run.rankings.items():
            for rank, passage in enumerate(list(dict.fromkeys(ranking))[:depth], 1):
                found[query].setdefault(passage, [0] * len(runs))[position] = rank
    return {query: {p: tuple(r) for p, r in passages.items()} for query, passages in found.items()}


def _expect_passages(release: Release, runs: Sequence[Run], union: Union) -> None:
    missing = set(release.missing("corpus", "corpus", {passage for own in union.values() for passage in own}))
    for run in runs if missing else ():
        if strange := missing & {passage for ranking in run.rankings.values() for passage in ranking}:
            raise InputError(f"has a passage {min(strange)!r} that the corpus lacks", path=run.path)


def write_candidates(path: Path, rows: Mapping[str, Sequence[tuple[str, float]]], tag: str, split: str) -> None:
    """Write candidates as a run for re-rankers. ``rows`` has (passage, 1 / the passage's best rank) by query."""
    lines, longest = write_run(path, rows.items(), tag=tag), max(map(len, rows.values()), default=0)
    message = "%s: %d candidates of %d queries; next: `baselines rerank --split %s --top-k %d`"
    log.info(message, path, lines, len(rows), split, longest)


def _depth(path: Path) -> int | None:
    """Return the number of passages per query that a re-ranker scored, from the run's manifest. None means all."""
    manifest = path.with_name(f"{path.name}.manifest.json")
    return read_json(manifest, _Reranked).top_k if manifest.is_file() else None


def scores_of(pairs: Sequence[tuple[str, str]], runs: Sequence[Run], scale: str, made_by: str) -> list[list[float]]:
    """Return each re-ranker's scores of all ``pairs``, in the order of ``pairs``. Other pairs of a run are ignored.

    ``scale="sigmoid"`` turns logits into probabilities. ``"none"`` leaves the scores unchanged. ``made_by`` is the
    command that writes the candidates; the error message names it. Raises :class:`InputError` if a run lacks a pair,
    because a mean of fewer scores is not comparable.
    """
    found = []
    for run in runs:
        depth = _depth(run.path)
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


def mean_scores(candidates: Union, runs: Sequence[Run], scale: str) -> dict[str, dict[str, float]]:
    """Return query -> passage -> mean of the scores that :func:`scores_of` returns (A.1)."""
    pairs = [(query, passage) for query, own in candidates.items() for passage in own]
    scores = zip(*scores_of(pairs, runs, scale, "pool candidates"), strict=True)
    # fsum is exact, so the order of the re-rankers does not change the mean.
    means = {pair: math.fsum(own) / len(own) for pair, own in zip(pairs, scores, strict=True)}
    return {query: {passage: means[query, passage] for passage in own} for query, own in candidates.items()}


def select(
    scores: Mapping[str, dict[str, float]],
    union: Union,
    names: Sequence[str],
    judged: Judged,
    top: int,
    old: Sequence[Pooled] = (),
) -> Iterator[Pooled]:
    """Yield the ``top`` best candidates of each query by mean score. Ties are broken by passage id.

    ``old`` is an earlier pool. Old pairs are ranked by their old scores, but not yielded again.
    """
    known: dict[str, dict[str, float]] = {}
    for pair in old:
        known.setdefault(pair.query_id, {})[pair.corpus_id] = pair.score
    for query, found in scores.items():
        before = known.get(query, {})
        ordered = best_first((found | before).items())
        for rank, (passage, score) in enumerate(ordered[:top], 1):
            if passage not in before:
                places = {name: place for name, place in zip(names, union[query][passage], strict=True) if place}
                yield Pooled(query, passage, rank, score, places, judged.get(query, {}).get(passage))


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


def report(
    names: Sequence[str], union: Union, new: Union, judged: Judged, depth: int, selected: Sequence[Pooled] | None
) -> dict[str, Any]:
    """Return the figures of a pool, as JSON values.

    ``union`` has all candidates of the runs. ``new`` has only the candidates that are not in an earlier pool.
    ``selected`` has the pairs of the new pool, or None for the action `candidates`.
    """
    labels = {(query, passage): score for query, scores in judged.items() for passage, score in scores.items()}
    pairs = [((query, passage), ranks) for query, own in new.items() for passage, ranks in own.items()]
    runs, depths = [], []
    for position, name in enumerate(names):
        own = [(sum(map(bool, ranks)) == 1, labels.get(pair, 0) > 0) for pair, ranks in pairs if ranks[position]]
        counts: dict[str, Any] = {
            "run": name,
            "pairs": len(own),
            "alone": sum(alone for alone, _ in own),
            "positives": sum(positive for _, positive in own),
            "positives_alone": sum(alone and positive for alone, positive in own),
        }
        if selected is not None:
            picked = [len(pair.runs) == 1 for pair in selected if name in pair.runs]
            counts |= {"selected": len(picked), "selected_alone": sum(picked)}
        runs.append(counts)
    every = sum(score > 0 for score in labels.values())
    best = [(min(filter(None, r)), labels.get((q, p), 0) > 0) for q, own in union.items() for p, r in own.items()]
    for limit in [*(each for each in _DEPTHS if each < depth), depth]:
        inside = [positive for rank, positive in best if rank <= limit]
        share = round_stat(sum(inside) / every) if every else None
        depths.append({"depth": limit, "pairs": len(inside), "positives": sum(inside), "share": share})
    found: dict[str, Any] = {
        "queries": sum(map(bool, union.values())),
        "candidates": _counts([labels.get(pair) for pair, _ in pairs]),
        **{"runs": runs, "depths": depths},
    }
    if selected is not None:
        number = Counter(pair.rank for pair in selected)
        positives = Counter(pair.rank for pair in selected if (pair.judged or 0) > 0)
        found["selected"] = _counts([pair.judged for pair in selected])
        found["ranks"] = [{"rank": n, "pairs": number[n], "positives": positives[n]} for n in sorted(number)]
    return found


def _counts(labels: Sequence[int | None]) -> dict[str, int]:
    known = [label for label in labels if label is not None]
    positives = sum(label > 0 for label in known)
    return {"pairs": len(labels), "judged": len(known), "positives": positives, "unjudged": len(labels) - len(known)}


def as_text(found: dict[str, Any]) -> str:
    """Return the report as aligned text."""
    lines = [f"{found['queries']:,} queries"]
    for what in ("candidates", "selected"):
        if counts := found.get(what):
            mean = counts["pairs"] / found["queries"] if found["queries"] else 0
            lines.append(
                f"{what}: {counts['pairs']:,} pairs ({mean:.2f} a query), {counts['unjudged']:,} unjudged,"
                f" {counts['judged']:,} judged, {counts['positives']:,} of them positive"
            )
    for rows in filter(None, (found["runs"], found["depths"], found.get("ranks"))):
        header = [key.replace("_", " ") for key in rows[0]]
        lines += ["", text_table(header, [list(map(_cell, row.values())) for row in rows])]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    number = f"{value:.2%}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    return "-" if value is None else number
