"""Measure time and memory of `add restrain` and `add resttest` at the size of MS MARCO.

Random vectors around random centres replace the embeddings of 500,000 training and 7,000 test queries. The release
of these queries has no passages. Each command runs in its own process, as on the command line.

Example:

  python benchmarks/extrapolation.py --out extrapolation.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from builders.store.draft import draft_release  # noqa: E402
from builders.store.layout import QRELS, QUERIES, text_id  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trains", type=int, default=500_000, help="training queries (default: 500000)")
    parser.add_argument("--tests", type=int, default=7_000, help="test queries (default: 7000)")
    parser.add_argument("--dimensions", type=int, default=768, help="dimensions of a vector (default: 768)")
    parser.add_argument("--centres", type=int, default=5_000, help="number of random centres (default: 5000)")
    parser.add_argument("--sizes", nargs="+", default=["14K", "45K", "200K"], help="sizes for `add restrain`")
    parser.add_argument("--out", type=Path, help="JSON file for the figures (default: no file)")
    args = parser.parse_args()
    figures: dict[str, object] = {
        "trains": args.trains,
        "tests": args.tests,
        "dimensions": args.dimensions,
        "centres": args.centres,
        "sizes": args.sizes,
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(os.getloadavg()[0], 1),
        "processor": _processor(),
        "versions": {name: version(name) for name in ("faiss-cpu", "numpy", "pyarrow")}
        | {"python": platform.python_version()},
    }
    with tempfile.TemporaryDirectory() as folder:
        release, vectors = _make(Path(folder), args)
        for command in (["restrain", "--size", *args.sizes], ["resttest"]):
            figures[command[0]] = _measure(
                [*command, "--release", str(release), "--embeddings", str(vectors), "--out", str(Path(folder) / "out")]
            )
    text = json.dumps(figures, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")


def _make(folder: Path, args: argparse.Namespace) -> tuple[Path, Path]:
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((args.centres, args.dimensions), np.float32)
    total = args.trains + args.tests
    ids = [text_id(f"query {number}") for number in range(total)]
    path = folder / "vectors.parquet"
    schema = pa.schema([("id", pa.string()), ("vector", pa.list_(pa.float32()))])
    with pq.ParquetWriter(path, schema) as file:
        for start in range(0, total, 10_000):
            rows = min(10_000, total - start)
            noise = generator.standard_normal((rows, args.dimensions), np.float32)
            vectors = centres[generator.integers(args.centres, size=rows)] + noise
            file.write_table(pa.table([ids[start : start + rows], [*vectors]], schema=schema))
    with draft_release(folder / "release", {"verb": "benchmark", "options": {}, "sources": []}) as draft:
        for split, part in (("train", ids[: args.trains]), ("dev", ids[args.trains :])):
            draft.write("queries", split, [pa.table([pa.array(part), pa.array(part)], schema=QUERIES)])
            passages = pa.array([text_id(query) for query in part])
            draft.write("qrels", split, [pa.table([pa.array(part), passages, pa.array([1] * len(part))], schema=QRELS)])
    return folder / "release", path


def _measure(command: list[str]) -> dict[str, object]:
    """Run a command. Return seconds, peak memory with and without pages of the mapped file, and its printed JSON."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "builders", "add", *command, "--format", "json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    peak = {"RssAnon": 0, "VmHWM": 0}
    watcher = threading.Thread(target=_watch, args=(process, peak), daemon=True)
    watcher.start()
    printed, _ = process.communicate()
    seconds = time.perf_counter() - started
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{command[0]} failed with exit code {process.returncode}")
    return {
        "seconds": round(seconds, 1),
        "peak_memory_mb": round(peak["VmHWM"] / 1024),
        "peak_memory_without_mapped_file_mb": round(peak["RssAnon"] / 1024),
        "sets": json.loads(printed),
    }


def _watch(process: subprocess.Popen[str], peak: dict[str, int]) -> None:
    while process.poll() is None:
        try:
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        except OSError:  # the process has ended, or the system has no /proc
            return
        for name, _, value in (line.partition(":") for line in lines):
            if name in peak and value.split():
                peak[name] = max(peak[name], int(value.split()[0]))
        time.sleep(0.1)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


if __name__ == "__main__":
    main()
