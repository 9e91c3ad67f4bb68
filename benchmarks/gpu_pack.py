"""Pack the model, data and wheels that benchmarks/gpu.py needs on a machine with a GPU and no network.

The output folder build/gpu-pack contains:
  model.npz, tokenizer/   multilingual-e5-small in 4 bits, and its tokenizer
  unpack_q4.py            program that creates a model from model.npz and tokenizer/
  release/                cmrc2018 with 30,000 news passages, and the sets cmedqa and ccovid
  runs.tar.xz             BM25's runs and mined negatives for `reproduce --table 4 5 7 8`
  wheels/                 packages that a CUDA image lacks, for the Python version of --python

Example:

  python benchmarks/gpu_pack.py --data DATA --models MODELS
"""

import gzip
import io
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from common import ROOT, parser_of

from baselines.reproduce.run_steps import run_steps
from baselines.reproduce.select_rows import Selection, select_rows
from baselines.reproduce.step_settings import read_settings
from baselines.reproduce.steps import Step, Steps
from builders.core.errors import InputError

MODEL = "multilingual-e5-small-zh-en"
PACK = ROOT / "build" / "gpu-pack"
RELEASE, RUNS = Path("build/gpu-pack/release"), Path("build/gpu/runs")  # gpu.py runs `reproduce` on these folders
SETTINGS = ROOT / "baselines" / "settings" / "e5-gpu.toml"
TABLES = [4, 5, 7, 8]
JOINED = ("train", "dev", "test")  # these configs repeat the texts of corpus and queries
WHEELS = ("datasets", "dill", "multiprocess", "msgspec", "sentence-transformers", "ir-measures", "pytrec-eval-terrier")
LIMIT = 64  # MiB


def call(*words: object) -> None:
    subprocess.run([sys.executable, "-m", *map(str, words)], check=True, cwd=ROOT)


def build_release(data: Path, out: Path) -> None:
    """Build a release with all sets of Tables 4, 5, 7 and 8 from the files of the data sets."""
    news = sorted((data / "crud-news").glob("documents_dup_part_[1-5]_part_*.gz"))
    cmrc = [f"--{split}={data / 'cmrc2018' / f'{split}.json.gz'}" for split in ("train", "dev")]
    call("builders", "squad", *cmrc, "--dev-size", 1000, "--passages", *news, "--out", out)
    both = ("--release", out, "--out", out)
    call("builders", "add", "cmedqa", "--source", data / "cepilepsyqa", *both)
    call("builders", "add", "ccovid", "--source", data / "ncp-policies", "--test-size", 300, *both)


def run_without_models(release: Path, runs: Path, tables: Sequence[int]) -> None:
    """Run the steps of `reproduce` that need no model: BM25 searches, and mining from BM25's runs."""
    do = Steps(release, runs, settings=read_settings(SETTINGS))
    for row in select_rows(do, Selection(tables)):
        row.run()
    free: dict[str, Step] = {}
    for name, step in do.recorded.items():
        if step.verb in ("bm25", "mine") and all(other in free for other in step.needs):
            free[name] = step
    run_steps(free, runs)


def copy_release(source: Path, out: Path) -> list[str]:
    """Copy a release without the configs of JOINED, and return the paths of the skipped files."""
    manifest = json.loads((source / "manifest.json").read_text(encoding="utf-8"))
    skipped = [entry["path"] for entry in manifest["files"] if entry["path"].split("/")[0] in JOINED]
    manifest["files"] = [entry for entry in manifest["files"] if entry["path"] not in skipped]
    for entry in manifest["files"]:
        (out / entry["path"]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / entry["path"], out / entry["path"])
    (out / "manifest.json").write_text(json.dumps(manifest, ensure_ascii=False, indent=1), encoding="utf-8")
    return skipped


def archive_runs(runs: Path, archive: Path) -> None:
    """Archive a folder of runs. Gzipped files are decompressed first, because xz compresses better than gzip."""
    with tarfile.open(archive, "w:xz", preset=3) as tar:
        for path in sorted(runs.iterdir()):
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            entry = tarfile.TarInfo(path.name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def download(names: Sequence[str], python: str, out: Path) -> None:
    """Download the wheels of packages, in the versions of constraints.txt."""
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (39, 34, 28, 27, 24, 17)]
    words = ["--only-binary=:all:", "--no-deps", f"--python-version={python}", "--implementation=cp", *platforms]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    versions = dict(line.split(" ;")[0].split("==") for line in reversed(lines) if "==" in line)
    call("pip", "download", "--quiet", *words, "-d", out, *(f"{name}=={versions[name]}" for name in names))


def mib(path: Path) -> float:
    """Return the size of a file or a folder, in MiB."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files) / 2**20


def main() -> None:
    parser = parser_of(__doc__)
    data = "folder of cmrc2018, crud-news, cepilepsyqa and ncp-policies"
    parser.add_argument("--data", type=Path, required=True, help=data)
    parser.add_argument("--models", type=Path, required=True, help=f"folder of {MODEL}, its .q4.npz and unpack_q4.py")
    parser.add_argument("--python", default="3.12", help="Python version of the machine with the GPU (default: 3.12)")
    args = parser.parse_args()
    shutil.rmtree(PACK, ignore_errors=True)
    whole = ROOT / "build" / "gpu-release"
    build_release(args.data.resolve(), whole)
    skipped = copy_release(whole, ROOT / RELEASE)
    run_without_models(RELEASE, RUNS, TABLES)
    archive_runs(ROOT / RUNS, PACK / "runs.tar.xz")
    shutil.copy(args.models / f"{MODEL}.q4.npz", PACK / "model.npz")
    shutil.copy(args.models / "unpack_q4.py", PACK)
    shutil.copytree(args.models / MODEL, PACK / "tokenizer", ignore=shutil.ignore_patterns("model.safetensors"))
    download(WHEELS, args.python, PACK / "wheels")
    for path in sorted(PACK.iterdir()):
        print(f"{mib(path):7.1f} MiB  {path.name}")
    print(f"{mib(PACK):7.1f} MiB in total; skipped: {', '.join(skipped)}")
    if mib(PACK) > LIMIT:
        raise SystemExit(f"{PACK}: larger than the limit of {LIMIT} MiB")


if __name__ == "__main__":
    try:
        main()
    except (InputError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")
