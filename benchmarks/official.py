"""Measure time and memory of converting official archives to a release.

The collections of both official releases are created with --passages random passages. `python -m builders official`
converts each collection in a separate process. Wall time includes start-up. Memory is the largest sum over the process
tree (PSS, which counts shared pages once), sampled ten times a second.

Example:

  python benchmarks/official.py --passages 1000000 --json official.json
"""

import itertools
import json
import math
import random
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from common import machine, measured, parser_of, write_json
from official_archives import ORIGINAL, PASSAGES, PREPROCESSED, md5, original_files, preprocessed_files, write_files

_PARTS = 4  # files of the pre-processed collection


def made_up_passages(count: int, seed: int = 0) -> Iterator[str]:
    """Yield distinct passages of about 300 characters, as in the published collection."""
    generator = random.Random(seed)
    long_passages = [passage for passage in PASSAGES if len(passage) > 3]
    long_text = "".join(generator.choice(long_passages) for _ in range(40_000))
    for number in range(count):
        start = generator.randrange(len(long_text) - 500)
        length = generator.randrange(100, 500)
        yield f"{number}、{long_text[start : start + length]}"  # the number makes the passage distinct


def write_large(folder: Path, count: int) -> Path:
    """Write both releases' collections with ``count`` passages, and the train and dev files of the tests."""
    files = original_files() | preprocessed_files()
    write_files(folder, {name: text for name, text in files.items() if "/passage" not in name})
    parts_folder = folder / PREPROCESSED / "passage-collection"
    parts_folder.mkdir(parents=True)
    numbered_passages = enumerate(itertools.chain(PASSAGES, made_up_passages(count - len(PASSAGES))))
    passages_per_part = math.ceil(count / _PARTS)
    with (
        open(folder / ORIGINAL / "passage_collection.json", "w", encoding="utf-8") as collection_file,
        open(parts_folder / "passage2id.map.json", "w", encoding="utf-8") as ids_file,
    ):
        for part_number in range(_PARTS):
            with open(parts_folder / f"part-{part_number:02d}", "w", encoding="utf-8") as part_file:
                for row, passage in itertools.islice(numbered_passages, passages_per_part):
                    passage_id = md5(passage)
                    line = {"paragraph_id": passage_id, "paragraph_text": passage}
                    collection_file.write(json.dumps(line, ensure_ascii=False) + "\n")
                    # The map of ids is one JSON object, which is written entry by entry.
                    separator = ", " if row else "{"
                    ids_file.write(f'{separator}"{row}": "{passage_id}"')
                    part_file.write(f"-\t\t{passage}\t0\n")  # no question, no title, the passage, the label 0
        ids_file.write("}")
    return folder


def convert(archive: Path, out: Path) -> dict[str, float]:
    """Convert an archive in a new process, and return the costs (:func:`common.measured`)."""
    costs, _ = measured("official", "--quiet", "--out", out, "--archive", archive)
    return costs


def main() -> None:
    parser = parser_of(__doc__, "--json")
    parser.add_argument("--passages", type=int, default=1_000_000, help="number of passages (default: 1000000)")
    parser.add_argument("--tar-gz", action="store_true", help="also convert the original release as tar.gz")
    args = parser.parse_args()
    result = machine("pyarrow", "numpy", "numba", "msgspec")
    print(f"{args.passages:,} passages, {result['cores']} cores, Python {result['python']}")
    result["passages"] = args.passages
    result["runs"] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = write_large(Path(name) / "archives", args.passages)
        cases = {"original": folder / ORIGINAL, "pre-processed": folder / PREPROCESSED}
        if args.tar_gz:
            cases["original.tar.gz"] = Path(name) / "original.tar.gz"
            with tarfile.open(cases["original.tar.gz"], "w:gz", compresslevel=6) as tar:
                tar.add(folder / ORIGINAL, ORIGINAL)
        convert(folder / "dureader-retrieval-test1", Path(name) / "warm")  # warm-up: fills the cache of compiled code
        for case, archive in cases.items():
            input_files = [path for path in (archive, *archive.rglob("*")) if path.is_file()]
            input_bytes = sum(path.stat().st_size for path in input_files)
            costs = convert(archive, Path(name) / f"out-{case}")
            speed = round(args.passages / costs["seconds"])
            result["runs"][case] = costs | {"input_mb": round(input_bytes / 1e6), "passages_per_second": speed}
            print(
                f"{case:<16}{input_bytes / 1e6:>8,.0f} MB {costs['seconds']:>8.1f} s,"
                f" {costs['processor_seconds']:>6.1f} s CPU {speed:>10,} passages/s"
                f" {costs['peak_mb']:>8,} MB of memory",
                flush=True,
            )
    write_json(args.json, result)


if __name__ == "__main__":
    main()
