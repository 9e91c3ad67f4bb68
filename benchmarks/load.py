"""Compare two ways to load a release's rows: from the release, and from JSON lines with `datasets`.

The release is --release, or a release of --questions questions built from the rows of --raw with distinct texts (see
common.py). Each split is also written as JSON lines. The two ways take turns, with empty caches. Figures are medians of
rows per second. Imports and the first load, which warms up the libraries, are not counted.

Example:

  python benchmarks/load.py --raw dureader-2.0-demo --questions 10000 --json load.json
"""

import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import machine, parser_of, raw_rows, timed, write_json

from builders.release.build import build_from_raw
from builders.release.rows import find_sources
from builders.store.reader import Release, open_release
from builders.text.span_options import SpanOptions


def write_lines(release: Release, config: str, split: str, path: Path) -> None:
    """Write a split as JSON lines."""
    with open(path, "w", encoding="utf-8") as file:
        for batch in release.batches(config, split):
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in batch.to_pylist())


def measure(ways: dict[str, Callable[[str], Any]], config: str, split: str, rows: int, repeats: int) -> dict[str, Any]:
    """Load one split in both ways. Return and print the speeds.

    ``ways`` has two functions, ``release`` and ``json``, which load the split with an empty cache folder. ``rows`` is
    the number of rows that they must load.
    """
    seconds_by_way: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(1 + repeats):
        for way, load in ways.items():
            with tempfile.TemporaryDirectory() as cache:
                seconds, loaded_count = timed(lambda load=load, cache=cache: len(load(cache)))
            seconds_by_way[way].append(seconds)
            if loaded_count != rows:
                sys.exit(f"{config}/{split}: {way} loaded {loaded_count} rows, expected {rows}")
    # The first load of each way is a warm-up.
    release_speed = rows / statistics.median(seconds_by_way["release"][1:])
    json_speed = rows / statistics.median(seconds_by_way["json"][1:])
    speedup = release_speed / json_speed
    print(
        f"{config + '/' + split:<18} {rows:>9,} rows {release_speed:>12,.0f} rows/s"
        f" {json_speed:>12,.0f} rows/s as JSON {speedup:>7.2f} x",
        flush=True,
    )
    return {
        "config": config,
        "split": split,
        "rows": rows,
        "rows_per_second": round(release_speed),
        "json_rows_per_second": round(json_speed),
        "times_json": round(speedup, 2),
    }


def main() -> None:
    parser = parser_of(__doc__, "--raw", "--repeats", "--json")
    parser.add_argument("--questions", type=int, default=20_000, help="questions of the release (default: 20000)")
    parser.add_argument("--release", type=Path, help="release to load (default: built from --raw)")
    args = parser.parse_args()
    import datasets

    import dureader_retrieval

    datasets.disable_progress_bars()
    figures: dict[str, Any] = machine("datasets", "pyarrow") | {"repeats": args.repeats, "splits": []}
    print(f"{figures['cores']} cores, load {figures['load_before']}, Python {figures['python']}", figures["versions"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        release_path = args.release or folder / "release"
        if not args.release:
            raw_rows(args.raw, args.questions, folder / "raw")
            sources = find_sources([folder / "raw"])
            build_from_raw(sources, release_path, SpanOptions(unit="char"), workers=figures["cores"])
            shutil.rmtree(folder / "raw")
        release = open_release(release_path)
        lines_path = folder / "rows.jsonl"
        for config, split in release.splits():
            write_lines(release, config, split, lines_path)
            ways: dict[str, Callable[[str], Any]] = {
                "release": lambda cache, names=(config, split): dureader_retrieval.load_dataset(
                    *names, data_dir=release_path, cache_dir=cache
                ),
                "json": lambda cache: datasets.load_dataset(
                    "json", data_files=str(lines_path), split="train", cache_dir=cache
                ),
            }
            figures["splits"].append(measure(ways, config, split, release.rows(config, split), args.repeats))
            write_json(args.json, figures)


if __name__ == "__main__":
    main()
