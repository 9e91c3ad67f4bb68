"""What the actions of the command do: candidates, move."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from builders.core.errors import InputError, log
from builders.core.files import check_file, write_text
from builders.pool.ensemble import columns
from builders.pool.union import Union, open_runs
from builders.store.draft import check_release_output, describe_files, draft_release
from builders.store.judged import Judged, read_judged
from builders.store.negatives import read_negative_ids
from builders.store.reader import Release, open_release
from builders.store.rejudge import rejudge
from builders.store.runs import write_run
from builders.store.table3 import round_stat

SPLIT = "train"
LIST = f"relabelled.{SPLIT}.jsonl"
Move = tuple[str, str, float, dict[str, float]]  # query, passage, mean score, each re-ranker's score


def candidates(args: argparse.Namespace) -> None:
    """The negatives as a run, in their order, for the re-rankers."""
    check_file(args.out)
    release = open_release(args.release)
    found = negatives_of(release, args.negatives, read_judged(release, "qrels", SPLIT))
    rows = ((query, [(each, 1 / rank) for rank, each in enumerate(ids, 1)]) for query, ids in found.items())
    lines = write_run(args.out, rows, tag="negatives")
    longest = max(map(len, found.values()))
    log.info("%s: %d negatives; next: `baselines rerank --split %s --top-k %d`", args.out, lines, SPLIT, longest)


def move(args: argparse.Namespace) -> None:
    """A release whose training positives hold the negatives that the re-rankers hold positive."""
    check_release_output(args.out)
    release = open_release(args.release)
    judged = read_judged(release, "qrels", SPLIT)
    found = negatives_of(release, args.negatives, judged)
    runs, names = open_runs(args.scores, args.names)
    union = Union(["negatives"], {q: {each: (n,) for n, each in enumerate(ids, 1)} for q, ids in found.items()})
    scores = columns(union, runs, args.scale, "relabel candidates")
    moved = [
        (query, each, math.fsum(own) / len(own), dict(zip(names, own, strict=True)))
        for (query, each, _), *own in zip(union.pairs(), *scores, strict=True)
        if _is_positive(own, args.threshold, args.agree)
    ]
    held = {name: sum(score >= args.threshold for score in own) for name, own in zip(names, scores, strict=True)}
    new = {query: dict(own) for query, own in judged.items()}
    for query, each, _, _ in moved:
        new.setdefault(query, {})[each] = 1
    figures = _figures(found, judged, moved, held)
    sources = [] if args.negatives is None else [(args.negatives.name, args.negatives)]
    build = {
        "verb": "relabel",
        "options": {"threshold": args.threshold, "agree": args.agree, "scale": args.scale, "moved": len(moved)},
        "sources": describe_files([*sources, *((path.name, path) for path in args.scores)]),
    }
    with draft_release(args.out, build, release) as draft:
        rejudge(draft, release, SPLIT, new)
        write_text(draft.folder / LIST, _earlier(release) + "".join(map(_line, moved)))
        draft.add_file(LIST)
    print(json.dumps(figures, ensure_ascii=False, indent=1) if args.format == "json" else _text(figures))
    log.info("%s: a release; what moved is listed in its %s", args.out, LIST)


ACTIONS: dict[str, Callable[[argparse.Namespace], None]] = {"candidates": candidates, "move": move}


def _is_positive(scores: Sequence[float], threshold: float, agree: str) -> bool:
    """Whether the re-rankers hold a passage positive: their mean score, or ``all`` of them, reach the threshold."""
    return (min(scores) if agree == "all" else math.fsum(scores) / len(scores)) >= threshold


def negatives_of(release: Release, path: Path | None, judged: Judged) -> dict[str, list[str]]:
    """The negatives of every training query, each once, less what is judged.

    Those of the file ``path``, or where it is None of the release's training rows. :class:`InputError` where there are
    none of this release's queries, and for a passage that its corpus lacks.
    """
    if path is None:
        rows = [
            (query, [each["docid"] for each in own])
            for batch in release.batches(SPLIT, SPLIT, ["query_id", "negative_passages.list.element.docid"])
            for query, own in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        ]
    else:
        rows = [(query, ids) for query, ids, _ in read_negative_ids(path)]
    found: dict[str, list[str]] = {}
    known = set(release.table("queries", SPLIT, ["_id"])["_id"].to_pylist())
    for query, ids in rows:
        # Known positives are none; and what people have judged not to answer (score 0) no model takes back.
        own = [each for each in ids if each not in judged.get(query, {})]
        if own and query in known:
            found[query] = list(dict.fromkeys([*found.get(query, []), *own]))
    where = release.path if path is None else path
    if not found:
        raise InputError(f"has no hard negative of the queries of {SPLIT}; `baselines mine` makes some", path=where)
    if missing := release.missing("corpus", "corpus", {each for ids in found.values() for each in ids}):
        raise InputError(f"has a passage {missing[0]!r} that the corpus lacks", path=where)
    return found


def _earlier(release: Release) -> str:
    """The list of what an earlier relabelling moved."""
    listed = any(entry.path == LIST for entry in release.manifest.files)
    return release.named(LIST).read_text(encoding="utf-8") if listed else ""


def _line(row: Move) -> str:
    query, each, mean, scores = row
    content = {"query-id": query, "corpus-id": each, "score": mean, "scores": scores}
    return json.dumps(content, ensure_ascii=False) + "\n"


def _figures(found: dict[str, list[str]], judged: Judged, moved: list[Move], held: dict[str, int]) -> dict[str, Any]:
    """What was moved, as JSON values."""
    before = sum(score > 0 for own in judged.values() for score in own.values())
    queries = len({*judged, *found})
    return {
        "queries": queries,
        "negatives": sum(map(len, found.values())),
        "held_positive": held,
        "moved": len(moved),
        "queries_with_moved": len({query for query, *_ in moved}),
        "per_query_before": round_stat(before / queries),
        "per_query_after": round_stat((before + len(moved)) / queries),
    }


def _text(figures: dict[str, Any]) -> str:
    share = figures["moved"] / figures["negatives"]
    held = "; ".join(f"{name} holds {count:,} positive" for name, count in figures["held_positive"].items())
    return "\n".join(
        [
            f"moved {figures['moved']:,} of {figures['negatives']:,} negatives ({share:.1%}), of"
            f" {figures['queries_with_moved']:,} of {figures['queries']:,} queries",
            held,
            f"positives a query: {figures['per_query_before']:.2f} before, {figures['per_query_after']:.2f} after",
        ]
    )
