"""Compare weights, embeddings, dense runs and scores between two checkouts on one machine.

These outputs depend on the processor, so checksums cannot be committed. Each checkout needs its own `.venv` (`make
setup`). Every step runs in both checkouts on the embedded sample. The program prints the outputs that differ. The exit
code is then 1.

    git worktree add ../before COMMIT && make -C ../before setup
    python benchmarks/same_bits.py ../before
"""

import gzip
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from common import ROOT, parser_of

SMALL = "scratch.layers=2 scratch.hidden=64 scratch.heads=4 scratch.feed_forward=128 scratch.vocabulary=2000"
SHORT = "data.passage_length=48 train.batch=16 train.epochs=2 train.learning_rate=1e-3"
STATIC = "model.start=words model.pooling= words.dimensions=256 train.batch=16 train.epochs=2"
PAIRS = "data.passage_length=48 data.held_out=0.2 train.batch=8 train.epochs=1"


def values(text: str) -> str:
    """Return an option --set for each word of ``text``."""
    return "".join(f" --set {value}" for value in text.split())


# Parts of the steps. {out} is the folder of the outputs.
R = "--release {out}/release"
N = "--negatives {out}/negatives.jsonl.gz"
STEPS = (
    "builders release --raw builders/sample --out {out}/release",
    f"baselines bm25 {R} --out {{out}}/dev.run.gz",
    f"baselines bm25 {R} --split train --out {{out}}/train.run.gz",
    f"baselines mine {R} --split train --run {{out}}/train.run.gz --out {{out}}/negatives.jsonl.gz",
    f"baselines train mlm-scratch {R} --out {{out}}/mlm-scratch{values(SMALL + ' ' + SHORT)}",
    f"baselines train de-bm25-neg-scratch {R} {N} --out {{out}}/dual{values(SHORT)} --start {{out}}/mlm-scratch",
    f"baselines train de-bm25-neg-scratch {R} {N} --out {{out}}/static{values(STATIC)}",
    f"baselines train ce-bm25-neg-scratch {R} {N} --dev-run {{out}}/dev.run.gz --out {{out}}/cross{values(SHORT)}"
    " --start {out}/mlm-scratch",
    f"baselines train question-matching-scratch --pairs {{out}}/pairs.tsv --out {{out}}/pairs{values(PAIRS)}"
    " --start {out}/mlm-scratch",
    f"baselines encode {R} --model {{out}}/dual --out {{out}}/embeddings",
    f"baselines search {R} --model {{out}}/dual --passages {{out}}/embeddings --out {{out}}/dual.run.gz",
    f"baselines search {R} --model {{out}}/dual --passages {{out}}/embeddings --engine faiss --out {{out}}/f.run.gz",
    f"baselines run {{out}}/static {R} --out {{out}}/static.run.gz",
    f"baselines rerank {R} --run {{out}}/dual.run.gz --model {{out}}/cross --out {{out}}/reranked.run.gz",
    f"baselines rerank {R} --run {{out}}/dev.run.gz --model {{out}}/cross --out {{out}}/cross.run.gz",
    "baselines fuse {out}/dev.run.gz {out}/dual.run.gz --out {out}/fused.run.gz",
    f"baselines match {R} --model {{out}}/pairs --out {{out}}/matched.tsv",
    f"baselines evaluate {R} {{out}}/dev.run.gz {{out}}/dual.run.gz {{out}}/fused.run.gz",
    f"baselines compare {R} {{out}}/dev.run.gz {{out}}/dual.run.gz {{out}}/cross.run.gz",
)
FILE_PATTERNS = (
    "*.gz",
    "*.tsv",
    "*.parquet",
    "*.safetensors",
    "*.npy",
    "*.f16",
    "*.f32",
    "vocab.txt",
    "tokenizer.json",
)


def write_pairs(path: Path) -> None:
    """Write 40 labelled pairs of questions."""
    lines = ["text1\ttext2\tlabel"]
    for number in range(40):
        is_same = number % 2
        first_word, last_word = ("第", "呢") if is_same else ("哪一个", "饭")
        lines.append(f"第{number}题怎么做\t{first_word}{number}题怎么做{last_word}\t{is_same}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def run_steps(checkout: Path, out: Path) -> dict[str, str]:
    """Run every step in a checkout. Return the SHA-256 of each output file, and of each step's stdout."""
    out.mkdir()
    write_pairs(out / "pairs.tsv")
    checksums = {}
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",  # a single thread always adds numbers in the same order
        "PYTHONPATH": str(checkout),
        "HF_HUB_OFFLINE": "1",
        "DUREADER_RETRIEVAL_CACHE": f"{out}-cache",  # otherwise, the second checkout would read what the first wrote
    }
    for step in STEPS:
        words = step.format(out=out).split()
        command = [str(checkout / ".venv/bin/python"), "-m", words[0], words[1], "--quiet", *words[2:]]
        print(checkout.name, *words[:3], file=sys.stderr)
        process = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, check=False)
        if process.returncode:
            raise SystemExit(f"{checkout}: {' '.join(words)}: {process.stderr.decode()[-500:]}")
        output = process.stdout.replace(str(out).encode(), b"OUT")
        checksums[step] = hashlib.sha256(output).hexdigest()
    for pattern in FILE_PATTERNS:
        for path in sorted(out.rglob(pattern)):
            content = path.read_bytes()
            if path.suffix == ".gz":  # the compressed bytes depend on the version of zlib
                content = gzip.decompress(content)
            checksums[str(path.relative_to(out))] = hashlib.sha256(content).hexdigest()
    return checksums


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("base", type=Path, help="the checkout to compare with")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        before = run_steps(args.base.resolve(), Path(folder) / "base")
        after = run_steps(ROOT, Path(folder) / "here")
    names = sorted({*before, *after})
    differing_names = [name for name in names if before.get(name) != after.get(name)]
    for name in differing_names:
        print(f"differs: {name}: {before.get(name, 'missing')[:100]} -> {after.get(name, 'missing')[:100]}")
    print(f"{len(names) - len(differing_names)} of {len(names)} outputs are the same")
    return bool(differing_names)


if __name__ == "__main__":
    sys.exit(main())
