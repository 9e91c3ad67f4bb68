"""Measure time and memory of converting official archives to a release.

The collections of both official releases are created with --passages random passages. `python -m builders official`
converts each collection in a separate process. Wall time includes start-up. Memory is the largest sum over the process
tree (PSS, which counts shared pages once), sampled ten times a second.

Example:

  python benchmarks/official.py --passages 1000000 --json official.json
"""

import itertools
import json
import random
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import machine, measured, parser_of, write_json
from official_archives import ORIGINAL, PASSAGES, PREPROCESSED, md5, original_files, preprocessed_files, write_files


def made_up_passages(count: int, seed: int = 0) -> Iterator[str]:
    """Yield distinct passages of about 300 characters, as in the published collection."""
    rng = random.Random(seed)
    pieces = [p for p in PASSAGES if len(p) > 3]
    text = "".join(rng.choice(pieces) for _ in range(40_000))
    for number in range(count):
        start, length = rng.randrange(len(text) - 500), rng.randrange(100, 500)
        yield f"{number}、{text[start : start + length]}"


def write_large(folder: Path, count: int) -> Path:
    """Write both releases' collections with ``count`` passages, and the train and dev files of the tests."""
    files = original_files() | preprocessed_files()
    write_files(folder, {name: text for name, text in files.items() if "/passage" not in name})
    parts = folder / PREPROCESSED / "passage-collection"
    parts.mkdir(parents=True)
    every = enumerate(itertools.chain(PASSAGES, made_up_passages(count - len(PASSAGES))))
    with (
        open(folder / ORIGINAL / "passage_collection.json", "w", encoding="utf-8") as whole,
        open(parts / "passage2id.map.json", "w", encoding="utf-8") as ids,
    ):
        for number in range(4):
            with open(parts / f"part-{number:02d}", "w", encoding="utf-8") as part:
                for row, passage in itertools.islice(every, -(-count // 4)):
                    key = md5(passage)
                    whole.write(json.dumps({"paragraph_id": key, "paragraph_text": passage}, ensure_ascii=False) + "\n")
                    ids.write(f'{", " if row else "{"}"{row}": "{key}"')
                    part.write(f"-\t\t{passage}\t0\n")
        ids.write("}")
    return folder


def convert(archive: Path, out: Path) -> dict[str, float]:
    return measured("official", "--quiet", "--out", out, "--archive", archive)[0]


def main() -> None:
    parser = parser_of(__doc__, "--json")
    parser.add_argument("--passages", type=int, default=1_000_000, help="number of passages (default: 1000000)")
    parser.add_argument("--tar-gz", action="store_true", help="also convert the original release as tar.gz")
    args = parser.parse_args()
    about = machine("pyarrow", "numpy", "numba", "msgspec")
    result: dict[str, Any] = {**about, "passages": args.passages, "runs": {}}
    print(f"{args.passages:,} passages, {about['cores']} cores, Python {about['python']}")
    with tempfile.TemporaryDirectory() as name:
        folder = write_large(Path(name) / "archives", args.passages)
        cases = {"original": folder / ORIGINAL, "pre-processed": folder / PREPROCESSED}
        if args.tar_gz:
            cases["original.tar.gz"] = Path(name) / "original.tar.gz"
            with tarfile.open(cases["original.tar.gz"], "w:gz", compresslevel=6) as tar:
                tar.add(folder / ORIGINAL, ORIGINAL)
        convert(folder / "dureader-retrieval-test1", Path(name) / "warm")  # warm-up: fills the cache of compiled code
        for case, archive in cases.items():
            size = sum(path.stat().st_size for path in (archive, *archive.rglob("*")) if path.is_file())
            costs = convert(archive, Path(name) / f"out-{case}")
            speed = round(args.passages / costs["seconds"])
            result["runs"][case] = {**costs, "input_mb": round(size / 1e6), "passages_per_second": speed}
            print(
                f"{case:<16}{size / 1e6:>8,.0f} MB {costs['seconds']:>8.1f} s, {costs['processor_seconds']:>6.1f} s CPU"
                f" {speed:>10,} passages/s {costs['peak_mb']:>8,} MB of memory",
                flush=True,
            )
    write_json(args.json, result)


if __name__ == "__main__":
    main()
