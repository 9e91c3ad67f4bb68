"""Draw nested samples of the collection, and write extracts of a release."""

from collections.abc import Collection, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.errors import InputError
from builders.core.progress import progress
from builders.core.results import Report, Table
from builders.core.sampling import draw, lots, size_name
from builders.release.answer_records import renew_answers
from builders.store.draft import Draft, describe_files, draft_release
from builders.store.judgments import Judged, read_judged, texts_of_judged
from builders.store.layout import IDS, SAMPLE, SETS
from builders.store.manifest import read_stats
from builders.store.reader import Release
from builders.store.rejudge import count_judged
from builders.store.runs import Run, expect_run_file
from builders.store.table3 import LengthCounter

Levels = npt.NDArray[np.int64]  # level of each passage; a sample takes the lowest levels first
_IN_NO_RUN = np.iinfo(np.int64).max  # the level of passages that are neither positives nor in a run

_CORPUS = "corpus"
_AT_ONCE = 1 << 16
NANO_QUERIES, NANO_PASSAGES = 200, 10_000


def samples_report(rows: Sequence[Mapping[str, Any]]) -> Report:
    """Return the rows of :func:`write_samples` as a report."""
    lines, cells = [], []
    for row in rows:
        line = f"{row['config']}: {row['passages']:,} passages, {row['positives']:,} positives"
        if row["hard"] is not None:
            line += f", {row['hard']:,} that the runs rank high"
        lines.append(line)
        cells.append([row["config"], row["passages"], row["positives"], row["hard"], " ".join(row["split"])])
    table = Table(("config", "passages", "positives", "hard", "split"), cells)
    return Report(rows, "\n".join(lines), [table])


def nano_report(figures: Mapping[str, Any], out: Path) -> Report:
    """Return the figures of :func:`write_nano` as a report."""
    counts = ", ".join(f"{figures[name]:,} {name}" for name in ("queries", "passages", "judged", "hard"))
    return Report(figures, f"{out}: {counts}", [Table([*figures], [[*figures.values()]])])


def extract_report(figures: Mapping[str, Any], out: Path) -> Report:
    """Return the figures of :func:`write_extract` as a report."""
    splits = ", ".join(figures["splits"])
    text = f"{out}: {figures['passages']:,} passages, the queries of {splits}"
    return Report(figures, text, [Table(("splits", "passages"), [[splits, figures["passages"]]])])


def write_samples(
    release: Release,
    out: Path,
    *,
    sizes: Sequence[int],
    splits: Sequence[str],
    hard_runs: Sequence[Run],
    seed: int,
) -> list[dict[str, Any]]:
    """Write the ``sample-*`` configs into a copy of ``release``. Return one row of figures for each config.

    Args:
        release: the release.
        out: release directory to write.
        sizes: numbers of passages, ascending.
        splits: splits whose positives are in every sample.
        hard_runs: runs whose best hits are in the samples ``-hard``.
        seed: seed of the draw.
    """
    ids, lot = _ids_and_lots(release, seed)
    queries: set[str] = set()
    positives: dict[str, int] = {}  # positives have level 0
    for split in splits:
        release.shards("qrels", split)  # raises InputError for a split without labels
        for query, scores in read_judged(release, "qrels", split).items():
            queries.add(query)
            positives |= {passage: 0 for passage, score in scores.items() if score > 0}
    if not positives or sizes[0] < len(positives) or sizes[-1] >= len(ids):
        held = f"has {len(positives):,} positives in qrels/{'+'.join(splits)} and {len(ids):,} passages"
        sizes_given = f"found {sizes[0]:,} to {sizes[-1]:,}"
        raise InputError(f"{held}; expected positives <= --sizes < passages, {sizes_given}", path=release.path)
    kinds = {"": _levels(ids, positives, str(release.path))}
    if hard_runs:
        ranks = _best_ranks(hard_runs, queries)
        kinds["-hard"] = _levels(ids, ranks | positives, _name_runs(hard_runs))
    options = {"sizes": [*sizes], "split": [*splits], "seed": seed}
    sources = describe_files((run.path.name, expect_run_file(run)) for run in hard_runs)
    rows = []
    with draft_release(out, {"verb": "samples", "options": options, "sources": sources}, release) as draft:
        for config in {config for config, _ in release.splits() if config.startswith(SAMPLE)}:
            draft.drop(config)
        for kind, level in kinds.items():
            order = np.lexsort((lot, level))
            for size in sizes:
                chosen, name = np.sort(order[:size]), f"{SAMPLE}{size_name(size)}{kind}"
                draft.write(name, _CORPUS, [pa.table([ids.take(pa.array(chosen))], schema=IDS)])
                hard = _hard(level[chosen]) if kind else None
                counts = {"passages": size, "positives": len(positives), "hard": hard}
                rows.append({"config": name, **counts, "split": [*splits]})
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


def _name_runs(runs: Sequence[Run]) -> str:
    return ", ".join(str(run.path) for run in runs)


def _best_ranks(runs: Sequence[Run], queries: Container[str]) -> dict[str, int]:
    best: dict[str, int] = {}
    for run in runs:
        hits = [ranked for query, ranked in run.hits.items() if query in queries]
        if not hits:
            raise InputError("has no query of --split; expected a run of these queries", path=run.path)
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


def write_nano(release: Release, out: Path, *, split: str, hard_runs: Sequence[Run], seed: int) -> dict[str, Any]:
    """Write a release of 200 queries and 10,000 passages. Return its figures.

    The passages are all judged passages of the queries, then the best hits of the runs for the queries, then random
    passages. If the release has fewer queries or passages, all are used.
    """
    release.shards("qrels", split)  # raises InputError for a split without labels
    every = {query: own for query, own in read_judged(release, "qrels", split).items() if max(own.values()) > 0}
    drawn = draw(every, NANO_QUERIES, seed)
    judged = {query: own for query, own in every.items() if query in drawn}
    ranks = _best_ranks(hard_runs, drawn)
    for passages in judged.values():
        ranks |= dict.fromkeys(passages, 0)
    judged_count = sum(rank == 0 for rank in ranks.values())
    ids, lot = _ids_and_lots(release, seed)
    level = _levels(ids, ranks, _name_runs(hard_runs))
    chosen = np.sort(np.lexsort((lot, level))[: max(NANO_PASSAGES, judged_count)])
    figures = {"split": split, "queries": len(judged), "passages": len(chosen)}
    figures |= {"judged": int((level[chosen] == 0).sum()), "hard": _hard(level[chosen])}
    sources = describe_files((run.path.name, expect_run_file(run)) for run in hard_runs)
    options = {"nano": True, "split": split, "seed": seed}
    with draft_release(out, {"verb": "samples", "options": options, "sources": sources}) as draft:
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
