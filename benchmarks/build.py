"""Measure time and memory of building a release from raw rows, and the share of labelling in the time.

The rows of --raw are repeated with distinct texts (see common.py), until there are --questions questions. `python -m
builders release` builds each input with every number of workers, in turns. Times are medians of wall time, including
start-up. A separate build measures memory: the largest sum over the process tree (PSS, which counts shared pages once),
sampled ten times a second. Labelling is measured in one process. The time of a full rebuild is extrapolated from the
largest input to the 8.1 million passages of the collection.

Example:

  python benchmarks/build.py --raw dureader-2.0-demo --questions 5000 50000 --json build.json
"""

import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import in_turns, machine, measured, parser_of, raw_rows, write_json

from builders.release import label
from builders.release.build import build_from_raw
from builders.release.rows import find_sources
from builders.text.span_options import SpanOptions

_COLLECTION = 8_096_668  # passages, Table 3 of the paper


def build(raw: Path, out: Path, unit: str, workers: int, *, watch: bool = False) -> tuple[dict[str, float], Any]:
    """Run one build, and remove its output. Return its costs (:func:`common.measured`) and its counts."""
    result = measured(
        "release", "--raw", raw, "--out", out, "--unit", unit, "--workers", workers, "--quiet", watch=watch
    )
    shutil.rmtree(out)
    return result


def labelling(raw: Path, out: Path, unit: str, repeats: int) -> float:
    """Return the median share of labelling in a build's time, in one process with all loops already compiled."""
    label_rows = label.label_rows
    label_seconds = 0.0

    def timed_label_rows(*args: Any) -> Any:
        """Label rows as ``label_rows`` does, and add the time to ``label_seconds``."""
        nonlocal label_seconds
        start_time = time.perf_counter()
        labels = label_rows(*args)
        label_seconds += time.perf_counter() - start_time
        return labels

    # The build has no hook for its steps, so its function of labels is replaced for this measurement.
    label.label_rows = timed_label_rows
    shares = []
    for _ in range(1 + repeats):  # the first build compiles
        label_seconds = 0.0
        start_time = time.perf_counter()
        build_from_raw(find_sources([raw]), out, SpanOptions(unit=unit))
        shares.append(label_seconds / (time.perf_counter() - start_time))
        shutil.rmtree(out)
    label.label_rows = label_rows
    return statistics.median(shares[1:])


def measure(
    raw: Path, out: Path, *, questions: int, megabytes: float, unit: str, worker_counts: Sequence[int], repeats: int
) -> list[dict[str, Any]]:
    """Build one input with every number of workers. Return and print the figures of each number.

    ``raw`` has ``questions`` rows of ``megabytes`` in all. ``out`` is removed after each build.
    """
    ways = {workers: lambda workers=workers: build(raw, out, unit, workers) for workers in worker_counts}
    seconds, _ = in_turns(ways, repeats)
    builds = []
    for workers in worker_counts:
        costs, stats = build(raw, out, unit, workers, watch=True)
        build_seconds = seconds[workers]
        speedup = round(seconds[worker_counts[0]] / build_seconds, 2)
        row = {
            "questions": questions,
            "megabytes": round(megabytes, 1),
            "passages": stats["collections"]["corpus"]["passages"],
            "workers": workers,
            "seconds": round(build_seconds, 2),
            "megabytes_per_second": round(megabytes / build_seconds, 1),
            f"times_{worker_counts[0]}_workers": speedup,
            "peak_mb": costs["peak_mb"],
        }
        builds.append(row)
        print(
            f"{questions:>9,} questions {megabytes:>8,.1f} MB {workers:>3} workers {build_seconds:>8.2f} s"
            f" {megabytes / build_seconds:>7.1f} MB/s {speedup:>6.2f} x {costs['peak_mb']:>7,} MB of memory",
            flush=True,
        )
    return builds


def main() -> None:
    parser = parser_of(__doc__, "--raw", "--repeats", "--json")
    sizes = [5_000, 50_000, 300_000]
    parser.add_argument("--questions", nargs="+", type=int, default=sizes, help="default: 5000 50000 300000")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4], metavar="N", help="default: 1 2 4")
    parser.add_argument("--unit", choices=["char", "word"], default="char", help="unit of span-F1 (default: char)")
    parser.add_argument("--scratch", type=Path, help="folder for inputs and outputs (default: temporary files)")
    args = parser.parse_args()
    figures: dict[str, Any] = machine("duckdb", "msgspec", "numba", "numpy", "pyarrow")
    figures |= {"unit": args.unit, "repeats": args.repeats, "builds": []}
    print(f"{figures['cores']} cores, load {figures['load_before']}, Python {figures['python']}", figures["versions"])
    with tempfile.TemporaryDirectory(dir=args.scratch) as name:
        raw = Path(name) / "raw"
        out = Path(name) / "release"
        for questions in sorted(args.questions):
            raw_bytes = raw_rows(args.raw, questions, raw)
            if not figures["builds"]:
                figures["labelling_share"] = round(labelling(raw, out, args.unit, args.repeats), 3)
                print(f"labelling takes {figures['labelling_share']:.1%} of the time of one worker")
            figures["builds"] += measure(
                raw,
                out,
                questions=questions,
                megabytes=raw_bytes / 1e6,
                unit=args.unit,
                worker_counts=args.workers,
                repeats=args.repeats,
            )
            shutil.rmtree(raw)
            write_json(args.json, figures)
    largest_builds = figures["builds"][-len(args.workers) :]
    seconds_per_passage = min(row["seconds"] / row["passages"] for row in largest_builds)
    figures["full_rebuild_seconds"] = round(_COLLECTION * seconds_per_passage)
    print(f"extrapolated time of a rebuild with {_COLLECTION:,} passages: {figures['full_rebuild_seconds']} s")
    write_json(args.json, figures)


if __name__ == "__main__":
    main()
