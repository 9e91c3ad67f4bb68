"""Add nested samples of the collection, to search instead of all passages.

For every size, the config sample-SIZE has the ids of SIZE passages: all positives of the queries of --split, and
randomly drawn passages. --hard RUN... also adds sample-SIZE-hard: all positives, then the passages that the runs rank
first for any query, then second, and so on. From the last rank, passages are drawn at random. If the runs have too few
passages, random passages follow. Smaller samples are parts of larger samples of their kind (with or without -hard).
Earlier samples are replaced. The same seed and runs give the same samples for any order of the passages.

--extract CONFIG writes a small release with the sample's passages, and the queries whose positives every sample has.
`bm25` and `search` of baselines do not need an extract: their option --sample selects a sample.

--nano --extract writes a release of 200 drawn queries of --split and 10,000 passages: all judged
passages of these queries, then the passages that the runs of --hard rank first, then second, and so on. mteb and other
tools read this release, and a small model runs on it in minutes (docs/samples.md).

example:
  python -m builders add samples --release build/sample --sizes 100 --hard build/runs/bm25.run.gz --out build/samples
  python -m builders add samples --release DIR --sizes 10K 100K 1M --seed 0 --out DIR
  python -m builders add samples --release DIR --extract sample-100K-hard --out SMALL
  python -m builders add samples --release DIR --nano --hard bm25.dev.run.gz --extract --out NANO
"""

import argparse
from collections.abc import Collection, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.command import add_format, whole_number
from builders.core.errors import InputError
from builders.core.progress import progress
from builders.core.sampling import draw, lots, size, size_name
from builders.core.tables import print_result
from builders.release.answer_records import renew_answers
from builders.store.draft import Draft, describe_files, draft_release
from builders.store.judgments import Judged, read_judged, texts_of_judged
from builders.store.layout import IDS, SAMPLE, SETS
from builders.store.manifest import read_stats
from builders.store.reader import Release, open_release
from builders.store.rejudge import count_judged
from builders.store.runs import read_run
from builders.store.table3 import LengthCounter

Levels = npt.NDArray[np.int64]  # level of each passage; a sample takes the lowest levels first
_IN_NO_RUN = np.iinfo(np.int64).max  # the level of passages that are neither positives nor in a run

