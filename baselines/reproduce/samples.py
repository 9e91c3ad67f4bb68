"""``reproduce --samples``: the same systems on samples of the collection and on the whole.

Each system keeps its models and embeddings; only what is searched changes. Fewer passages stand in the way of the
positives, so figures rise, and not all by as much: the order of the systems moves. How far is said by Kendall's tau
(tau-b) against the order on the whole, and by the pairs of systems that are surely apart there (a 95 % interval of the
paired difference without 0) and keep their order.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from baselines.measure.measures import PAPER, paper_by_query
from baselines.measure.qrels import Qrels, release_qrels
from baselines.measure.significance import of_means
from baselines.reproduce.commands import command_lines, fill, run_plan
from baselines.reproduce.matrix import Matrix, Row, read_matrix
from baselines.reproduce.rows import runnable
from baselines.reproduce.settings import Settings, read_settings
from builders.common.command import InputError
from builders.common.tables import text_table
from builders.store.layout import SAMPLE
from builders.store.manifest import read_stats
from builders.store.reader import Release, open_release
from builders.store.runs import read_run

WHOLE = "whole"
_SEARCHING = ("bm25", "search")  # verbs with --sample
_AFTER = ("rerank", "fuse")  # those that read their runs
_WORD = re.compile(r"\{([^{}]*)\}")
Values = npt.NDArray[np.float64]  # (queries, measures of PAPER)


def reproduce_samples(args: argparse.Namespace) -> None:
    """Run what is missing, and print the report.

    Raises :class:`InputError` where the release has no samples of the split's queries, or no system runs on it.
    """
    release = open_release(args.release)
    samples = _samples(release, args.split)
    matrix = read_matrix(args.matrix) if args.matrix else read_matrix()
    systems = _systems(matrix, release, args)
    extended, on = with_samples(matrix, [row.step for row in systems], samples)
    rows = [structs.replace(row, step=on[row.step, where]) for row in systems for where in (WHOLE, *samples)]
    plan = extended.plan(rows, fill(args), read_settings(args.settings) if args.settings else Settings())
    if args.dry_run:
        print(command_lines(plan, args))
        return
    run_plan(plan, release, args)
    qrels = release_qrels(release, args.split)
    values = {
        (row.name, where): _values(plan[on[row.step, where]].output, qrels)
        for row in systems
        for where in (WHOLE, *samples)
    }
    report = _report(release, args.split, systems, samples, values)
    print(json.dumps(report, ensure_ascii=False, indent=1) if args.format == "json" else text(report))


def _samples(release: Release, split: str) -> dict[str, int]:
    """The samples of a release that hold a split's positives, and their passages: the smallest first."""
    found = read_stats(release.path).get("samples", {})
    have = {config for config, _ in release.splits() if config.startswith(SAMPLE)}
    sizes = {name: row["passages"] for name, row in found.items() if name in have and split in row["split"]}
    if not sizes:
        raise InputError(
            f"has no samples of the collection with the positives of {split}; `python -m builders samples` adds some",
            path=release.path,
        )
    return dict(sorted(sizes.items(), key=lambda each: (each[1], each[0])))


def _systems(matrix: Matrix, release: Release, args: argparse.Namespace) -> list[Row]:
    """The rows whose run is of the main set's queries of the split: one a step."""
    chosen = [
        row
        for row in matrix.select(args.table, args.row, None)
        if row.set == "main" and row.split in ("", args.split) and not (row.queries or row.qrels or row.figure)
    ]
    chosen = list({row.step: row for row in reversed(chosen)}.values())[::-1]
    if not chosen:
        raise InputError("--samples: expected rows of the main set", path=args.release)
    asked = bool(args.table or args.row)
    return runnable(chosen, release, args.split, scratch=args.scratch, asked=asked, named=args.row is not None)


def with_samples(
    matrix: Matrix, steps: Sequence[str], samples: Sequence[str] | Mapping[str, Any]
) -> tuple[Matrix, dict[tuple[str, str], str]]:
    """The matrix with steps that do on each sample what some steps do on the whole, and the name of each of them.

    A step searches a sample where it, or the run that it reads, is a search; models and embeddings stay.
    """
    added: dict[str, str] = {}

    def on_sample(step: str, sample: str) -> str:
        words = matrix.steps[step].split(" --out {out}/")
        verb = words[0].split()[1]
        if verb not in (*_SEARCHING, *_AFTER):
            return step
        name = f"{step}/{sample}"
        if name not in added:
            used = {other: on_sample(other, sample) for other in _WORD.findall(words[0]) if other in matrix.steps}
            before = _WORD.sub(lambda found: f"{{{used.get(found[1], found[1])}}}", words[0])
            before += f" --sample {sample}" * (verb in _SEARCHING)
            added[name] = f"{before} --out {{out}}/{sample}/{words[1]}"
        return name

    names = {(step, sample): on_sample(step, sample) for step in steps for sample in samples}
    names |= {(step, WHOLE): step for step in steps}
    return structs.replace(matrix, steps=matrix.steps | added), names


