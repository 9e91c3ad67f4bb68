"""Turn false negatives of the training data into positives (Section 4).

Hard negatives are unjudged passages, and some of them answer the question. In the paper, such false negatives are
14.8 % of the analysed errors (Table 10). As in RLHN, an ensemble of models finds false negatives, which then become
positives. The ensemble should be stronger than the model that is trained later.

`candidates` writes the negatives of a file of `mine`, or of the release's training rows, as a run. `baselines rerank`
scores this run with each re-ranker of an ensemble. `move` reads the scores and writes a new release. A negative becomes
a positive (score 1 in qrels) if the mean of its scores reaches --threshold. With --agree all, each score must reach the
threshold. The new release lists the moved pairs in relabelled.train.jsonl: query-id, corpus-id, score (the mean) and
scores (of each re-ranker). If an older file of negatives contains moved passages, `train` skips these passages.

A sigmoid turns the logits of `baselines rerank` into probabilities. `--scale none` uses scores unchanged. Queries of
dev and test are not relabelled, because only people judge them.

example:
  python -m builders annotate relabel candidates --release build/sample --negatives build/negatives/bm25.jsonl.gz \\
      --out build/relabel/candidates.run.gz
  python -m builders annotate relabel move --release build/sample --negatives build/negatives/bm25.jsonl.gz \\
      --scores build/relabel/ce-one.run.gz build/relabel/ce-two.run.gz --threshold 0.9 --out build/relabelled
"""

import argparse
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from builders.annotate.pool import SCALES, open_runs, scores_of, write_candidates
from builders.annotate.rounds import JUDGMENTS, ROUND, Pair, Round, fingerprint_of, open_round, standings
from builders.check.paper import relabelled, relabelled_text
from builders.core.command import add_format, number_between
from builders.core.errors import InputError, log
from builders.core.files import write_text
from builders.core.tables import print_result, round_stat
from builders.release.answer_records import renew_answers
from builders.store.draft import describe_files, draft_release
from builders.store.judgments import Judged, qrels_table, read_judged, read_negative_ids
from builders.store.layout import BEFORE
from builders.store.published import published
from builders.store.reader import Release, open_release
from builders.store.rejudge import rejudge

SPLIT = "train"
LIST = f"relabelled.{SPLIT}.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["candidates", "move"])
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="release directory")
    parser.add_argument(
        "--negatives", type=Path, metavar="F", help="output of `mine` (default: negatives of the training rows)"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="OUT", help="run (candidates) or release (move)")
    move = parser.add_argument_group("move")
    move.add_argument("--scores", type=Path, nargs="+", metavar="RUN", help="a run with scores from each re-ranker")
    move.add_argument(
        "--scale", choices=SCALES, default=SCALES[0], help="conversion of each score before the mean (default: sigmoid)"
    )
    move.add_argument(
        "--threshold",
        type=number_between(-math.inf, math.inf),
        default=0.5,
        metavar="X",
        help="lowest score of a positive (default: 0.5)",
    )
    move.add_argument(
        "--agree", choices=["mean", "all"], default="mean", help="mean score or all scores must reach X (default: mean)"
    )
    add_format(parser)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> None:
    if args.action == "move" and not args.scores:
        args.usage_error("move needs --scores")
    release = open_release(args.release)
    judged = read_judged(release, "qrels", SPLIT)
    negatives = negatives_of(release, args.negatives, judged)
    if args.action == "move":
        _move(args, release, judged, negatives)
    else:
        rows = {query: [(each, 1 / rank) for rank, each in enumerate(ids, 1)] for query, ids in negatives.items()}
        write_candidates(args.out, rows, "negatives", SPLIT)


