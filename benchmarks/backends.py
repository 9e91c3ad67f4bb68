"""Compare ways to encode on a processor: speed, scores and MRR@10 of a dual-encoder.

A way is a backend with a precision (--ways). The passages of --release are encoded in blocks of --block. The ways take
turns on every block, in the same batches. A way's speed is the number of passages divided by the processor seconds of
all threads. Speeds, scores and MRR@10 are compared with the first way. --passages N encodes only the positives of dev
and N passages at equal distances.

Example:

  python benchmarks/backends.py --model MODEL --release build/demo --max-length 128
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import machine, parser_of, write_json

from baselines.core.settings import ModelSettings
from baselines.measure.measures import LIST_DEPTH, measure_rankings
from baselines.measure.qrels import Qrels, read_queries, release_qrels
from baselines.measure.significance import compare_paired
from baselines.retrieve.devices import dtype_of
from baselines.retrieve.encoder import TextEncoder
from baselines.retrieve.models import open_encoder
from builders.store.reader import open_release

WAYS = ["torch-fp32", "torch-bf16", "openvino-fp32", "openvino-bf16", "openvino-int8"]
_WARM_UP_TEXTS = 8


def main() -> None:
    parser = parser_of(__doc__, "--json")
    parser.add_argument("--model", required=True, help="dual-encoder: hub name or folder")
    parser.add_argument("--release", type=Path, required=True, help="release with the passages and dev questions")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="default: all")
    parser.add_argument("--max-length", type=int, help="most tokens of a text (default: the model's)")
    passages = "encode only the positives of dev and N passages (default: all passages)"
    parser.add_argument("--passages", type=int, metavar="N", help=passages)
    parser.add_argument("--block", type=int, default=256, help="passages per turn (default: 256)")
    threads = "threads (default: 1, because waiting threads also use processor time)"
    parser.add_argument("--threads", type=int, default=1, help=threads)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    figures = machine("torch", "transformers")
    release = open_release(args.release)
    columns = release.table("corpus", "corpus", ["_id", "text"])
    passage_ids = np.array(columns["_id"].to_pylist(), object)
    passage_texts = np.array(columns["text"].to_pylist(), object)
    queries = read_queries(release, "dev")
    qrels = release_qrels(release, "dev")

    # The encoded rows: passages at equal distances, and all positives.
    spaced_rows = np.linspace(0, len(passage_ids) - 1, args.passages or len(passage_ids)).astype(int)
    positive_ids = list(set[str]().union(*qrels.positives.values()))
    rows = np.union1d(spaced_rows, np.flatnonzero(np.isin(passage_ids, positive_ids)))

    query_encoders: dict[str, TextEncoder] = {}
    passage_encoders: dict[str, TextEncoder] = {}
    for way in args.ways:
        backend, dtype = way.split("-")
        precision = dtype_of(dtype, "cpu", backend)
        model = open_encoder(ModelSettings(args.model, max_length=args.max_length), "cpu", precision)
        query_encoders[way] = TextEncoder(model, "query")
        passage_encoders[way] = TextEncoder(model, "document")
        passage_encoders[way].encode(passage_texts[:_WARM_UP_TEXTS].tolist())

    # The ways take turns on every block, so that other load on the machine affects all of them.
    seconds = {way: np.zeros(2) for way in args.ways}  # of the processor, and of the clock
    vector_blocks: dict[str, list[Any]] = {way: [] for way in args.ways}
    for start in range(0, len(rows), args.block):
        block_texts = passage_texts[rows[start : start + args.block]].tolist()
        for way, encoder in passage_encoders.items():
            start_times = np.array([time.process_time(), time.perf_counter()])
            vector_blocks[way].append(encoder.encode(block_texts).astype(np.float32))
            seconds[way] += np.array([time.process_time(), time.perf_counter()]) - start_times
        progress = {way: way_seconds.round(1).tolist() for way, way_seconds in seconds.items()}
        print(start + len(block_texts), progress, file=sys.stderr)

    first_way = args.ways[0]
    first_scores = first_values = None
    table = []
    for way, encoder in query_encoders.items():
        query_vectors = encoder.encode([text for _, text in queries]).astype(np.float32)
        scores = query_vectors @ np.concatenate(vector_blocks[way]).T
        values = _reciprocal_ranks(scores, queries, passage_ids[rows], qrels)
        if first_scores is None or first_values is None:
            first_scores, first_values = scores, values
        speedups = seconds[first_way] / seconds[way]
        interval = compare_paired(values, first_values, level=0.95)["interval"]
        table.append(
            {
                "way": way,
                "passages_per_processor_second": round(len(rows) / seconds[way][0], 2),
                "times_as_fast": [round(speedup, 2) for speedup in speedups],  # by processor time, by wall time
                "largest_change_of_a_score": round(float(abs(scores - first_scores).max()), 6),
                "MRR@10": round(100 * float(values.mean()), 2),
                "change_of_MRR@10": [round(100 * limit, 2) for limit in interval],  # 95 % interval, in percent
            }
        )
    figures["passages"] = len(rows)
    figures["ways"] = table
    write_json(args.json, figures, show=True)


def _reciprocal_ranks(scores: Any, queries: Sequence[tuple[str, str]], passage_ids: Any, qrels: Qrels) -> Any:
    """Return RR@10 of every query of the reference. ``scores`` has the shape (queries, passages)."""
    best_columns = np.argsort(-scores, axis=1, kind="stable")[:, :LIST_DEPTH]
    rankings = {}
    for (query_id, _), columns in zip(queries, best_columns, strict=True):
        rankings[query_id] = passage_ids[columns].tolist()
    _, by_query = measure_rankings(rankings, qrels)
    return np.array(by_query["RR@10"])


if __name__ == "__main__":
    main()
