"""Draw nested samples of the collection, and write extracts of a release.

Every passage has a level and a lot, a random number. A sample of N passages has the N lowest passages by (level, lot),
so smaller samples are parts of larger samples. Of 6 passages, where a run ranks C first and D second:

    passage            A     B     C     D     E     F
    in a judgment      yes   no    no    no    no    no
    level, random      0     max   max   max   max   max     positives first, then passages at random
    level, -hard       0     max   1     2     max   max     positives, then by the best rank in any run, then at random
"""

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.errors import InputError
from builders.core.progress import show_progress, slices_with_progress
from builders.core.results import Report, Table
from builders.core.sampling import draw_sample, random_lots, size_name
from builders.release.answer_records import renew_answers
from builders.store.draft import Draft, describe_files, draft_release
from builders.store.judgments import Judgments, read_judged, texts_of_judged
from builders.store.layout import IDS, SAMPLE, SETS, STRESS, STRESS_KINDS
from builders.store.manifest import read_stats
from builders.store.reader import Release
from builders.store.rejudge import write_judged_stats
from builders.store.runs import Run, expect_run_file
from builders.store.table3 import LengthCounter

Levels = npt.NDArray[np.int64]  # level of each passage; a sample takes the lowest levels first
_IN_NO_RUN = np.iinfo(np.int64).max  # the level of passages that are neither positives nor in a run

_CORPUS = "corpus"
_IDS_PER_SLICE = 1 << 16
NANO_QUERIES = 200
NANO_PASSAGES = 10_000


def samples_report(sample_rows: Sequence[Mapping[str, Any]]) -> Report:
    """Return the rows of :func:`write_samples` as a report. ``hard`` of a row is None if no run was used."""
    lines = []
    cells = []
    for row in sample_rows:
        line = f"{row['config']}: {row['passages']:,} passages, {row['positives']:,} positives"
        if row["hard"] is not None:
            line += f", {row['hard']:,} that the runs rank high"
        lines.append(line)
        splits = " ".join(row["split"])
        cells.append([row["config"], row["passages"], row["positives"], row["hard"], splits])
    table = Table(("config", "passages", "positives", "hard", "split"), cells)
    return Report(sample_rows, "\n".join(lines), [table])


def nano_report(figures: Mapping[str, Any], out_path: Path) -> Report:
    """Return the figures of :func:`write_nano` as a report."""
    counts = ", ".join(f"{figures[name]:,} {name}" for name in ("queries", "passages", "judged", "hard"))
    table = Table(list(figures), [list(figures.values())])
    return Report(figures, f"{out_path}: {counts}", [table])


def extract_report(figures: Mapping[str, Any], out_path: Path) -> Report:
    """Return the figures of :func:`write_extract` as a report."""
    splits = ", ".join(figures["splits"])
    text = f"{out_path}: {figures['passages']:,} passages, the queries of {splits}"
    table = Table(("splits", "passages"), [[splits, figures["passages"]]])
    return Report(figures, text, [table])


