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
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import machine, parser_of, write_json

from baselines.core.settings import ModelSettings
from baselines.measure.measures import measure
from baselines.measure.qrels import read_queries, release_qrels
from baselines.measure.significance import paired
from baselines.retrieve.devices import dtype_of
from baselines.retrieve.encoder import TextEncoder
from baselines.retrieve.models import open_encoder
from builders.store.reader import open_release

WAYS = ["torch-fp32", "torch-bf16", "openvino-fp32", "openvino-bf16", "openvino-int8"]


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
    release, figures = open_release(args.release), machine("torch", "transformers")
    columns = release.table("corpus", "corpus", ["_id", "text"])
    ids, texts = (np.array(columns[name].to_pylist(), object) for name in ("_id", "text"))
    queries, qrels = read_queries(release, "dev"), release_qrels(release, "dev")
    spread = np.linspace(0, len(ids) - 1, args.passages or len(ids)).astype(int)
    positives = [passage for own in qrels.positives.values() for passage in own]
    chosen = np.union1d(spread, np.flatnonzero(np.isin(ids, positives)))
    sides: dict[str, list[TextEncoder]] = {}
    for way in args.ways:
        backend, dtype = way.split("-")
        precision = dtype_of(dtype, "cpu", backend)
        model = open_encoder(ModelSettings(args.model, max_length=args.max_length), "cpu", precision)
        sides[way] = [TextEncoder(model, task) for task in ("query", "document")]
        sides[way][1].encode(texts[:8].tolist())  # warm-up
    seconds = {way: np.zeros(2) for way in args.ways}
    rows: dict[str, list[Any]] = {way: [] for way in args.ways}
    for start in range(0, len(chosen), args.block):
        some = texts[chosen[start : start + args.block]].tolist()
        for way, (_, encoder) in sides.items():
            begin = np.array([time.process_time(), time.perf_counter()])
            rows[way].append(encoder.encode(some).astype(np.float32))
            seconds[way] += np.array([time.process_time(), time.perf_counter()]) - begin
        print(start + len(some), {way: each.round(1).tolist() for way, each in seconds.items()}, file=sys.stderr)
    scores, values, table = {}, {}, []
    for way, (encoder, _) in sides.items():
        scores[way] = encoder.encode([text for _, text in queries]).astype(np.float32) @ np.concatenate(rows[way]).T
        about: dict[str, Any] = {
            "way": way,
            "passages_per_processor_second": round(len(chosen) / seconds[way][0], 2),
            "times_as_fast": [round(each, 2) for each in seconds[args.ways[0]] / seconds[way]],  # CPU, wall
            "largest_change_of_a_score": round(float(abs(scores[way] - scores[args.ways[0]]).max()), 6),
        }
        best = np.argsort(-scores[way], axis=1, kind="stable")[:, :50]
        rankings = {query: ids[chosen[own]].tolist() for (query, _), own in zip(queries, best, strict=True)}
        values[way] = np.array(measure(rankings, qrels)[1]["RR@10"])
        about["MRR@10"] = round(100 * float(values[way].mean()), 2)
        interval = paired(values[way], values[args.ways[0]], level=0.95)["interval"]
        about["change_of_MRR@10"] = [round(100 * end, 2) for end in interval]  # 95 % interval, in percent
        table.append(about)
    write_json(args.json, {**figures, "passages": len(chosen), "ways": table}, show=True)


if __name__ == "__main__":
    main()
