"""Measure time and memory of converting official archives to a release.

The collections of both official releases are created with --passages random passages. `python -m builders official`
converts each collection in a separate process. Wall time includes start-up. Memory is the largest sum over the process
tree (PSS, which counts shared pages once), sampled ten times a second.

Example:

  python benchmarks/official.py --passages 1000000 --json official.json
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import platform
import random
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from common import memory  # noqa: E402
from official_archives import (  # noqa: E402
    ORIGINAL,
    PASSAGES,
    PREPROCESSED,
    md5,
    original_files,
    preprocessed_files,
    write_files,
)


def made_up_passages(count: int, seed: int = 0) -> Iterator[str]:
    """Yield distinct passages of about 300 characters, as in the published collection."""
    rng = random.Random(seed)
    pieces = [p for p in PASSAGES if len(p) > 3]
    text = "".join(rng.choice(pieces) for _ in range(40_000))
    for number in range(count):
        start, length = rng.randrange(len(text) - 500), rng.randrange(100, 500)
        yield f"{number}、{text[start : start + length]}"


def write_large(folder: Path, count: int) -> Path:
    """Write both releases' collections with ``count`` passages, and matching pre-processed train and dev files."""
    write_files(folder, {name: text for name, text in preprocessed_files().items() if "/passage-" not in name})
    write_files(folder, {name: text for name, text in original_files().items() if "passage_coll" not in name})
    parts = folder / PREPROCESSED / "passage-collection"
    parts.mkdir(parents=True, exist_ok=True)
    quarter = -(-count // 4)
    with (
        open(folder / ORIGINAL / "passage_collection.json", "w", encoding="utf-8") as whole,
        open(parts / "passage2id.map.json", "w", encoding="utf-8") as ids,
    ):
        every = itertools.chain(PASSAGES, made_up_passages(count - len(PASSAGES)))
        part = None
        for number, passage in enumerate(every):
            if number % quarter == 0:
                if part:
                    part.close()
                part = open(parts / f"part-{number // quarter:02d}", "w", encoding="utf-8")  # noqa: SIM115
            key = md5(passage)
            whole.write(json.dumps({"paragraph_id": key, "paragraph_text": passage}, ensure_ascii=False) + "\n")
            ids.write(f'{", " if number else "{"}"{number}": "{key}"')
            assert part is not None
            part.write(f"-\t\t{passage}\t0\n")
        ids.write("}")
        assert part is not None
        part.close()
    return folder


def convert(archives: list[Path], out: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "builders", "official", "--quiet", "--out", str(out)]
    before, begin, peak = os.times(), time.perf_counter(), 0
    process = subprocess.Popen([*command, "--archive", *map(str, archives)], cwd=ROOT, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        peak = max(peak, memory(process.pid))
        time.sleep(0.1)
    seconds = time.perf_counter() - begin
    if process.returncode:
        sys.exit(f"the conversion failed with exit code {process.returncode}")
    now = os.times()  # includes descendants that have ended
    cpu = now.children_user + now.children_system - before.children_user - before.children_system
    return {"seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2), "peak_mb": round(peak / 1e6)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=1_000_000, help="number of passages (default: 1000000)")
    parser.add_argument("--tar-gz", action="store_true", help="also convert the original release as tar.gz")
    parser.add_argument("--json", type=Path, help="file for the figures (default: no file)")
    args = parser.parse_args()
    names = ("pyarrow", "numpy", "numba", "msgspec")
    result: dict[str, Any] = {
        "passages": args.passages,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in names},
        "load_average_before": os.getloadavg()[0],
        "runs": {},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = write_large(Path(name) / "archives", args.passages)
        cases = {"original": [folder / ORIGINAL], "pre-processed": [folder / PREPROCESSED]}
        if args.tar_gz:
            cases["original.tar.gz"] = [Path(name) / "original.tar.gz"]
            with tarfile.open(cases["original.tar.gz"][0], "w:gz", compresslevel=6) as tar:
                tar.add(folder / ORIGINAL, ORIGINAL)
        convert([folder / "dureader-retrieval-test1"], Path(name) / "warm")  # warm-up: fills the cache of compiled code
        for case, archives in cases.items():
            files = [path for archive in archives for path in ([archive] if archive.is_file() else archive.rglob("*"))]
            figures = convert(archives, Path(name) / f"out-{case}")
            figures["input_mb"] = round(sum(path.stat().st_size for path in files if path.is_file()) / 1e6)
            figures["passages_per_second"] = round(args.passages / figures["seconds"])
            result["runs"][case] = figures
    print(f"{args.passages:,} passages, {result['cores']} cores, Python {result['python']}")
    for case, figures in result["runs"].items():
        print(
            f"{case:<16}{figures['input_mb']:>8,} MB {figures['seconds']:>8.1f} s, {figures['cpu_seconds']:>6.1f} s CPU"
            f" {figures['passages_per_second']:>10,} passages/s {figures['peak_mb']:>8,} MB of memory"
        )
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
