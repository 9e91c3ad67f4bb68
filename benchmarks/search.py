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
from baselines.retrieve.index_files import VectorIndex
from baselines.retrieve.search_engines import FaissEngine, SearchEngine, widen_embeddings
from baselines.retrieve.torch_engine import TorchEngine

_SUMMED_NUMBERS = 1 << 28  # 1 GiB, far more than the processor's caches


def searches(
    vectors: VectorIndex, queries: Halves, *, ways: Sequence[str], top_k: int, dimensions: int, device: str
) -> dict[str, Callable[[], Any]]:
    """Return the searches of --ways. Each search returns the rows of the passages found, by query."""
    candidate_count = 2 * top_k
    wide_queries = queries.astype(np.float32)
    flat_index = faiss.IndexFlatIP(dimensions)
    if any(way.startswith("flat") for way in ways):
        for _, block in vectors.blocks():
            flat_index.add(widen_embeddings(block))

    def search_ours(engine: SearchEngine) -> list[Any]:
        """Search as `search` does, by a new engine. A row's number serves as its rank in the order of the ids."""
        hits = exact_search.search_unsorted(
            vectors, queries, [engine], top_k, candidate_count, lambda: np.arange(vectors.rows)
        )
        return [rows for rows, _ in hits]

    def search_flat(batch_size: int) -> list[Any]:
        """Search by FAISS's flat index, with batches of ``batch_size`` queries."""
        rows_by_query: list[Any] = []
        for start in range(0, len(wide_queries), batch_size):
            _, batch_rows = flat_index.search(wide_queries[start : start + batch_size], top_k)
            rows_by_query.extend(batch_rows)
        return rows_by_query

    searches_by_way: dict[str, Callable[[], Any]] = {
        "ours-faiss": lambda: search_ours(FaissEngine(queries, candidate_count)),
        "ours-torch": lambda: search_ours(TorchEngine(queries, candidate_count, device)),
        "flat": lambda: search_flat(len(wide_queries)),
        "flat-100": lambda: search_flat(100),
    }
    return {way: searches_by_way[way] for way in ways}


def overlap(rows_by_query: list[Any], reference_rows: list[Any]) -> float:
    """Return the share of the reference's passages that another search also returned."""
    shared_count = 0
    for rows, reference in zip(rows_by_query, reference_rows, strict=True):
        shared_count += len(set(rows.tolist()) & set(reference.tolist()))
    return round(shared_count / sum(map(len, reference_rows)), 6)


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
    figures = machine("torch")
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        vectors = write_vectors(Path(folder), args.passages, args.dim, "cpu")
        queries = unit_vectors(0, args.queries, args.dim)
        medians, rows_by_way = in_turns(
            searches(vectors, queries, ways=args.ways, top_k=args.top_k, dimensions=args.dim, device=args.device),
            args.repeats,
        )

    # The lower bounds of the time: reading all embeddings once (2 bytes a number), and multiplying all pairs.
    number_count = args.passages * args.dim
    array = torch.ones(_SUMMED_NUMBERS)
    sum_seconds, _ = timed(array.sum, repeats=args.repeats, warm=1)
    bandwidth = 4 * len(array) / sum_seconds
    read_seconds = 2 * number_count / bandwidth
    own_ways = [way for way in medians if way.startswith("ours")]
    fastest_way = min(own_ways, key=lambda way: medians[way])
    product_device = "cpu" if fastest_way == "ours-faiss" else args.device
    product_seconds = 2 * number_count * args.queries / matrix_rate(product_device, "fp32")

    for name in ("passages", "dim", "queries", "top_k", "threads", "device", "repeats"):
        figures[name] = vars(args)[name]
    figures["faiss"] = faiss.__version__
    figures["seconds"] = {way: round(seconds, 3) for way, seconds in medians.items()}
    figures["queries_a_second"] = {way: round(args.queries / seconds, 1) for way, seconds in medians.items()}
    figures["fastest_of_ours"] = fastest_way
    figures["seconds_to_read_all_embeddings_once"] = round(read_seconds, 3)
    figures["seconds_of_the_matrix_product_alone"] = round(product_seconds, 3)
    figures["share_of_matrix_rate"] = round(product_seconds / medians[fastest_way], 3)
    figures["share_of_bandwidth"] = round(read_seconds / medians[fastest_way], 4)
    if "flat" in rows_by_way:
        figures["speed_against_flat"] = {way: round(medians["flat"] / seconds, 3) for way, seconds in medians.items()}
        figures["same_top_k_as_flat"] = {way: overlap(rows, rows_by_way["flat"]) for way, rows in rows_by_way.items()}
    write_json(args.json, figures, show=True)


if __name__ == "__main__":
    main()
