"""The samples of a collection: which passages come first, and how many of them each sample has."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.common.command import InputError
from builders.common.sampling import lots
from builders.store.draft import check_release_output, describe_files, draft_release
from builders.store.judgments import read_judged
from builders.store.layout import IDS, SAMPLE, is_config
from builders.store.reader import Release
from builders.store.runs import read_run

Levels = npt.NDArray[np.int64]  # of each passage: those of level 0 come first

_CORPUS = "corpus"
_AT_ONCE = 1 << 16


def size_name(passages: int) -> str:
    """How a size stands in a config's name: ``1M``, ``10K``, ``1500``."""
    for letter, times in (("M", 1_000_000), ("K", 1_000)):
        if passages % times == 0:
            return f"{passages // times}{letter}"
    return str(passages)


def sample_name(text: str) -> str:
    """``text``; :class:`InputError` where no sample has such a name."""
    if not (text.startswith(SAMPLE) and is_config(text)):
        raise InputError(f"expected a sample, as sample-10K or sample-10K-hard, found {text!r}")
    return text


def write_samples(release: Release, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Write the ``sample-*`` configs into a copy of ``release``; returns a row of figures each.

    Raises :class:`InputError` for a size that is smaller than the positives or no smaller than the collection, a split
    without positives, and a run of other queries or passages.
    """
    check_release_output(args.out)
    ids = release.table(_CORPUS, _CORPUS, ["_id"])["_id"].combine_chunks()
    judged = _positives(release, args.split)
    levels = np.where(_holding(ids, {each for own in judged.values() for each in own}, release.path), 0, 1)
    positives = int((levels == 0).sum())
    sizes = sorted(set(args.sizes))
    _check_sizes(sizes, positives, len(ids), release)
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
        draft.stats["samples"] = {}
        for kind, level in kinds.items():
            order = np.lexsort((lot, level))
            rest = int(level.max())  # of what no run ranks
            for each in sizes:
                chosen = np.sort(order[:each])
                name = f"{SAMPLE}{size_name(each)}{kind}"
                draft.write(name, _CORPUS, [pa.table([ids.take(pa.array(chosen))], schema=IDS)])
                hard = int(((level[chosen] > 0) & (level[chosen] < rest)).sum()) if kind else None
                row = {"config": name, "passages": each, "positives": positives, "hard": hard, "split": args.split}
                draft.stats["samples"][name] = row
                rows.append(row)
    return rows


def _positives(release: Release, splits: Sequence[str]) -> dict[str, list[str]]:
    """The positive passages of every query of some splits."""
    found: dict[str, list[str]] = {}
    for split in splits:
        release.shards("qrels", split)  # raises: no labels
        for query, scores in read_judged(release, "qrels", split).items():
            found.setdefault(query, []).extend(passage for passage, score in scores.items() if score > 0)
    if not any(found.values()):
        raise InputError(f"has no positive passages in qrels/{'+'.join(splits)}", path=release.path)
    return found


def _holding(ids: pa.Array, wanted: set[str], path: Path) -> npt.NDArray[np.bool_]:
    """Which of ``ids`` are wanted, as booleans; :class:`InputError` naming ``path`` where one is none of them."""
    from builders.common.command import InputError

    found: npt.NDArray[np.bool_] = pc.is_in(ids, pa.array(sorted(wanted), pa.string())).to_numpy(zero_copy_only=False)
    if len(missing := wanted - set(ids.filter(pa.array(found)).to_pylist())):
        raise InputError(f"names a passage {min(missing)!r} that the release's corpus lacks", path=path)
    return found


def _ranks(runs: Sequence[Path], judged: dict[str, list[str]], ids: pa.Array, levels: Levels) -> Levels:
    """Each passage's level: 0 of a positive, else the best rank that a run gives it for a query, else one more."""
    from builders.common.command import InputError

    best: dict[str, int] = {}
    for path in runs:
        hits = {query: own for query, own in read_run(path).hits.items() if query in judged}
        if not hits:
            raise InputError("has none of the queries whose positives are in the samples", path=path)
        own: dict[str, int] = {}
        for ranked in hits.values():
            for rank, (passage, _) in enumerate(ranked, 1):
                own[passage] = min(rank, own.get(passage, rank))
        _holding(ids, set(own), path)
        for passage, rank in own.items():
            best[passage] = min(rank, best.get(passage, rank))
    found = np.full(len(ids), 1 + max(best.values()), np.int64)
    where = np.flatnonzero(_holding(ids, set(best), runs[0]))
    found[where] = [best[passage] for passage in ids.take(where).to_pylist()]
    found[levels == 0] = 0
    return found


def _check_sizes(sizes: Sequence[int], positives: int, passages: int, release: Release) -> None:
    if sizes[0] < positives:
        raise InputError(
            f"a sample of {sizes[0]:,} passages does not hold the {positives:,} positives", path=release.path
        )
    if sizes[-1] >= passages:
        raise InputError(
            f"has {passages:,} passages: expected samples of fewer, found {sizes[-1]:,}", path=release.path
        )