def write_samples(
    release: Release,
    out_path: Path,
    *,
    sizes: Sequence[int],
    splits: Sequence[str],
    hard_runs: Sequence[Run],
    seed: int,
) -> list[dict[str, Any]]:
    """Write the ``sample-*`` configs into a copy of ``release``. Return one row of figures for each config.

    Args:
        release: the release.
        out_path: release directory to write.
        sizes: numbers of passages, ascending.
        splits: splits whose positives are in every sample.
        hard_runs: runs whose best hits are in the samples ``-hard``.
        seed: seed of the draw.

    Raises:
        InputError: the release has no positive in ``splits``, the sizes do not fit its numbers of passages, or a run
            has no query of ``splits`` or an unknown passage.
    """
    passage_ids = _read_passage_ids(release)
    passage_lots = _draw_lots(passage_ids, seed)
    query_ids, positive_levels = _read_positives(release, splits)
    positive_count = len(positive_levels)
    smallest = sizes[0]
    largest = sizes[-1]
    if not positive_levels or smallest < positive_count or largest >= len(passage_ids):
        raise InputError(
            f"has {positive_count:,} positives in qrels/{'+'.join(splits)} and {len(passage_ids):,} passages;"
            f" expected at least one positive, and positives <= --sizes < passages, found {smallest:,} to {largest:,}",
            path=release.path,
        )

    # Each kind of sample has its suffix in the config's name.
    levels_by_suffix = {"": _levels(passage_ids, positive_levels, str(release.path))}
    if hard_runs:
        # The right side wins, so positives keep level 0.
        hard_levels = _best_ranks(hard_runs, query_ids) | positive_levels
        levels_by_suffix["-hard"] = _levels(passage_ids, hard_levels, _name_runs(hard_runs))

    options = {"sizes": list(sizes), "split": list(splits), "seed": seed}
    build = {"verb": "samples", "options": options, "sources": _describe_runs(hard_runs)}
    rows = []
    with draft_release(out_path, build, release) as draft:
        _drop_samples(draft, release)
        for suffix, levels in levels_by_suffix.items():
            order = np.lexsort((passage_lots, levels))  # by level, then by lot
            for size in sizes:
                config = f"{SAMPLE}{size_name(size)}{suffix}"
                sample_rows = np.sort(order[:size])  # the corpus's order
                _write_sample(draft, config, passage_ids, sample_rows)
                row = {
                    "config": config,
                    "passages": size,
                    "positives": positive_count,
                    "hard": _count_hard(levels[sample_rows]) if suffix else None,
                    "split": list(splits),
                }
                rows.append(row)
        draft.stats["samples"] = {row["config"]: row for row in rows}
    return rows


def _drop_samples(draft: Draft, release: Release) -> None:
    """Remove all earlier samples, which may have other sizes or seeds."""
    earlier_configs = {config for config, _ in release.splits() if config.startswith(SAMPLE)}
    for config in earlier_configs:
        draft.drop(config)


def _write_sample(draft: Draft, config: str, passage_ids: pa.Array, sample_rows: npt.NDArray[np.int64]) -> None:
    """Write the config of a sample: the ids in the rows ``sample_rows`` of the corpus."""
    sample_ids = passage_ids.take(pa.array(sample_rows))
    draft.write(config, _CORPUS, [pa.table([sample_ids], schema=IDS)])


def _read_positives(release: Release, splits: Sequence[str]) -> tuple[set[str], dict[str, int]]:
    """Return the judged queries of the splits, and passage -> level for the positives, which have level 0.

    Raises :class:`InputError` for a split without labels.
    """
    query_ids: set[str] = set()
    positive_levels: dict[str, int] = {}
    for split in splits:
        release.shards("qrels", split)  # raises the error; read_judged would return no judgments
        for query_id, relevance in read_judged(release, "qrels", split).items():
            query_ids.add(query_id)
            for passage_id, grade in relevance.items():
                if grade > 0:
                    positive_levels[passage_id] = 0
    return query_ids, positive_levels


def _read_passage_ids(release: Release) -> pa.Array:
    return release.table(_CORPUS, _CORPUS, ["_id"])["_id"].combine_chunks()


def _draw_lots(passage_ids: pa.Array, seed: int) -> npt.NDArray[np.uint64]:
    """Return a random number for each passage, which depends only on ``seed`` and the passage's id."""

    def ids_in_slices() -> Iterator[str]:
        # Slices, because a list of all ids as Python strings would need a gigabyte.
        for ids_slice in slices_with_progress(len(passage_ids), _IDS_PER_SLICE, unit="passage", label="draw"):
            yield from passage_ids[ids_slice].to_pylist()

    return random_lots(ids_in_slices(), seed, len(passage_ids))


def _levels(passage_ids: pa.Array, level_by_id: Mapping[str, int], error_source: str) -> Levels:
    """Return every passage's level. Passages that are not in ``level_by_id`` have the level ``_IN_NO_RUN``.

    Raises :class:`InputError` if ``level_by_id`` has a passage that is not in the corpus. ``error_source`` names the
    release or the runs from which ``level_by_id`` was made.
    """
    ids_with_level = pa.array(list(level_by_id), pa.string())
    has_level = pc.is_in(passage_ids, ids_with_level).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(has_level)
    row_ids = passage_ids.take(pa.array(rows)).to_pylist()
    unknown_ids = level_by_id.keys() - set(row_ids)
    if unknown_ids:
        raise InputError(f"has a passage {min(unknown_ids)!r} that the release's corpus lacks", path=error_source)
    levels = np.full(len(passage_ids), _IN_NO_RUN, np.int64)
    levels[rows] = [level_by_id[passage_id] for passage_id in row_ids]
    return levels


