"""Measure time and memory of building a release from raw rows, and the share of labelling in the time.

Inputs in the raw format are created from the rows of --raw by making their texts distinct (see common.py). `python -m
builders release` builds each input for every number of workers, in turns. Times are medians of wall time, including
start-up. Memory is measured in a separate build. It is the largest sum over the process tree (PSS, which counts shared
pages once), sampled ten times a second. The share of labelling is measured in one process. The time of a full rebuild
is extrapolated from the largest input to the 8.1 million passages of the collection.

Example:

  python benchmarks/build.py --raw dureader-2.0-demo --questions 5000 50000 --json build.json
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import ROOT, machine, memory, raw_rows, write_json

_COLLECTION = 8_096_668  # passages, Table 3 of the paper


def build(raw: Path, out: Path, unit: str, workers: int, *, watch: bool = False) -> tuple[float, int, dict[str, Any]]:
    """Run one build, and remove its output. Return seconds, peak memory in bytes (0 without watch) and its figures."""
    command = [sys.executable, "-m", "builders", "release", "--raw", raw, "--out", out, "--unit", unit]
    command += ["--workers", workers, "--format", "json", "--quiet"]
    peak, begin = 0, time.perf_counter()
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=printed)
        while watch and process.poll() is None:
            peak = max(peak, memory(process.pid))
            time.sleep(0.1)
        process.wait()
        seconds = time.perf_counter() - begin
        if process.returncode:
            sys.exit(f"the build failed with exit code {process.returncode}")
        printed.seek(0)
        stats = json.load(printed)
    shutil.rmtree(out)
    return seconds, peak, stats


def labelling(raw: Path, out: Path, unit: str) -> float:
    """Return the share of labelling in a build's time, in one process with all loops already compiled."""
    from builders.release import label
    from builders.release.build import build_release
    from builders.release.options import Options
    from builders.release.rows import find_sources

    spent = 0.0
    label_rows = label.label_rows

    def timed(*args: Any) -> Any:
        nonlocal spent
        begin = time.perf_counter()
        found = label_rows(*args)
        spent += time.perf_counter() - begin
        return found

    label.label_rows = timed
    sources = find_sources([raw])
    for _ in range(2):  # the first build compiles
        spent, begin = 0.0, time.perf_counter()
        build_release(sources, out, Options(unit=unit))
        share = spent / (time.perf_counter() - begin)
        shutil.rmtree(out)
    label.label_rows = label_rows
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sample, sizes = [ROOT / "builders" / "sample"], [5_000, 50_000, 300_000]
    parser.add_argument("--raw", nargs="+", type=Path, default=sample, metavar="PATH", help="default: the sample")
    parser.add_argument("--questions", nargs="+", type=int, default=sizes, metavar="N", help="sizes of the inputs")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4], metavar="N", help="default: 1 2 4")
    parser.add_argument("--unit", choices=["char", "word"], default="char", help="unit of span-F1 (default: char)")
    parser.add_argument("--repeats", type=int, default=5, help="builds for each figure (default: 5)")
    parser.add_argument("--scratch", type=Path, help="folder for inputs and outputs (default: temporary files)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for the figures (default: no file)")
    args = parser.parse_args()
    figures: dict[str, Any] = machine("duckdb", "msgspec", "numba", "numpy", "pyarrow")
    figures |= {"unit": args.unit, "repeats": args.repeats, "builds": []}
    print(f"{figures['cores']} cores, load {figures['load_before']}, Python {figures['python']}", figures["versions"])
    with tempfile.TemporaryDirectory(dir=args.scratch) as name:
        folder = Path(name)
        for questions in sorted(args.questions):
            raw, out = folder / "raw", folder / "release"
            size = raw_rows(args.raw, questions, raw)
            if not figures["builds"]:
                shares = [labelling(raw, out, args.unit) for _ in range(args.repeats)]
                figures["labelling_share"] = round(statistics.median(shares), 3)
                print(f"labelling takes {figures['labelling_share']:.1%} of the time of one worker")
            figures["builds"] += measure(raw, out, questions, size, args)
            shutil.rmtree(raw)
            write_json(args.json, figures)
    last = min(
        (b for b in figures["builds"] if b["questions"] == max(args.questions)), key=lambda build: build["seconds"]
    )
    figures["full_rebuild_seconds"] = round(last["seconds"] * _COLLECTION / last["passages"])
    print(f"extrapolated time of a rebuild with {_COLLECTION:,} passages: {figures['full_rebuild_seconds']} s")
    write_json(args.json, figures)


def measure(raw: Path, out: Path, questions: int, size: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    times: dict[int, list[float]] = {workers: [] for workers in args.workers}
    for _ in range(args.repeats):
        for workers in args.workers:
            times[workers].append(build(raw, out, args.unit, workers)[0])
    builds = []
    for workers in args.workers:
        _, peak, stats = build(raw, out, args.unit, workers, watch=True)
        seconds = statistics.median(times[workers])
        first = statistics.median(times[args.workers[0]])
        builds.append(
            {
                "questions": questions,
                "megabytes": round(size / 1e6, 1),
                "passages": stats["collections"]["corpus"]["passages"],
                "workers": workers,
                "seconds": round(seconds, 2),
                "megabytes_per_second": round(size / 1e6 / seconds, 1),
                f"times_{args.workers[0]}_workers": round(first / seconds, 2),
                "peak_mb": round(peak / 1e6),
            }
        )
        print(
            f"{questions:>9,} questions {size / 1e6:>8,.1f} MB {workers:>3} workers {seconds:>8.2f} s"
            f" {size / 1e6 / seconds:>7.1f} MB/s {first / seconds:>6.2f} x {peak / 1e6:>7,.0f} MB of memory",
            flush=True,
        )
    return builds


if __name__ == "__main__":
    main()
