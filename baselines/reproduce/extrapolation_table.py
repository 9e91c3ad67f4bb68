"""``reproduce --extrapolation``: compare scores on queries near the training queries and far from them.

The method is that of extrapolate-eval (Zhan et al., arXiv 2204.11447). ``builders add`` makes the configs.
ReSTrain trains every system twice: on questions near the test queries (interpolation) and on other questions
(extrapolation). The two models are measured on the same test queries. ReSTTest divides the questions into buckets. It
trains every system once for each bucket, without the bucket's questions. Extrapolation is measured on the bucket's test
queries, interpolation on all other test queries. Scores are means over the buckets. BM25 learns from no questions, so
its gap shows how much harder the test queries of extrapolation are.
"""

import argparse
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from baselines.measure.measures import PAPER, paper_by_query
from baselines.measure.qrels import release_qrels
from baselines.measure.significance import LEVEL, RESAMPLES
from baselines.reproduce.matrix import WORD, Matrix, Row, Step, fill, read_matrix, runnable
from baselines.reproduce.step_settings import Settings, read_settings
from baselines.reproduce.steps import printed, run_plan
from baselines.train.recipe import read_recipe
from builders.core.errors import InputError
from builders.core.tables import print_result, text_table
from builders.store.manifest import read_stats
from builders.store.reader import Release, open_release
from builders.store.runs import read_run

ROWS = ("bm25", "de-bm25-neg", "ce-bm25-neg-on-bm25")  # measured by default
KINDS = ("interpolation", "extrapolation")
RESTTEST = "resttest"
_RESTRAIN = re.compile(r"(restrain-[^-]+)-interpolation")
Floats = npt.NDArray[np.float64]

# Two pairs, for interpolation and for extrapolation: (training config, (config of the test judgments, split)). If the
# config of the test judgments is empty, the judgments are the release's qrels.
Fold = tuple[tuple[str, tuple[str, str]], tuple[str, tuple[str, str]]]


def reproduce_extrapolation(args: argparse.Namespace) -> None:
    """Run the missing steps and print the report. Raises :class:`InputError` if the release lacks the sets."""
    release, matrix = open_release(args.release), read_matrix()
    sets = _sets(release, args.split, args.extrapolation)
    rows = [
        row
        for row in matrix.select(args.table, args.row)
        if row.set == "main"
        and not (row.split or row.queries or row.qrels or row.figure)
        and (args.table or args.row or row.name in ROWS)
    ]
    if not rows:
        raise InputError("--extrapolation: no row measures the main set; name another --row or --table")
    rows = runnable(rows, release, args)
    configs = list(dict.fromkeys(config for folds in sets.values() for fold in folds for config, _ in fold))
    extended, trained = trained_on(matrix, [row.step for row in rows], configs, fill(args)["variant"])
    every = [replace(row, step=trained[row.step, config]) for config in configs for row in rows]
    plan = extended.plan(every, fill(args), read_settings(args.settings) if args.settings else Settings())
    if args.dry_run:
        print(printed([step.command for step in plan.values()], args))
        return
    run_plan(plan, release, args)
    figures = []
    for (name, folds), row in itertools.product(sets.items(), rows):
        values = [[_values(release, plan[trained[row.step, config]], test) for config, test in fold] for fold in folds]
        figures += _figures(name, row, values)
    report = {"release": str(release.path), "split": args.split, "unit": "percent", "rows": figures}
    print_result(report, text(report), args.format)


def _sets(release: Release, split: str, asked: Sequence[str]) -> dict[str, list[Fold]]:
    """Return the release's folds for the split's queries, by the name of the set (``restrain-SIZE``, ``resttest``)."""
    stats, have = read_stats(release.path).get("extrapolation", {}), {config for config, _ in release.splits()}
    found: dict[str, list[Fold]] = {}
    buckets = []
    for config in sorted(have & set(stats), key=lambda name: [int(n) for n in re.findall(r"\d+", name)] or [0]):
        match, row = _RESTRAIN.fullmatch(config), stats[config]
        if match and f"{match[1]}-extrapolation" in have and split in row["test"].split("+"):
            found[match[1]] = [((config, ("", split)), (f"{match[1]}-extrapolation", ("", split)))]
        elif config.startswith(f"{RESTTEST}-"):
            buckets.append(((config, (config, KINDS[0])), (config, (config, KINDS[1]))))
    if buckets:
        found[RESTTEST] = buckets
    if not found or not {*asked} <= {*found}:
        raise InputError(
            f"has no {' and '.join(asked) or 'sets for interpolation and extrapolation'} of the {split} queries; it "
            f"has {', '.join(found) or 'none'}; `python -m builders add` makes these sets",
            path=release.path,
        )
    return {name: folds for name, folds in found.items() if not asked or name in asked}