_CORPUS = "corpus"
_AT_ONCE = 1 << 16
NANO_QUERIES, NANO_PASSAGES = 200, 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="release directory to read")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument(
        "--sizes", type=size, nargs="+", metavar="N", help="passages of a sample, for example 10K or 1M"
    )
    text = "write a release of this sample, for example sample-10K, or of the passages of --nano"
    action.add_argument("--extract", nargs="?", const="", metavar="CONFIG", help=text)
    parser.add_argument("--nano", action="store_true", help="draw 200 queries and 10,000 passages (with --extract)")
    parser.add_argument(
        "--hard",
        type=Path,
        nargs="+",
        default=[],
        metavar="RUN",
        help="also make samples of the best hits of these runs",
    )
    parser.add_argument(
        "--split",
        nargs="+",
        default=["dev"],
        metavar="SPLIT",
        help="splits whose positives are in every sample (default: dev)",
    )
    parser.add_argument("--seed", type=whole_number(0), default=0, metavar="N", help="seed of the draw (default: 0)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="new release (may be --release)")
    add_format(parser)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> None:
    if args.nano == bool(args.extract or args.sizes):
        args.usage_error("expected --sizes N..., --extract CONFIG, or --nano --extract")
    release = open_release(args.release)
    if args.nano:
        nano = write_nano(release, args)
        counts = ", ".join(f"{nano[name]:,} {name}" for name in ("queries", "passages", "judged", "hard"))
        print_result(nano, f"{args.out}: {counts}", args.format)
        return
    if args.extract:
        found = write_extract(release, args.extract, args.out)
        print(f"{args.out}: {found['passages']:,} passages, the queries of {', '.join(found['splits'])}")
        return
    rows = write_samples(release, args)
    hard = {row["config"]: f", {row['hard']:,} that the runs rank high" for row in rows if row["hard"] is not None}
    lines = [
        f"{row['config']}: {row['passages']:,} passages, {row['positives']:,} positives{hard.get(row['config'], '')}"
        for row in rows
    ]
    print_result(rows, "\n".join(lines), args.format)


def write_samples(release: Release, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Write the ``sample-*`` configs into a copy of ``release``. Return one row of figures for each config."""
    ids, lot = _ids_and_lots(release, args.seed)
    queries: set[str] = set()
    positives: dict[str, int] = {}  # positives have level 0
    for split in args.split:
        release.shards("qrels", split)  # raises InputError for a split without labels
        for query, scores in read_judged(release, "qrels", split).items():
            queries.add(query)
            positives |= {passage: 0 for passage, score in scores.items() if score > 0}
    sizes = sorted(set(args.sizes))
    if not positives or sizes[0] < len(positives) or sizes[-1] >= len(ids):
        held = f"has {len(positives):,} positives in qrels/{'+'.join(args.split)} and {len(ids):,} passages"
        found = f"found {sizes[0]:,} to {sizes[-1]:,}"
        raise InputError(f"{held}; expected positives <= --sizes < passages, {found}", path=release.path)
    kinds = {"": _levels(ids, positives, str(release.path))}
    if args.hard:
        kinds["-hard"] = _levels(ids, _best_ranks(args.hard, queries) | positives, ", ".join(map(str, args.hard)))
    options = {"sizes": sizes, "split": args.split, "seed": args.seed}
    sources = describe_files((path.name, path) for path in args.hard)
    rows = []
    with draft_release(args.out, {"verb": "samples", "options": options, "sources": sources}, release) as draft:
        for config in {config for config, _ in release.splits() if config.startswith(SAMPLE)}:
            draft.drop(config)
        for kind, level in kinds.items():
            order = np.lexsort((lot, level))
            for each in sizes:
                chosen, name = np.sort(order[:each]), f"{SAMPLE}{size_name(each)}{kind}"
                draft.write(name, _CORPUS, [pa.table([ids.take(pa.array(chosen))], schema=IDS)])
                hard = _hard(level[chosen]) if kind else None
                rows.append(
                    {"config": name, "passages": each, "positives": len(positives), "hard": hard, "split": args.split}
                )
        draft.stats["samples"] = {row["config"]: row for row in rows}
    return rows


def _ids_and_lots(release: Release, seed: int) -> tuple[pa.Array, npt.NDArray[np.uint64]]:
    """Return the ids of all passages, and a random number for each passage."""
    ids = release.table(_CORPUS, _CORPUS, ["_id"])["_id"].combine_chunks()
    slices = (ids.slice(start, _AT_ONCE).to_pylist() for start in range(0, len(ids), _AT_ONCE))
    return ids, lots((each for some in slices for each in some), seed, len(ids))


def _levels(ids: pa.Array, known: Mapping[str, int], where: str) -> Levels:
    """Return every passage's level. Passages that are not in ``known`` have the level ``_IN_NO_RUN``.

    Raises :class:`InputError` if ``known`` has a passage that is not in the corpus.
    """
    rows = np.flatnonzero(pc.is_in(ids, pa.array(sorted(known), pa.string())).to_numpy(zero_copy_only=False))
    names = ids.take(pa.array(rows)).to_pylist()
    if missing := known.keys() - set(names):
        raise InputError(f"has a passage {min(missing)!r} that the release's corpus lacks", path=where)
    found = np.full(len(ids), _IN_NO_RUN, np.int64)
    found[rows] = [known[name] for name in names]
    return found


def _hard(level: Levels) -> int:
    return int(((level > 0) & (level < _IN_NO_RUN)).sum())


def _best_ranks(runs: Sequence[Path], queries: Container[str]) -> dict[str, int]:
    best: dict[str, int] = {}
    for path in runs:
        hits = [ranked for query, ranked in read_run(path).hits.items() if query in queries]
        if not hits:
            raise InputError("has no query of --split; expected a run of these queries", path=path)
        for rank, passage in ((rank, hit[0]) for ranked in hits for rank, hit in enumerate(ranked, 1)):
            best[passage] = min(rank, best.get(passage, rank))
    return best


def write_extract(release: Release, name: str, out: Path) -> dict[str, Any]:
    """Write a release of a sample's passages and splits. Return the number of passages and the splits."""
    stats = read_stats(release.path)
    wanted = release.table(name, _CORPUS, ["_id"])["_id"].to_pylist()
    if name not in stats.get("samples", {}):
        raise InputError(f"{name} is not in stats.json; expected a config of `add samples`", path=release.path)
    splits = stats["samples"][name]["split"]
    build = {"verb": "samples", "options": {"extract": name, "split": splits}, "sources": []}
    with draft_release(out, build) as draft:
        if english := {split: found for split, found in stats.get("english", {}).items() if split in splits}:
            draft.stats["english"] = english
        _write_part(draft, release, wanted, {split: read_judged(release, "qrels", split) for split in splits})
    return {"passages": len(wanted), "splits": splits}


def write_nano(release: Release, args: argparse.Namespace) -> dict[str, Any]:
    """Write a release of 200 queries and 10,000 passages. Return its figures.

    The passages are all judged passages of the queries, then the best hits of the runs for the queries, then random
    passages. If the release has fewer queries or passages, all are used.
    """
    if len(args.split) != 1 or not args.hard:
        raise InputError(
            "--nano draws queries of one --split and passages of runs; expected --hard RUN..., and one --split"
        )
    (split,) = args.split
    release.shards("qrels", split)  # raises InputError for a split without labels
    every = {query: own for query, own in read_judged(release, "qrels", split).items() if max(own.values()) > 0}
    drawn = draw(every, NANO_QUERIES, args.seed)
    judged = {query: own for query, own in every.items() if query in drawn}
    known = _best_ranks(args.hard, drawn) | {passage: 0 for own in judged.values() for passage in own}
    ids, lot = _ids_and_lots(release, args.seed)
    level = _levels(ids, known, ", ".join(map(str, args.hard)))
    chosen = np.sort(np.lexsort((lot, level))[: max(NANO_PASSAGES, sum(rank == 0 for rank in known.values()))])
    figures = {"split": split, "queries": len(judged), "passages": len(chosen)}
    figures |= {"judged": int((level[chosen] == 0).sum()), "hard": _hard(level[chosen])}
    sources = describe_files((path.name, path) for path in args.hard)
    options = {"nano": True, "split": split, "seed": args.seed}
    with draft_release(args.out, {"verb": "samples", "options": options, "sources": sources}) as draft:
        draft.stats["nano"] = figures
        _write_part(draft, release, ids.take(pa.array(chosen)).to_pylist(), {split: judged}, drawn)
    return figures


def _write_part(
    draft: Draft,
    release: Release,
    wanted: Sequence[str],
    judged: Mapping[str, Judged],
    drawn: Collection[str] | None = None,
) -> None:
    """Write the ``wanted`` passages, and the queries of the splits of ``judged`` (all, or only the ``drawn`` ones)."""
    writer, lengths, passages = draft.writer(_CORPUS, _CORPUS), LengthCounter(), frozenset(wanted)
    for table in progress(release.rows_with(_CORPUS, _CORPUS, "_id", passages), unit="block", label="extract"):
        writer.write(table)
        lengths.add(pc.utf8_length(table["text"]).to_numpy())
    draft.stats["collections"] = {_CORPUS: lengths.summary()}
    main, english = SETS["main"], SETS["crosslingual"]
    columns = {main.queries: "_id", main.qrels: "query-id", **dict.fromkeys(main.joined.values(), "query_id")}
    kept = {*columns} | ({english.queries, *english.joined.values()} if drawn is None else set())
    for config, split in release.splits():
        if split in judged and config in kept:
            table = release.table(config, split)
            if drawn is not None:
                table = table.filter(pc.is_in(table[columns[config]], pa.array(sorted(drawn))))
            if config == main.qrels:  # the sample may lack passages that were judged 0
                table = table.filter(pc.is_in(table["corpus-id"], pa.array(wanted)))
            draft.write(config, split, [table])
    for split, every in judged.items():
        own = {query: {p: score for p, score in scores.items() if p in passages} for query, scores in every.items()}
        renew_answers(draft, release, split, own, drawn)
        queries = release.texts(main.queries, split, drawn)
        count_judged(draft, split, list(queries.values()), own, texts_of_judged(release, own))
