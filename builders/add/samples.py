"""Add nested samples of the collection, to search in their place.

On a small machine 8 million passages take too long. Figures on a sample are not those of the collection: fewer passages
are in the way of the positives.

For every size, a config sample-SIZE holds the ids of so many passages: all positives of the --split's queries, and
others drawn by lot. With --hard RUN... there is a sample-SIZE-hard, too: all positives, then what the runs rank first
for any query, then second, and so on (of the last rank, and where the runs hold too few, by lot). A smaller sample is
part of a larger one of its kind. Earlier samples of the release are replaced. The same seed and runs give the same
samples, in whatever order the passages are.

--extract CONFIG writes a small release: the sample's passages with their texts and the --split's queries, for all verbs
and tools; without the training questions, whose positives are not in a sample.

`bm25` and `search` of baselines take such a config (--sample) in the place of the collection.

example:
  python -m builders add samples --release build/sample --sizes 100 --hard build/runs/bm25.run.gz --out build/samples
  python -m builders add samples --release DIR --sizes 10K 100K 1M --seed 0 --out DIR
  python -m builders add samples --release DIR --extract sample-100K-hard --out SMALL
"""

from __future__ import annotations

import argparse
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.command import add_format, whole_number
from builders.core.errors import InputError
from builders.core.progress import progress
from builders.core.sampling import lots, size, size_name
from builders.core.tables import print_result
from builders.store.draft import check_release_output, describe_files, draft_release
from builders.store.judgments import read_judged
from builders.store.layout import IDS, SAMPLE, SETS, is_config
from builders.store.manifest import read_stats
from builders.store.reader import Release, open_release
from builders.store.runs import read_run
from builders.store.table3 import LengthCounter

Levels = npt.NDArray[np.int64]  # of each passage: those of level 0 come first

_CORPUS = "corpus"
_AT_ONCE = 1 << 16
_FIGURES = ("table3", "positives_per_query", "english")  # by split; they are those of the same queries


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release to start from")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--sizes", type=size, nargs="+", metavar="N", help="passages a sample: 10K, 1M or any number")
    what.add_argument("--extract", metavar="CONFIG", help="write a release of this sample alone: sample-10K-hard")
    parser.add_argument(
        "--hard",
        type=Path,
        nargs="+",
        default=[],
        metavar="RUN",
        help="runs of the queries: also samples of their best",
    )
    parser.add_argument(
        "--split",
        nargs="+",
        default=["dev"],
        metavar="SPLIT",
        help="whose positives are in every sample (default: dev)",
    )
    parser.add_argument("--seed", type=whole_number(0), default=0, metavar="N", help="of the lots (default: 0)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the new release (may be --release)")
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    release = open_release(args.release)
    if args.extract:
        found = write_extract(release, args.extract, args.out)
        print(f"{args.out}: {found['passages']:,} passages, the queries of {', '.join(found['splits'])}")
        return
    rows, lines = write_samples(release, args), []
    for row in rows:
        hard = f", {row['hard']:,} that the runs rank high" if row["hard"] is not None else ""
        lines.append(f"{row['config']}: {row['passages']:,} passages, {row['positives']:,} positives{hard}")
    print_result(rows, "\n".join(lines), args.format)


