"""Compare two ways to load a release's rows: from the release, and from JSON lines with `datasets`.

The release is --release, or a release of --questions questions built from the rows of --raw with distinct texts (see
common.py). Each split is also written as JSON lines. The two ways take turns, with empty caches. Figures are medians of
rows per second. Imports and the first load, which warms up the libraries, are not counted.

Example:

  python benchmarks/load.py --raw dureader-2.0-demo --questions 10000 --json load.json
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import ROOT, machine, raw_rows, write_json

from builders.release.build import build_release
from builders.release.options import Options
from builders.release.rows import find_sources
from builders.store.reader import Release, open_release


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sample = [ROOT / "builders" / "sample"]
    parser.add_argument("--raw", nargs="+", type=Path, default=sample, metavar="PATH", help="default: the sample")
    parser.add_argument("--questions", type=int, default=20_000, help="questions of the release (default: 20000)")
    parser.add_argument("--release", type=Path, help="release to load (default: built from --raw)")
    parser.add_argument("--repeats", type=int, default=5, help="loads for each figure (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for the figures (default: no file)")
    args = parser.parse_args()
    import datasets

    import dureader_retrieval

    datasets.disable_progress_bars()
    figures: dict[str, Any] = machine("datasets", "pyarrow") | {"repeats": args.repeats, "splits": []}
    print(f"{figures['cores']} cores, load {figures['load_before']}, Python {figures['python']}", figures["versions"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = args.release
        if path is None:
            path = folder / "release"
            raw_rows(args.raw, args.questions, folder / "raw")
            build_release(find_sources([folder / "raw"]), path, Options(unit="char"), workers=figures["cores"])
            shutil.rmtree(folder / "raw")
        release = open_release(path)
        for config, split in release.splits():
            lines = folder / "rows.jsonl"
            write_lines(release, config, split, lines)
            ways: dict[str, Callable[[str], Any]] = {
                "release": lambda cache, of=(config, split): dureader_retrieval.load_dataset(
                    of[0], of[1], data_dir=path, cache_dir=cache
                ),
                "json": lambda cache, file=str(lines): datasets.load_dataset(
                    "json", data_files=file, split="train", cache_dir=cache
                ),
            }
            figures["splits"].append(measure(ways, config, split, release.rows(config, split), args.repeats))
            write_json(args.json, figures)


def write_lines(release: Release, config: str, split: str, path: Path) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for batch in release.batches(config, split):
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in batch.to_pylist())


def measure(ways: dict[str, Callable[[str], Any]], config: str, split: str, rows: int, repeats: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {way: [] for way in ways}
    for repeat in range(repeats + 1):
        for way, load in ways.items():
            with tempfile.TemporaryDirectory() as cache:
                begin = time.perf_counter()
                found = load(cache)
                seconds = time.perf_counter() - begin
                if len(found) != rows:
                    sys.exit(f"{config}/{split}: {way} loaded {len(found)} rows, expected {rows}")
                if repeat:
                    times[way].append(seconds)
                del found
    medians = {way: statistics.median(each) for way, each in times.items()}
    ratio = medians["json"] / medians["release"]
    print(
        f"{config + '/' + split:<18} {rows:>9,} rows {rows / medians['release']:>12,.0f} rows/s"
        f" {rows / medians['json']:>12,.0f} rows/s as JSON {ratio:>7.2f} x",
        flush=True,
    )
    return {
        "config": config,
        "split": split,
        "rows": rows,
        "rows_per_second": round(rows / medians["release"]),
        "json_rows_per_second": round(rows / medians["json"]),
        "times_json": round(ratio, 2),
    }


if __name__ == "__main__":
    main()