def _values(run: Path, qrels: Qrels) -> Values:
    """Every query's values of the paper's measures."""
    return np.array(paper_by_query(read_run(run).rankings, qrels))


def _report(
    release: Release,
    split: str,
    systems: Sequence[Row],
    samples: Mapping[str, int],
    values: Mapping[tuple[str, str], Values],
) -> dict[str, Any]:
    places = {**samples, WHOLE: release.rows("corpus", "corpus")}
    figures = {
        row.name: {
            where: {
                name: round(100 * float(mean), 2)
                for name, mean in zip(PAPER, values[row.name, where].mean(axis=0), strict=True)
            }
            for where in places
        }
        for row in systems
    }
    agreement = []
    for column, name in enumerate(PAPER):
        whole = [values[row.name, WHOLE][:, column] for row in systems]
        apart = pairs_apart(whole)
        for sample, passages in samples.items():
            ours = [values[row.name, sample][:, column] for row in systems]
            about = {"sample": sample, "passages": passages, "metric": name}
            agreement.append({**about, **agreement_of(ours, whole, apart)})
    return {
        "release": str(release.path),
        "split": split,
        "queries": len(next(iter(values.values()))),
        "passages": places,
        "unit": "percent",
        "systems": [{"row": row.name, "title": row.title, "figures": figures[row.name]} for row in systems],
        "agreement": agreement,
    }


def pairs_apart(whole: Sequence[Values]) -> list[tuple[int, int]]:
    """The pairs of systems, by number, whose 95 % interval of the paired difference is without 0: values by query."""
    pairs = list(combinations(range(len(whole)), 2))
    sure = of_means(np.column_stack([whole[a] - whole[b] for a, b in pairs])) if pairs else []
    return [pair for pair, (low, high) in zip(pairs, sure, strict=True) if low > 0 or high < 0]


def agreement_of(ours: Sequence[Values], whole: Sequence[Values], apart: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """How a sample orders systems beside the whole, and how much higher their figures are there, in percent points.

    ``ours`` and ``whole`` are the systems' values by query; ``apart``: :func:`pairs_apart`. ``tau`` is None where there
    is no order: of one system, or of ties.
    """
    from scipy.stats import kendalltau

    mine, theirs = ([float(each.mean()) for each in some] for some in (ours, whole))
    rises = [100 * (a - b) for a, b in zip(mine, theirs, strict=True)]
    tau = float(kendalltau(mine, theirs).statistic) if len(ours) > 1 else float("nan")
    return {
        "tau": None if np.isnan(tau) else round(tau, 4),
        "pairs_apart": len(apart),
        "kept": sum((mine[a] - mine[b]) * (theirs[a] - theirs[b]) > 0 for a, b in apart),
        "mean_rise": round(float(np.mean(rises)), 2),
        "least_rise": round(min(rises), 2),
        "largest_rise": round(max(rises), 2),
    }


def text(report: Mapping[str, Any]) -> str:
    """The report as a table a measure: systems down, samples and the whole across."""
    places = report["passages"]
    lines = [
        f"release {report['release']}, split {report['split']}, {report['queries']:,} queries with positives;"
        f" percent; the whole: {places[WHOLE]:,} passages"
    ]
    for name in PAPER:
        rows = [
            [system["title"], *(f"{system['figures'][where][name]:.2f}" for where in places)]
            for system in sorted(report["systems"], key=lambda each: -each["figures"][WHOLE][name])
        ]
        own = [each for each in report["agreement"] if each["metric"] == name]
        rows.append(["above the whole, mean", *(f"{each['mean_rise']:+.2f}" for each in own), ""])
        rows.append(["Kendall's tau", *("-" if each["tau"] is None else f"{each['tau']:.2f}" for each in own), ""])
        rows.append(["pairs apart, in order", *(f"{each['kept']}/{each['pairs_apart']}" for each in own), ""])
        lines += ["", text_table([name, *places], rows)]
    return "\n".join(lines)