def trained_on(
    matrix: Matrix, steps: Sequence[str], configs: Sequence[str], variant: str = ""
) -> tuple[Matrix, dict[tuple[str, str], str]]:
    """Repeat ``steps`` with each config's training questions, in a copy of the matrix.

    A training on questions is repeated, and so is every step that uses the checkpoint. Other steps are shared: BM25,
    masked language models, and the negatives of BM25. Returns the new matrix, and the names of the new steps by
    (step, config).
    """
    added: dict[str, str] = {}

    def of(step: str, config: str) -> str:
        head, out = matrix.steps[step].split(" --out {out}/")
        used = {word: of(word, config) for word in WORD.findall(head) if word in matrix.steps}
        words = head.split()
        learns = words[1] == "train" and read_recipe(words[2].replace("{variant}", variant)).model.kind != "mlm"
        if not learns and all(before == after for before, after in used.items()):
            return step
        name = f"{step}/{config}"
        head = WORD.sub(lambda found: f"{{{used.get(found[1], found[1])}}}", head)
        if learns:  # beside the other checkpoints, where recipes look for starting checkpoints
            added[name] = f"{head} --set data.set={config} --out {{out}}/{out}.{config}"
        else:
            added[name] = f"{head} --out {{out}}/{config}/{out}"
        return name

    names = {(step, config): of(step, config) for step in steps for config in configs}
    return replace(matrix, steps=matrix.steps | added), names


def _values(release: Release, step: Step, test: tuple[str, str]) -> dict[str, Floats]:
    """Return the paper's measures of every test query, by query id."""
    qrels = release_qrels(release, test[1], qrels=test[0])
    return dict(zip(qrels.positives, np.array(paper_by_query(read_run(step.output).rankings, qrels)), strict=True))


def _figures(name: str, row: Row, folds: Sequence[Sequence[Mapping[str, Floats]]]) -> list[dict[str, Any]]:
    """Return a system's scores for interpolation and extrapolation. A score is the mean of the folds' means."""
    near, far = (np.mean([np.mean(list(fold[kind].values()), axis=0) for fold in folds], axis=0) for kind in (0, 1))

    def percent(fraction: float) -> float:
        return round(100 * float(fraction), 2)

    return [
        {
            "test": name,
            "row": row.name,
            "title": row.title,
            "metric": metric,
            "interpolation": percent(interpolation),
            "extrapolation": percent(extrapolation),
            "gap": percent(extrapolation - interpolation),
            "gap_interval": [percent(low), percent(high)],
            "relative_gap": percent(extrapolation / interpolation - 1) if interpolation else None,
        }
        for metric, interpolation, extrapolation, low, high in zip(PAPER, near, far, *gap_interval(folds), strict=True)
    ]


def gap_interval(folds: Sequence[Sequence[Mapping[str, Floats]]], seed: int = 0) -> tuple[Floats, Floats]:
    """Return (low, high) of the gap's percentile bootstrap interval. Both arrays have the shape (measures,).

    The gap is extrapolation minus interpolation. Test queries are resampled with replacement, once for all folds. If a
    resample has no queries of a fold, this fold is skipped in the resample.
    """
    queries = sorted({query for fold in folds for kind in fold for query in kind})
    drawn = np.random.default_rng(seed).multinomial(len(queries), np.full(len(queries), 1 / len(queries)), RESAMPLES)
    place = {query: number for number, query in enumerate(queries)}
    means = []
    for kind in (0, 1):
        own = []
        for fold in folds:
            counts = drawn[:, [place[query] for query in fold[kind]]].astype(float)
            with np.errstate(invalid="ignore"):
                own.append(counts @ np.array(list(fold[kind].values())) / counts.sum(axis=1, keepdims=True))
        means.append(np.nanmean(own, axis=0))
    low, high = np.nanquantile(means[1] - means[0], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return low, high


def text(report: Mapping[str, Any]) -> str:
    """Return the report as text, with one table for each set."""
    lines = [f"release {report['release']}, split {report['split']}; percent; gap: extrapolation minus interpolation"]
    tables: dict[str, list[list[str]]] = {}
    for row in report["rows"]:
        relative = "-" if row["relative_gap"] is None else f"{row['relative_gap']:+.1f} %"
        ends = "{:+.1f} to {:+.1f}".format(*row["gap_interval"])
        cells = [f"{row['title']}: {row['metric']}", *(f"{row[kind]:.2f}" for kind in KINDS), f"{row['gap']:+.2f}"]
        tables.setdefault(row["test"], []).append([*cells, ends, relative])
    for name, body in tables.items():
        lines += ["", text_table([name, *KINDS, "gap", "95 %", "relative"], body)]
    return "\n".join(lines)