def negatives_of(release: Release, path: Path | None, judged: Judged) -> dict[str, list[str]]:
    """Return each training query's unjudged negatives, from the file ``path`` or, if None, from the training rows."""
    rows: Iterable[tuple[str, list[str]]] = (
        (query, [each["docid"] for each in own])
        for batch in release.batches(SPLIT, SPLIT, ["query_id", "negative_passages.list.element.docid"])
        for query, own in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    if path is not None:
        rows = [(query, ids) for query, ids, _ in read_negative_ids(path)]
    found: dict[str, list[str]] = {}
    known = set(release.table("queries", SPLIT, ["_id"])["_id"].to_pylist())
    for query, ids in rows:
        # Judged passages are skipped. A positive is no negative, and no model overrides a person's judgment of 0.
        own = [each for each in ids if each not in judged.get(query, {})]
        if own and query in known:
            found[query] = list(dict.fromkeys([*found.get(query, []), *own]))
    where = path or release.path
    if not found:
        raise InputError(f"has no hard negatives of {SPLIT} queries; make some with `baselines mine`", path=where)
    if missing := release.missing("corpus", "corpus", {each for ids in found.values() for each in ids}):
        raise InputError(f"has a passage {missing[0]!r} that the corpus lacks", path=where)
    return found


def _move(args: argparse.Namespace, release: Release, judged: Judged, negatives: dict[str, list[str]]) -> None:
    """Write a release whose training positives include the negatives that the re-rankers score as positive."""
    runs, names = open_runs(args.scores)
    pairs = [(query, each) for query, ids in negatives.items() for each in ids]
    scores = scores_of(pairs, runs, args.scale, "relabel candidates")
    new: dict[str, dict[str, int]] = {query: dict(own) for query, own in judged.items()}
    moved: list[dict[str, Any]] = []
    for (query, each), *own in zip(pairs, *scores, strict=True):
        mean = math.fsum(own) / len(own)
        if (min(own) if args.agree == "all" else mean) >= args.threshold:
            new.setdefault(query, {})[each] = 1
            of_each = dict(zip(names, own, strict=True))
            moved.append({"query-id": query, "corpus-id": each, "score": mean, "scores": of_each})
    build = {
        "verb": "relabel",
        "options": {"threshold": args.threshold, "agree": args.agree, "scale": args.scale, "moved": len(moved)},
        "sources": describe_files((path.name, path) for path in (args.negatives, *args.scores) if path),
    }
    # The new list begins with the list of an earlier relabelling.
    earlier = [release.named(LIST).read_text("utf-8") for entry in release.manifest.files if entry.path == LIST]
    with draft_release(args.out, build, release) as draft:
        rejudge(draft, release, SPLIT, new)
        renew_answers(draft, release, SPLIT, new)
        write_text(
            draft.folder / LIST, "".join([*earlier, *(f"{json.dumps(row, ensure_ascii=False)}\n" for row in moved)])
        )
        draft.add_file(LIST)
    before = sum(score > 0 for own in judged.values() for score in own.values())
    queries = len({*judged, *negatives})
    figures: dict[str, Any] = {
        "queries": queries,
        "negatives": len(pairs),
        "held_positive": {n: sum(each >= args.threshold for each in own) for n, own in zip(names, scores, strict=True)},
        "moved": len(moved),
        "queries_with_moved": len({row["query-id"] for row in moved}),
        "per_query_before": round_stat(before / queries),
        "per_query_after": round_stat((before + len(moved)) / queries),
    }
    print_result(figures, _text(figures), args.format)
    log.info("%s: wrote the release; its %s lists the moved pairs", args.out, LIST)


def _text(figures: dict[str, Any]) -> str:
    held = "; ".join(f"{name} scores {count:,} as positive" for name, count in figures["held_positive"].items())
    return (
        f"moved {figures['moved']:,} of {figures['negatives']:,} negatives"
        f" ({figures['moved'] / figures['negatives']:.1%}), of"
        f" {figures['queries_with_moved']:,} of {figures['queries']:,} queries\n{held}\n"
        f"positives a query: {figures['per_query_before']:.2f} before, {figures['per_query_after']:.2f} after"
    )


def merge_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="release that was judged")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="release directory to write")
    add_format(parser)


