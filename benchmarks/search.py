"""Compare the speed of dense search with three references: FAISS's flat index, memory bandwidth and matrix rate.

The embeddings are random unit vectors: --passages by --dim in 16 bits, in shards on disk. --ways selects the searches:

- ours-faiss, ours-torch: an engine finds candidates in memory-mapped shards. The candidates get exact scores and ties
  are resolved, as in `search`. Only writing the run is excluded.
- flat: FAISS's IndexFlatIP, with all passages in memory in 32 bits and all queries in one batch. The time to build the
  index is not counted.
- flat-100: the search flat with batches of 100 queries.

All searches take turns. Figures are medians of --repeats after one warm-up. The bandwidth (sum of an array) and the
matrix rate (products in fp32) are measured too. Each rate gives a lower bound for the time of a search: the time to
read all embeddings once, and the time to multiply all queries by all passages.

Example:

  python benchmarks/search.py --passages 1000000 --queries 1000 --json search.json
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from common import in_turns, machine, matrix_rate, parser_of, timed, write_json
from gpu_common import unit_vectors, write_vectors

from baselines.retrieve import exact_search
from baselines.retrieve.encoder import Halves
from baselines.retrieve.index_files import Index
from baselines.retrieve.search_engines import Engine, FaissEngine, widened
from baselines.retrieve.torch_engine import TorchEngine


def searches(
    vectors: Index, queries: Halves, *, ways: Sequence[str], top_k: int, dimensions: int, device: str
) -> dict[str, Callable[[], Any]]:
    """Return the searches of --ways. Each search returns the rows of the passages found, by query."""
    wide, count = queries.astype(np.float32), 2 * top_k
    index = faiss.IndexFlatIP(dimensions)
    if any(way.startswith("flat") for way in ways):
        for _, block in vectors.blocks():
            index.add(widened(block))

    def ours(engine: Engine) -> list[Any]:
        hits = exact_search.search(vectors, queries, [engine], top_k, count, lambda: np.arange(vectors.rows))
        return [rows for rows, _ in hits]

    def flat(batch: int) -> list[Any]:
        parts = [index.search(wide[at : at + batch], top_k)[1] for at in range(0, len(wide), batch)]
        return [row for part in parts for row in part]

    known: dict[str, Callable[[], Any]] = {
        "ours-faiss": lambda: ours(FaissEngine(queries, count)),
        "ours-torch": lambda: ours(TorchEngine(queries, count, device)),
        "flat": lambda: flat(len(wide)),
        "flat-100": lambda: flat(100),
    }
    return {way: known[way] for way in ways}


def overlap(found: list[Any], reference: list[Any]) -> float:
    """Return the share of the reference's passages that were found."""
    shared = sum(len({*a.tolist()} & {*b.tolist()}) for a, b in zip(found, reference, strict=True))
    return round(shared / sum(map(len, reference)), 6)


def main() -> None:
    parser = parser_of(__doc__, "--threads", "--repeats", "--json")
    parser.add_argument("--passages", type=int, default=1_000_000, help="number of passages (default: 1000000)")
    parser.add_argument("--dim", type=int, default=768, help="dimensions of an embedding (default: 768)")
    parser.add_argument("--queries", type=int, default=1_000, help="number of queries (default: 1000)")
    parser.add_argument("--top-k", type=int, default=50, help="passages per query (default: 50)")
    parser.add_argument(
        "--ways",
        nargs="+",
        default=["ours-faiss", "ours-torch", "flat"],
        choices=["ours-faiss", "ours-torch", "flat", "flat-100"],
        help="searches to measure, at least one of ours (default: ours-faiss ours-torch flat)",
    )
    parser.add_argument("--device", default="cpu", help="device of ours-torch (default: cpu)")
    parser.add_argument("--work", type=Path, help="folder for the passages (default: temporary)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    faiss.omp_set_num_threads(args.threads)
    about = machine("torch")
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        vectors = write_vectors(Path(folder), args.passages, args.dim, "cpu")
        queries = unit_vectors(0, args.queries, args.dim)
        medians, found = in_turns(
            searches(vectors, queries, ways=args.ways, top_k=args.top_k, dimensions=args.dim, device=args.device),
            args.repeats,
        )
    numbers, array = args.passages * args.dim, torch.ones(1 << 28)
    bandwidth = 4 * len(array) / timed(array.sum, repeats=args.repeats, warm=1)[0]
    read = 2 * numbers / bandwidth
    fastest = min((way for way in medians if way.startswith("ours")), key=lambda way: medians[way])
    product = 2 * numbers * args.queries / matrix_rate("cpu" if fastest == "ours-faiss" else args.device, "fp32")
    figures = {
        **about,
        **{name: vars(args)[name] for name in ("passages", "dim", "queries", "top_k", "threads", "device", "repeats")},
        "faiss": faiss.__version__,
        "seconds": {way: round(each, 3) for way, each in medians.items()},
        "queries_a_second": {way: round(args.queries / each, 1) for way, each in medians.items()},
        "fastest_of_ours": fastest,
        "seconds_to_read_all_embeddings_once": round(read, 3),
        "seconds_of_the_matrix_product_alone": round(product, 3),
        "share_of_matrix_rate": round(product / medians[fastest], 3),
        "share_of_bandwidth": round(read / medians[fastest], 4),
    }
    if "flat" in found:
        figures["speed_against_flat"] = {way: round(medians["flat"] / each, 3) for way, each in medians.items()}
        figures["same_top_k_as_flat"] = {way: overlap(rows, found["flat"]) for way, rows in found.items()}
    write_json(args.json, figures, show=True)


if __name__ == "__main__":
    main()
