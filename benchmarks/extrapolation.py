"""Measure time and memory of `add restrain` and `add resttest` at the size of MS MARCO.

Random vectors around random centres replace the embeddings of 500,000 training and 7,000 test queries. The release
of these queries has no passages. Each command runs in its own process, as on the command line.

Example:

  python benchmarks/extrapolation.py --json extrapolation.json
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import machine, measured, parser_of, write_json

from builders.store.draft import draft_release
from builders.store.layout import QRELS, QUERIES, text_id


def _make(folder: Path, *, trains: int, tests: int, centre_count: int, dimensions: int) -> tuple[Path, Path]:
    """Write a release and the vectors of its queries, which lie around random centres."""
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((centre_count, dimensions), np.float32)
    total = trains + tests
    ids = [text_id(f"query {number}") for number in range(total)]
    path = folder / "vectors.parquet"
    schema = pa.schema([("id", pa.string()), ("vector", pa.list_(pa.float32()))])
    with pq.ParquetWriter(path, schema) as file:
        for start in range(0, total, 10_000):
            rows = min(10_000, total - start)
            noise = generator.standard_normal((rows, dimensions), np.float32)
            vectors = centres[generator.integers(centre_count, size=rows)] + noise
            file.write_table(pa.table([ids[start : start + rows], [*vectors]], schema=schema))
    with draft_release(folder / "release", {"verb": "benchmark", "options": {}, "sources": []}) as draft:
        for split, part in (("train", ids[:trains]), ("dev", ids[trains:])):
            draft.write("queries", split, [pa.table([part, part], schema=QUERIES)])
            passages = [text_id(query) for query in part]
            draft.write("qrels", split, [pa.table([part, passages, [1] * len(part)], schema=QRELS)])
    return folder / "release", path


def main() -> None:
    parser = parser_of(__doc__, "--json")
    parser.add_argument("--trains", type=int, default=500_000, help="training queries (default: 500000)")
    parser.add_argument("--tests", type=int, default=7_000, help="test queries (default: 7000)")
    parser.add_argument("--dimensions", type=int, default=768, help="dimensions of a vector (default: 768)")
    parser.add_argument("--centres", type=int, default=5_000, help="number of random centres (default: 5000)")
    sizes = ["14K", "45K", "200K"]
    parser.add_argument("--sizes", nargs="+", default=sizes, help="sizes for `add restrain` (default: 14K 45K 200K)")
    args = parser.parse_args()
    figures: dict[str, Any] = machine("faiss-cpu", "numpy", "pyarrow")
    figures |= {name: value for name, value in vars(args).items() if name != "json"}
    with tempfile.TemporaryDirectory() as folder:
        release, vectors = _make(
            Path(folder),
            trains=args.trains,
            tests=args.tests,
            centre_count=args.centres,
            dimensions=args.dimensions,
        )
        options = ("--release", release, "--embeddings", vectors, "--out", f"{folder}/out")
        for name, *words in (["restrain", "--size", *args.sizes], ["resttest"]):
            costs, sets = measured("add", name, *words, *options)
            figures[name] = {**costs, "sets": sets}
    write_json(args.json, figures, show=True)


if __name__ == "__main__":
    main()
