"""Compare the speed of dense search with three references: FAISS's flat index, memory bandwidth and matrix rate.

The embeddings are random unit vectors: --passages by --dim in 16 bits, in shards on disk.

- ours: memory-mapped shards, candidates by an engine, exact scores, ties resolved. Only writing the run is excluded.
- flat: FAISS's IndexFlatIP. All passages are in memory in 32 bits, and all queries form one batch. flat-100: the same
  with batches of 100 queries. The time to build the index is not counted.

All searches take turns. Figures are medians of --repeats after one warm-up. The bandwidth (sum of an array) and the
matrix rate (a product in the engine's precision) are measured here. They give two lower bounds for any search: the time
to read all embeddings once, and the time of the multiplications of all pairs.

Example:

  python benchmarks/search.py --passages 1000000 --queries 1000 --json search.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


from baselines.retrieve import dense  # noqa: E402
from baselines.retrieve.dense import Engine, FaissEngine, TorchEngine  # noqa: E402
from baselines.retrieve.encoder import Halves, largest_norm, widened  # noqa: E402
from baselines.retrieve.index import File, Index  # noqa: E402

SHARD = 1 << 17


def write_random(folder: Path, passages: int, dim: int) -> Index:
    shards = []
    for start in range(0, passages, SHARD):
        part = unit(np.random.default_rng([1, start]), min(SHARD, passages - start), dim)
        np.save(folder / f"{start:09d}.npy", part)
        size = (folder / f"{start:09d}.npy").stat().st_size
        shards.append(File(f"{start:09d}.npy", size, len(part), "0" * 64, 1.0001 * largest_norm(part)))
    return Index(folder, {}, shards)


def unit(rng: np.random.Generator, rows: int, dim: int) -> Halves:
    values = rng.standard_normal((rows, dim), dtype=np.float32)
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float16)


def seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = function()
    return time.perf_counter() - begin, result


def bandwidth(repeats: int) -> float:
    """Return the memory bandwidth in bytes per second, measured by summing an array of 1 GB."""
    array = torch.ones(1 << 28)
    return 4 * len(array) / statistics.median(seconds(array.sum)[0] for _ in range(repeats + 1))


def matrix_rate(dtype: torch.dtype, device: str, repeats: int) -> float:
    """Return the operations per second of a square matrix product."""

    def product() -> None:
        one @ other
        if device != "cpu":
            torch.cuda.synchronize()

    size = 2_048 if device == "cpu" else 8_192
    one, other = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / statistics.median(seconds(product)[0] for _ in range(repeats + 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=1_000_000, help="number of passages (default: 1000000)")
    parser.add_argument("--dim", type=int, default=768, help="dimensions of an embedding (default: 768)")
    parser.add_argument("--queries", type=int, default=1_000, help="number of queries (default: 1000)")
    parser.add_argument("--top-k", type=int, default=50, help="passages per query (default: 50)")
    parser.add_argument(
        "--ways",
        nargs="+",
        default=["ours-faiss", "ours-torch", "flat"],
        choices=["ours-faiss", "ours-torch", "flat", "flat-100"],
        help="searches to measure (default: ours-faiss ours-torch flat)",
    )
    parser.add_argument("--device", default="cpu", help="device of ours-torch (default: cpu)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all cores")
    parser.add_argument("--repeats", type=int, default=5, help="runs for each figure (default: 5)")
    parser.add_argument("--work", type=Path, help="folder for the passages (default: temporary)")
    parser.add_argument("--json", type=Path, help="file for the figures (default: no file)")
    args = parser.parse_args()
    import faiss

    torch.set_num_threads(args.threads)
    faiss.omp_set_num_threads(args.threads)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        vectors = write_random(Path(folder), args.passages, args.dim)
        queries = unit(np.random.default_rng(2), args.queries, args.dim)
        medians, found = measure(args, vectors, queries)
    cost = 2 * args.passages * args.dim * args.queries
    read = 2 * args.passages * args.dim / bandwidth(args.repeats)
    fastest = min((way for way in medians if way.startswith("ours")), key=lambda way: medians[way])
    product = cost / matrix_rate(torch.float32, args.device if fastest != "ours-faiss" else "cpu", args.repeats)
    reference = found.get("flat", found[next(iter(found))])
    result = {
        "passages": args.passages,
        "dim": args.dim,
        "queries": args.queries,
        "top_k": args.top_k,
        "cores": len(os.sched_getaffinity(0)),
        "threads": args.threads,
        "device": args.device,
        "load_before": round(load, 1),
        "load_after": round(os.getloadavg()[0], 1),
        "repeats": args.repeats,
        "versions": {"python": platform.python_version(), "torch": version("torch"), "faiss": faiss.__version__},
        "seconds": {way: round(each, 3) for way, each in medians.items()},
        "queries_a_second": {way: round(args.queries / each, 1) for way, each in medians.items()},
        "speed_against_flat": {
            way: round(medians["flat"] / each, 3) for way, each in medians.items() if "flat" in medians
        },
        "same_top_k_as_flat": {way: overlap(rows, reference) for way, rows in found.items()},
        "fastest_of_ours": fastest,
        "seconds_to_read_all_embeddings_once": round(read, 3),
        "seconds_of_the_matrix_product_alone": round(product, 3),
        "share_of_matrix_rate": round(product / medians[fastest], 3),
        "share_of_bandwidth": round(read / medians[fastest], 4),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n", encoding="utf-8")


def measure(
    args: argparse.Namespace, vectors: Index, queries: Halves
) -> tuple[dict[str, float], dict[str, list[set[int]]]]:
    """Return the median seconds and the passages found, by kind of search."""
    import faiss

    wide = queries.astype(np.float32)
    index = faiss.IndexFlatIP(args.dim)
    if any(way.startswith("flat") for way in args.ways):
        for _, block in vectors.blocks():
            index.add(widened(block))

    count = 2 * args.top_k

    def ours(engine: Engine) -> Any:
        return list(dense.search(vectors, queries, [engine], args.top_k, count, lambda: np.arange(vectors.rows)))

    def flat(batch: int) -> Any:
        parts = [index.search(wide[at : at + batch], args.top_k)[1] for at in range(0, len(wide), batch)]
        return [(row, None) for part in parts for row in part]

    known: dict[str, Callable[[], Any]] = {
        "ours-faiss": lambda: ours(FaissEngine(queries, count)),
        "ours-torch": lambda: ours(TorchEngine(queries, count, args.device)),
        "flat": lambda: flat(len(wide)),
        "flat-100": lambda: flat(100),
    }
    times: dict[str, list[float]] = {way: [] for way in args.ways}
    found: dict[str, list[set[int]]] = {}
    for _ in range(args.repeats + 1):
        for way in args.ways:
            took, hits = seconds(known[way])
            times[way].append(took)
            found[way] = [set(rows.tolist()) for rows, _ in hits]
    return {way: statistics.median(each[1:]) for way, each in times.items()}, found


def overlap(found: list[set[int]], reference: list[set[int]]) -> float:
    """Return the share of the reference's passages that were found."""
    shared = sum(len(a & b) for a, b in zip(found, reference, strict=True))
    return round(shared / sum(map(len, reference)), 6)


if __name__ == "__main__":
    main()
