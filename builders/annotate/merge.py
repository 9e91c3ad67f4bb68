"""New qrels from a round's accepted packages: a release with them, and the old ones as qrels-before.

A pair that was judged 1 is a positive of the new release, one that was judged 0 is none; pairs that nobody judged, or
of which as many annotators say 1 as 0, stay as they were. Of packages that are not accepted, and of models' judgments,
nothing is taken. A pair judged 0 stands in qrels with the score 0, and among the negative passages of the joined rows:
so it is known to be judged when the next pool is made. Joined rows (dev, test, crosslingual) and figures follow the new
qrels.

qrels-before keeps the judgments from before the first merge, for comparison (Figure 2). Printed are the paper's figures
of Section 2.3 (positives a query before and after, the share of queries with a false negative), ours and its own;
`check` counts them again from the rows.

example:
  python -m builders annotate merge --round build/round --release build/sample --out build/relabelled
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builders.annotate.judgments import JUDGMENTS, Pair
from builders.annotate.rounds import ROUND, Round, fingerprint_of, open_round, standings
from builders.check.paper import published, relabelled, relabelled_text
from builders.core.command import add_format
from builders.core.errors import InputError, log
from builders.store.draft import describe_files, draft_release
from builders.store.judgments import Judged, qrels_table, read_judged
from builders.store.layout import BEFORE
from builders.store.reader import Release, open_release
from builders.store.rejudge import rejudge


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release that was judged")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the release to write")
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    figures, paper = merge(args.round, open_release(args.release), args.out), published()["relabelled"]
    if args.format == "json":
        print(json.dumps({"release": figures, "paper": paper}, ensure_ascii=False, indent=1))
    else:
        print(f"{relabelled_text(figures, paper)}\nrelease: {args.out}")


def merge(round_: Path, base: Release, out: Path) -> dict[str, dict[str, Any]]:
    """Write the release ``out``: ``base`` with the judgments of a round; return ``relabelled`` of its ``stats.json``.

    Raises :class:`InputError` where the round is of other queries or passages, or has nothing that is settled.
    """
    found = open_round(round_, "relevance")
    split = found.split
    if found.fingerprint != fingerprint_of(base, split):
        raise InputError(f"is of other queries or passages than those of {base.path} {split}", path=round_ / ROUND)
    labels, undecided = settled_labels(round_, found)
    waiting = [package.name for package in found.packages if package.state != "accepted"]
    if not labels:
        states = f"{len(waiting)} of {len(found.packages)} packages are not accepted"
        raise InputError(f"has no pair with a label that counts: {states}; `annotate check` says why", path=round_)
    if waiting:
        log.warning("left out, not accepted: %s", ", ".join(waiting))
    if undecided:
        log.warning("%d pairs are undecided and stay as they were: `annotate adjudicate`", len(undecided))
    old = read_judged(base, "qrels", split)
    new = corrected(old, labels)
    build = {
        "verb": "annotate merge",
        "options": {"split": split, "pool": found.pool, "packages": len(found.packages) - len(waiting)},
        "sources": describe_files(
            (path.relative_to(round_).as_posix(), path)
            for path in [round_ / ROUND, *sorted((round_ / JUDGMENTS).glob("*.jsonl"))]
        ),
    }
    with draft_release(out, build, base) as draft:
        rejudge(draft, base, split, new)
        if old and (BEFORE, split) not in base.splits():
            draft.write(BEFORE, split, [qrels_table(old)])
        before = read_judged(base, BEFORE, split) or old
        queries = base.table("queries", split, ["_id"])["_id"].to_pylist()
        figures: dict[str, dict[str, Any]] = draft.stats.setdefault("relabelled", {})
        figures[split] = relabelled(queries, before, new)
    return figures


def settled_labels(round_: Path, found: Round) -> tuple[dict[Pair, int], list[Pair]]:
    """Return the label of each pair of a round's accepted packages, and the pairs without one.

    These change a release's qrels. Models' judgments never do. :class:`InputError` where annotators have changed labels
    since their package was accepted.
    """
    labels: dict[Pair, int] = {}
    undecided: list[Pair] = []
    for standing in standings(round_, found):
        if standing.package.state != "accepted":
            continue
        if standing.package.labels != standing.digest:
            what = f"labels of the package {standing.package.name} have changed since it was accepted"
            raise InputError(f"{what}; `annotate check` looks at it again", path=round_)
        every = {pair: standing.label(pair) for pair in standing.pairs}
        labels |= {pair: label for pair, label in every.items() if label is not None}
        undecided += [pair for pair, label in every.items() if label is None]
    return labels, undecided


def corrected(judged: Judged, labels: Mapping[Pair, int]) -> dict[str, dict[str, int]]:
    """Return the judgments with people's ``labels``: 1 makes a positive of a pair that is none, 0 takes it away.

    The order stays; pairs that were not there stand behind the others of their query.
    """
    found = {query: dict(scores) for query, scores in judged.items()}
    for (query, passage), label in labels.items():
        scores = found.setdefault(query, {})
        if not label:
            scores[passage] = 0
        elif scores.get(passage, 0) <= 0:
            scores[passage] = 1
    return found