def write_samples(release: Release, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Write the ``sample-*`` configs into a copy of ``release``; returns a row of figures each.

    Raises :class:`InputError` for a size that is smaller than the positives or no smaller than the collection, a split
    without positives, and a run of other queries or passages.
    """
    check_release_output(args.out)
    ids = release.table(_CORPUS, _CORPUS, ["_id"])["_id"].combine_chunks()
    judged: dict[str, set[str]] = {}  # by query: its positive passages
    for split in args.split:
        release.shards("qrels", split)  # raises: no labels
        for query, scores in read_judged(release, "qrels", split).items():
            judged.setdefault(query, set()).update(passage for passage, score in scores.items() if score > 0)
    if not any(judged.values()):
        raise InputError(f"has no positive passages in qrels/{'+'.join(args.split)}", path=release.path)
    levels = np.where(_holding(ids, {each for own in judged.values() for each in own}, release.path), 0, 1)
    positives, sizes = int((levels == 0).sum()), sorted(set(args.sizes))
    if sizes[0] < positives:
        lacks = f"a sample of {sizes[0]:,} passages does not hold the {positives:,} positives"
        raise InputError(lacks, path=release.path)
    if sizes[-1] >= len(ids):
        expected = f"has {len(ids):,} passages: expected samples of fewer, found {sizes[-1]:,}"
        raise InputError(expected, path=release.path)
    slices = (ids.slice(start, _AT_ONCE).to_pylist() for start in range(0, len(ids), _AT_ONCE))
    lot = lots((each for some in slices for each in some), args.seed, len(ids))
    kinds = {"": levels}
    if args.hard:
        kinds["-hard"] = _ranks(args.hard, judged, ids, levels)
    options = {"sizes": sizes, "split": args.split, "seed": args.seed}
    sources = describe_files((path.name, path) for path in args.hard)
    rows = []
    with draft_release(args.out, {"verb": "samples", "options": options, "sources": sources}, release) as draft:
        for config in {config for config, _ in release.splits() if config.startswith(SAMPLE)}:
            draft.drop(config)
        for kind, level in kinds.items():
            order, rest = np.lexsort((lot, level)), int(level.max())  # the last level: what no run ranks
            for each in sizes:
                chosen, name = np.sort(order[:each]), f"{SAMPLE}{size_name(each)}{kind}"
                draft.write(name, _CORPUS, [pa.table([ids.take(pa.array(chosen))], schema=IDS)])
                hard = int(((level[chosen] > 0) & (level[chosen] < rest)).sum()) if kind else None
                rows.append(
                    {"config": name, "passages": each, "positives": positives, "hard": hard, "split": args.split}
                )
        draft.stats["samples"] = {row["config"]: row for row in rows}
    return rows


def _holding(ids: pa.Array, wanted: set[str], path: Path) -> npt.NDArray[np.bool_]:
    """True for each of ``ids`` that is wanted; :class:`InputError` naming ``path`` where one is none of them."""
    found: npt.NDArray[np.bool_] = pc.is_in(ids, pa.array(sorted(wanted), pa.string())).to_numpy(zero_copy_only=False)
    if len(missing := wanted - set(ids.filter(pa.array(found)).to_pylist())):
        raise InputError(f"names a passage {min(missing)!r} that the release's corpus lacks", path=path)
    return found


def _ranks(runs: Sequence[Path], judged: Container[str], ids: pa.Array, levels: Levels) -> Levels:
    """Each passage's level: 0 of a positive, else the best rank that a run gives it for a query, else one more."""
    best: dict[str, int] = {}
    for path in runs:
        hits = [ranked for query, ranked in read_run(path).hits.items() if query in judged]
        if not hits:
            raise InputError("has none of the queries whose positives are in the samples", path=path)
        _holding(ids, {passage for ranked in hits for passage, _ in ranked}, path)
        for ranked in hits:
            for rank, (passage, _) in enumerate(ranked, 1):
                best[passage] = min(rank, best.get(passage, rank))
    found = np.full(len(ids), 1 + max(best.values()), np.int64)
    where = np.flatnonzero(_holding(ids, set(best), runs[0]))
    found[where] = [best[passage] for passage in ids.take(where).to_pylist()]
    found[levels == 0] = 0
    return found


def write_extract(release: Release, name: str, out: Path) -> dict[str, Any]:
    """Write a release with the passages of a sample and the splits that it was made for; returns what it holds.

    The training questions are left out: their positives are not in a sample. Raises :class:`InputError` where the
    release has no such sample, or lists passages that are not there.
    """
    if not (name.startswith(SAMPLE) and is_config(name)):
        raise InputError(f"expected a sample, as sample-10K or sample-10K-hard, found {name!r}")
    check_release_output(out)
    wanted = release.table(name, _CORPUS, ["_id"])["_id"].combine_chunks()
    stats = read_stats(release.path)
    if name not in stats.get("samples", {}):
        raise InputError(f"has no figures of {name} in stats.json; make the samples again", path=release.path)
    splits = stats["samples"][name]["split"]
    build = {"verb": "samples", "options": {"extract": name, "split": splits}, "sources": []}
    with draft_release(out, build) as draft:
        draft.stats |= {key: {s: v for s, v in stats.get(key, {}).items() if s in splits} for key in _FIGURES}
        writer, lengths = draft.writer(_CORPUS, _CORPUS), LengthCounter()
        with progress(total=release.rows(_CORPUS, _CORPUS), unit="passage", label="extract") as bar:
            for batch in release.batches(_CORPUS, _CORPUS):
                found = batch.filter(pc.is_in(batch["_id"], wanted))
                writer.write(pa.Table.from_batches([found]))
                lengths.add(pc.utf8_length(found["text"]).to_numpy(zero_copy_only=False))
                bar.update(batch.num_rows)
        if writer.rows != len(wanted):
            raise InputError(
                f"{name} lists {len(wanted):,} passages, of which the corpus has {writer.rows:,}; make it again",
                path=release.path,
            )
        draft.stats["collections"] = {_CORPUS: lengths.summary()}
        main, english = SETS["main"], SETS["crosslingual"]
        kept = {main.queries, main.qrels, *main.joined.values(), english.queries, *english.joined.values()}
        for config, split in release.splits():
            if split in splits and config in kept:
                table = release.table(config, split)
                if "corpus-id" in table.column_names:  # pairs that people refuted need not be in the sample
                    table = table.filter(pc.is_in(table["corpus-id"], wanted))
                draft.write(config, split, [table])
    return {"passages": len(wanted), "splits": splits}
