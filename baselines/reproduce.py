"""Run the commands behind a row of the paper's tables and print ours beside the published figures.

The rows stand in baselines/matrix.toml: the commands, and what the paper prints. Without --release, the embedded
sample is built first (build/sample): it shows that every step runs; its figures are not the paper's.

Example:

  python -m baselines reproduce --table 4 --row bm25
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from baselines.evaluate import evaluate
from baselines.matrix import MEASURES, Matrix, Row, read_matrix
from baselines.qrels import Qrels, release_qrels
from baselines.runs import read_run
from baselines.tables import text_table
from builders.command import InputError, add_format, log
from builders.store import Release, open_release

SAMPLE = Path("build/sample")
_CHECKOUT = Path(__file__).resolve().parent.parent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--table", type=int, metavar="N", help="the rows of this table of the paper (default: all)")
    parser.add_argument("--row", metavar="NAME", help="the rows of this name (default: all)")
    parser.add_argument(
        "--release", type=Path, default=SAMPLE, metavar="DIR", help=f"default: {SAMPLE}, built where it is missing"
    )
    parser.add_argument("--split", default="dev", help="the split to measure on (default: dev)")
    parser.add_argument("--out", type=Path, default=Path("build/runs"), metavar="DIR", help="where the runs are put")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    matrix = read_matrix()
    rows = matrix.select(args.table, args.row)
    fill = {"release": str(args.release), "split": args.split, "out": str(args.out)}
    before = [_sample_command(args.release)] if args.release == SAMPLE and not args.release.exists() else []
    if args.dry_run:
        commands = [*before, *(command for row in rows for command in row.filled(fill))]
        print(json.dumps(commands) if args.format == "json" else "\n".join(map(_shown, commands)))
        return
    for command in before:
        log.info("%s is missing: building the embedded sample", args.release)
        _call(command, args.quiet)
    release = open_release(args.release)
    qrels = release_qrels(release, args.split)
    measured = []
    for row in rows:
        *steps, _ = row.filled(fill)  # the last one, evaluate, happens here
        for command in steps:
            _call(command, args.quiet)
        measured.append((row, _measure(row, fill, qrels)))
    report = _report(matrix, release, args.split, qrels, measured)
    print(json.dumps(report, ensure_ascii=False, indent=1) if args.format == "json" else _text(report))


def _sample_command(release: Path) -> list[str]:
    raw = _CHECKOUT / "builders" / "sample"
    shown = Path(os.path.relpath(raw)) if raw.is_relative_to(Path.cwd()) else raw
    return ["builders", "release", "--raw", str(shown), "--out", str(release)]


def _shown(command: list[str]) -> str:
    return "python -m " + shlex.join(command)


def _call(command: list[str], quiet: bool) -> None:
    log.info("running: %s", _shown(command))
    # stdout carries this command's table alone: what a step prints goes to stderr.
    done = subprocess.run([sys.executable, "-m", *command, *(["--quiet"] if quiet else [])], stdout=2, check=False)
    if done.returncode:
        raise InputError(f"this step failed with exit code {done.returncode}: {_shown(command)}")


def _measure(row: Row, fill: dict[str, str], qrels: Qrels) -> dict[str, float]:
    result, _ = evaluate(read_run(Path(row.run_path(fill))), qrels)
    return {name: 100 * result["official"][key] for name, key in MEASURES.items()}


def _report(
    matrix: Matrix, release: Release, split: str, qrels: Qrels, measured: list[tuple[Row, dict[str, float]]]
) -> dict[str, Any]:
    """Ours and published side by side, in percent, and what has to be known before the two are compared."""
    passages = release.rows("corpus", "corpus")
    notes = []
    if passages != matrix.passages:
        notes.append(
            f"not the published collection ({passages:,} passages against {matrix.passages:,}): "
            "the two columns are not comparable"
        )
    if split != matrix.split:
        notes.append(f"published: the {matrix.split} split, whose labels are unpublished; ours: the {split} split")
    return {
        "release": str(release.path),
        "split": split,
        "queries": len(qrels.positives),
        "passages": passages,
        "published_passages": matrix.passages,
        "same_collection": passages == matrix.passages,
        "same_split": split == matrix.split,
        "notes": notes,
        "unit": "percent",
        "rows": [
            {"table": row.table, "row": row.name, "metric": name, "ours": round(ours[name], 2), "published": published}
            for row, ours in measured
            for name, published in row.published.items()
        ],
    }


def _text(report: dict[str, Any]) -> str:
    lines = [
        f"measured on: release {report['release']}, split {report['split']}, "
        f"{report['queries']:,} queries with positives, {report['passages']:,} passages",
        *report["notes"],
        "",
    ]
    cells = [
        [f"Table {row['table']}", row["row"], row["metric"], f"{row['ours']:.2f}", f"{row['published']:.2f}"]
        for row in report["rows"]
    ]
    lines.append(text_table(["table", "row", "metric", "ours", "published"], cells))
    lines.append("percent; Recall@k as the paper and the official script count it: a hit rate")
    return "\n".join(lines)