def merge(args: argparse.Namespace) -> None:
    """Write a release with new qrels from a round's accepted packages.

    A pair that was judged 1 becomes a positive. A pair that was judged 0 gets the score 0 in qrels, so that the next
    pool shows the pair as judged. The passage then becomes a negative in the query's row of the config train, dev, test
    or crosslingual. Unjudged pairs, and ties between annotators, stay unchanged. Packages that are not accepted are
    skipped, and so are models' judgments. The statistics are computed from the new qrels.

    The config qrels-before has the judgments from before the first merge, for comparison (Figure 2). The command prints
    the figures of Section 2.3 for the new release and for the paper: positives per query before and after, and the
    share of queries with a false negative. `check` recounts these figures from the rows.

    example:
      python -m builders annotate merge --round build/round --release build/sample --out build/relabelled
    """
    figures, paper = merged(args.round, open_release(args.release), args.out), published()["relabelled"]
    text = f"{relabelled_text(figures, paper)}\nrelease: {args.out}"
    print_result({"release": figures, "paper": paper}, text, args.format)


def merged(round_: Path, base: Release, out: Path) -> dict[str, dict[str, Any]]:
    """Write the release ``out``: ``base`` with a round's judgments. Return ``relabelled`` of the new ``stats.json``.

    Raises :class:`InputError` if the round was made from other queries or passages, or has no settled label.
    """
    found = open_round(round_, "relevance")
    split = found.split
    if found.fingerprint != fingerprint_of(base, split):
        raise InputError(f"was made from other queries or passages than {split} of {base.path}", path=round_ / ROUND)
    labels, undecided = settled_labels(round_, found)
    waiting = [package.name for package in found.packages if package.state != "accepted"]
    if not labels:
        states = f"{len(waiting)} of {len(found.packages)} packages are not accepted"
        raise InputError(f"has no pair with a settled label: {states}; run `annotate check`", path=round_)
    if waiting:
        log.warning("skipped packages that are not accepted: %s", ", ".join(waiting))
    if undecided:
        log.warning("%d undecided pairs stay unchanged; decide them with `annotate adjudicate`", len(undecided))
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
        renew_answers(draft, base, split, new)
        if old and (BEFORE, split) not in base.splits():
            draft.write(BEFORE, split, [qrels_table(old)])
        before = read_judged(base, BEFORE, split) or old
        queries = base.table("queries", split, ["_id"])["_id"].to_pylist()
        figures: dict[str, dict[str, Any]] = draft.stats.setdefault("relabelled", {})
        figures[split] = relabelled(queries, before, new)
    return figures


def settled_labels(round_: Path, found: Round) -> tuple[dict[Pair, int], list[Pair]]:
    """Return (label by pair, pairs without a label) for the accepted packages of a round.

    Models' judgments never count. Raises :class:`InputError` if labels changed after their package was accepted.
    """
    labels: dict[Pair, int] = {}
    undecided: list[Pair] = []
    for standing in standings(round_, found):
        if standing.package.state != "accepted":
            continue
        if standing.package.labels != standing.digest:
            name = standing.package.name
            raise InputError(f"labels of {name} changed after it was accepted; run `annotate check`", path=round_)
        every = {pair: standing.label(pair) for pair in standing.pairs}
        labels |= {pair: label for pair, label in every.items() if label is not None}
        undecided += [pair for pair, label in every.items() if label is None]
    return labels, undecided


def corrected(judged: Judged, labels: Mapping[Pair, int]) -> dict[str, dict[str, int]]:
    """Return the judgments corrected by ``labels``. Label 1 makes a pair positive. Label 0 sets the score to 0.

    Old pairs stay in their order. New pairs follow the old pairs of the same query.
    """
    found = {query: dict(scores) for query, scores in judged.items()}
    for (query, passage), label in labels.items():
        scores = found.setdefault(query, {})
        if not label:
            scores[passage] = 0
        elif scores.get(passage, 0) <= 0:
            scores[passage] = 1
    return found