def _count_hard(levels: Levels) -> int:
    """Count the passages that a run ranks and that are not positives."""
    return int(((levels > 0) & (levels < _IN_NO_RUN)).sum())


def _name_runs(hard_runs: Sequence[Run]) -> str:
    return ", ".join(str(run.path) for run in hard_runs)


def _describe_runs(hard_runs: Sequence[Run]) -> list[dict[str, Any]]:
    return describe_files((run.path.name, expect_run_file(run)) for run in hard_runs)


def _best_ranks(hard_runs: Sequence[Run], query_ids: Container[str]) -> dict[str, int]:
    """Return passage -> its best rank, from 1, for any of the queries in any run.

    Queries of the runs that are not in ``query_ids`` are ignored. Raises :class:`InputError` for a run without any
    query of ``query_ids``.
    """
    best_ranks: dict[str, int] = {}
    for run in hard_runs:
        rankings = [hits for query_id, hits in run.hits.items() if query_id in query_ids]
        if not rankings:
            raise InputError("has no query of --split; expected a run of these queries", path=run.path)
        for hits in rankings:
            for rank, (passage_id, _) in enumerate(hits, 1):
                best_ranks[passage_id] = min(rank, best_ranks.get(passage_id, rank))
    return best_ranks


def write_extract(release: Release, sample_name: str, out_path: Path) -> dict[str, Any]:
    """Write a release of a sample's passages, and of the splits whose positives are in every sample.

    ``sample_name`` is a config of `add samples`, for example sample-10K. Returns ``passages`` (their number) and
    ``splits``.
    """
    # stats.json has these splits.
    release_stats = read_stats(release.path)
    passage_ids = release.table(sample_name, _CORPUS, ["_id"])["_id"].to_pylist()
    if sample_name not in release_stats.get("samples", {}):
        raise InputError(f"{sample_name} is not in stats.json; expected a config of `add samples`", path=release.path)
    splits = release_stats["samples"][sample_name]["split"]
    judged_by_split = {split: read_judged(release, "qrels", split) for split in splits}
    # The extract has all English queries of its splits, so their figures stay right.
    english_figures = {}
    for split, figures in release_stats.get("english", {}).items():
        if split in splits:
            english_figures[split] = figures
    build = {"verb": "samples", "options": {"extract": sample_name, "split": splits}, "sources": []}
    with draft_release(out_path, build) as draft:
        if english_figures:
            draft.stats["english"] = english_figures
        _write_part(draft, release, passage_ids, judged_by_split)
    return {"passages": len(passage_ids), "splits": splits}


def write_nano(
    release: Release,
    out_path: Path,
    *,
    split: str,
    hard_runs: Sequence[Run],
    seed: int,
) -> dict[str, Any]:
    """Write a release of 200 drawn queries of ``split`` and 10,000 passages. Return its figures.

    Every query has a positive. The passages are all judged passages of the queries, then the best hits of the runs for
    the queries, then random passages. If the release has fewer queries or passages, all are used.

    Raises :class:`InputError` if the release has no labels of ``split`` or lacks a judged passage, or if a run has none
    of the drawn queries or an unknown passage.
    """
    release.shards("qrels", split)  # raises InputError for a split without labels
    answerable: dict[str, dict[str, int]] = {}  # queries with a positive
    for query_id, relevance in read_judged(release, "qrels", split).items():
        if max(relevance.values()) > 0:
            answerable[query_id] = relevance
    nano_queries = draw_sample(answerable, NANO_QUERIES, seed)
    # The draw has no order. The queries stay in the order of the qrels.
    judged = {query_id: relevance for query_id, relevance in answerable.items() if query_id in nano_queries}

    run_levels = _best_ranks(hard_runs, nano_queries)
    judged_levels: dict[str, int] = {}
    for relevance in judged.values():
        judged_levels |= dict.fromkeys(relevance, 0)
    passage_ids = _read_passage_ids(release)
    passage_lots = _draw_lots(passage_ids, seed)
    # The error of an unknown passage names the release or the runs, so each has its own levels.
    levels_by_judgment = _levels(passage_ids, judged_levels, str(release.path))
    levels_by_run = _levels(passage_ids, run_levels, _name_runs(hard_runs))
    # Judged passages come first, also if a run ranks them.
    levels = np.minimum(levels_by_judgment, levels_by_run)
    # All judged passages are kept, even if they are more than the usual number.
    passage_count = max(NANO_PASSAGES, len(judged_levels))
    # Sorted rows keep the order of the corpus.
    nano_rows = np.sort(np.lexsort((passage_lots, levels))[:passage_count])

    figures = {
        "split": split,
        "queries": len(judged),
        "passages": len(nano_rows),
        "judged": int((levels[nano_rows] == 0).sum()),
        "hard": _count_hard(levels[nano_rows]),
    }
    options = {"nano": True, "split": split, "seed": seed}
    build = {"verb": "samples", "options": options, "sources": _describe_runs(hard_runs)}
    with draft_release(out_path, build) as draft:
        draft.stats["nano"] = figures
        nano_passages = passage_ids.take(pa.array(nano_rows)).to_pylist()
        _write_part(draft, release, nano_passages, {split: judged}, nano_queries)
    return figures


def _write_part(
    draft: Draft,
    release: Release,
    passage_ids: Sequence[str],
    judged_by_split: Mapping[str, Judgments],
    part_queries: Collection[str] | None = None,
) -> None:
    """Write a part of ``release`` into ``draft``: some passages, and the splits of ``judged_by_split``.

    ``judged_by_split`` has the judgments of the part's queries. ``part_queries`` are the ids of these queries, or None
    for all queries of the splits. A part with selected queries has no cross-lingual configs. Perturbed queries are
    copied with their originals.
    """
    _write_passages(draft, release, passage_ids)
    part_passages = frozenset(passage_ids)
    main = SETS["main"]
    crosslingual = SETS["crosslingual"]
    # Config -> its column with the ids of main queries, by which rows are selected.
    query_columns = {main.queries: "_id", main.qrels: "query-id"}
    for config in main.joined.values():
        query_columns[config] = "query_id"
    for kind in STRESS_KINDS:
        stress_set = SETS[f"{STRESS}{kind}"]
        query_columns[stress_set.queries] = stress_set.original_column
    # English queries are copied with their Chinese queries, but a part with few queries has none.
    part_configs = set(query_columns)
    if part_queries is None:
        part_configs |= {crosslingual.queries, *crosslingual.joined.values()}
    for config, split in release.splits():
        if split not in judged_by_split or config not in part_configs:
            continue
        table = release.table(config, split)
        if part_queries is not None:
            query_ids = table[query_columns[config]]
            table = table.filter(pc.is_in(query_ids, pa.array(sorted(part_queries))))
        if config == main.qrels:  # the sample may lack passages that were judged 0
            table = table.filter(pc.is_in(table["corpus-id"], pa.array(passage_ids)))
        draft.write(config, split, [table])

    for split, judged in judged_by_split.items():
        part_judged: dict[str, dict[str, int]] = {}
        for query_id, relevance in judged.items():
            part_judged[query_id] = {
                passage_id: grade for passage_id, grade in relevance.items() if passage_id in part_passages
            }
        # Answers and statistics are computed from the judgments that the part has.
        renew_answers(draft, release, split, part_judged, part_queries)
        query_texts = release.texts(main.queries, split, part_queries)
        passage_texts = texts_of_judged(release, part_judged)
        write_judged_stats(draft, split, list(query_texts.values()), part_judged, passage_texts)


def _write_passages(draft: Draft, release: Release, passage_ids: Sequence[str]) -> None:
    """Write the passages with these ids, and their length statistics. Config and split are both named ``corpus``."""
    writer = draft.writer(_CORPUS, _CORPUS)
    lengths = LengthCounter()
    with show_progress(total=len(passage_ids), unit="passage", label="extract") as bar:
        for table in release.rows_with(_CORPUS, _CORPUS, "_id", frozenset(passage_ids)):
            writer.write(table)
            lengths.add(pc.utf8_length(table["text"]).to_numpy())
            bar.update(table.num_rows)
    draft.stats["collections"] = {_CORPUS: lengths.summary()}
