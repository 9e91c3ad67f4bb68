"""Pack the model, data and wheels that benchmarks/gpu.py needs on a machine with a GPU and no network.

The output folder build/gpu-pack contains:
  model.npz, tokenizer/   multilingual-e5-small in 4 bits, and its tokenizer
  unpack_q4.py            program that creates a model from model.npz and tokenizer/
  release/                cmrc2018 with 30,000 news passages, and the sets cmedqa and ccovid
  runs.tar.xz             BM25's runs and mined negatives for `reproduce --table 4 5 7 8`
  crosslingual/, crosslingual-runs.tar.xz   the same for `reproduce --table 9`, with --crosslingual
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
from baselines.reproduce.select_rows import RowSelection, select_rows
from baselines.reproduce.step_settings import read_settings
from baselines.reproduce.steps import Step, Steps
from builders.core.errors import InputError

MODEL = "multilingual-e5-small-zh-en"
PACK = ROOT / "build" / "gpu-pack"
RELEASE, RUNS = Path("build/gpu-pack/release"), Path("build/gpu/runs")  # gpu.py runs `reproduce` on these folders
SETTINGS = ROOT / "baselines" / "settings" / "e5-gpu.toml"
TABLES = [4, 5, 7, 8]
CROSSLINGUAL, CROSSLINGUAL_RUNS = Path("build/gpu-pack/crosslingual"), Path("build/gpu/crosslingual-runs")
JOINED = ("train", "dev", "test")  # these configs repeat the texts of corpus and queries
# Requirements of the project that a CUDA image with PyTorch usually has, by their names on PyPI.
IN_THE_IMAGE = (
    *("accelerate", "cloudpickle", "filelock", "huggingface-hub", "jinja2", "matplotlib", "numba", "numpy", "pyarrow"),
    *("pyyaml", "scikit-learn", "scipy", "statsmodels", "torch", "tqdm", "transformers"),
)
# Packages that such an image lacks.
WHEELS = (
    *("datasets", "dill", "multiprocess", "msgspec", "sentence-transformers", "ir-measures", "pytrec-eval-terrier"),
    *("cyclopts", "docstring-parser", "rich-rst", "loky", "platformdirs"),
)
LIMIT = 64  # MiB


def call(*words: object) -> None:
    """Run a module in a new process, in the repository's folder."""
    subprocess.run([sys.executable, "-m", *map(str, words)], check=True, cwd=ROOT)


def build_release(data: Path, out: Path) -> None:
    """Build a release with all sets of Tables 4, 5, 7 and 8 from the files of the data sets."""
    news = sorted((data / "crud-news").glob("documents_dup_part_[1-5]_part_*.gz"))
    cmrc = [f"--{split}={data / 'cmrc2018' / f'{split}.json.gz'}" for split in ("train", "dev")]
    call("builders", "squad", *cmrc, "--dev-size", 1000, "--passages", *news, "--out", out)
    in_place = ("--release", out, "--out", out)
    call("builders", "add", "cmedqa", "--source", data / "cepilepsyqa", *in_place)
    call("builders", "add", "ccovid", "--source", data / "ncp-policies", "--test-size", 300, *in_place)


def build_crosslingual(data: Path, out: Path) -> None:
    """Build the release of Table 9, as docs/baselines.md describes, from XQuAD, Tatoeba and CMRC's questions."""
    work = out.with_name("crosslingual-data")
    pairs = data / "tatoeba-cmn-eng" / "cmn.txt.gz"
    words = ["--xquad", data / "xquad", "--pairs", pairs, "--out", work]
    subprocess.run([sys.executable, "benchmarks/crosslingual_data.py", *map(str, words)], check=True, cwd=ROOT)
    train_files = [work / "train.json", data / "cmrc2018" / "train.json.gz"]
    call("builders", "squad", "--train", *train_files, "--dev", work / "dev.json", "--out", out)
    call("builders", "add", "crosslingual", "--source", work / "translations.tsv", "--release", out, "--out", out)


def run_without_models(release: Path, runs: Path, tables: Sequence[int]) -> None:
    """Run the steps of `reproduce` that need no model: BM25 searches, and mining from BM25's runs."""
    steps = Steps(release, runs, settings=read_settings(SETTINGS))
    for row in select_rows(steps, RowSelection(tables)):
        row.run()  # records the row's steps
    steps_without_models: dict[str, Step] = {}
    for name, step in steps.recorded.items():
        if step.verb in ("bm25", "mine") and all(needed_name in steps_without_models for needed_name in step.needs):
            steps_without_models[name] = step
    run_steps(steps_without_models, runs)


def copy_release(source: Path, out: Path) -> list[str]:
    """Copy a release without the configs of JOINED, and return the paths of the skipped files."""
    manifest = json.loads((source / "manifest.json").read_text(encoding="utf-8"))
    skipped_paths = []
    copied_entries = []
    for entry in manifest["files"]:
        config = entry["path"].split("/")[0]
        if config in JOINED:
            skipped_paths.append(entry["path"])
            continue
        copied_entries.append(entry)
        copy_path = out / entry["path"]
        copy_path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / entry["path"], copy_path)
    manifest["files"] = copied_entries
    (out / "manifest.json").write_text(json.dumps(manifest, ensure_ascii=False, indent=1), encoding="utf-8")
    return skipped_paths


def archive_runs(runs: Path, archive: Path) -> None:
    """Archive a folder of runs. Gzipped files are decompressed first, because xz compresses better than gzip.

    They keep their names, and ``unpack_runs`` of gpu.py compresses them again.
    """
    with tarfile.open(archive, "w:xz", preset=6) as tar:
        for path in sorted(runs.iterdir()):
            content = path.read_bytes()
            if path.suffix == ".gz":
                content = gzip.decompress(content)
            entry = tarfile.TarInfo(path.name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def download(names: Sequence[str], python: str, out: Path) -> None:
    """Download the wheels of packages, in the versions of constraints.txt, for a version ``python`` such as 3.12."""
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (39, 34, 28, 27, 24, 17)]
    options = ["--only-binary=:all:", "--no-deps", f"--python-version={python}", "--implementation=cp", *platforms]
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    versions: dict[str, str] = {}
    for line in constraints:
        if "==" in line:
            requirement, _, _ = line.partition(" ;")  # without the condition on Python's version
            package, version = requirement.split("==")
            versions.setdefault(package, version)
    requirements = [f"{name}=={versions[name]}" for name in names]
    call("pip", "download", "--quiet", *options, "-d", out, *requirements)


def mib(path: Path) -> float:
    """Return the size of a file or a folder, in MiB."""
    files = [path, *path.rglob("*")]
    return sum(file.stat().st_size for file in files if file.is_file()) / 2**20


def main() -> None:
    parser = parser_of(__doc__)
    data = "folder of cmrc2018, crud-news, cepilepsyqa and ncp-policies"
    parser.add_argument("--data", type=Path, required=True, help=data)
    parser.add_argument("--models", type=Path, required=True, help=f"folder of {MODEL}, its .q4.npz and unpack_q4.py")
    parser.add_argument(
        "--crosslingual", action="store_true", help="also pack Table 9 (DATA with xquad, tatoeba-cmn-eng)"
    )
    parser.add_argument("--python", default="3.12", help="Python version of the machine with the GPU (default: 3.12)")
    args = parser.parse_args()
    shutil.rmtree(PACK, ignore_errors=True)
    full_release = ROOT / "build" / "gpu-release"
    build_release(args.data.resolve(), full_release)
    skipped_paths = copy_release(full_release, ROOT / RELEASE)
    run_without_models(RELEASE, RUNS, TABLES)
    archive_runs(ROOT / RUNS, PACK / "runs.tar.xz")
    if args.crosslingual:
        full_crosslingual = ROOT / "build" / "gpu-crosslingual"
        build_crosslingual(args.data.resolve(), full_crosslingual)
        copy_release(full_crosslingual, ROOT / CROSSLINGUAL)
        run_without_models(CROSSLINGUAL, CROSSLINGUAL_RUNS, [9])
        archive_runs(ROOT / CROSSLINGUAL_RUNS, PACK / "crosslingual-runs.tar.xz")
    shutil.copy(args.models / f"{MODEL}.q4.npz", PACK / "model.npz")
    shutil.copy(args.models / "unpack_q4.py", PACK)
    shutil.copytree(args.models / MODEL, PACK / "tokenizer", ignore=shutil.ignore_patterns("model.safetensors"))
    download(WHEELS, args.python, PACK / "wheels")
    for path in sorted(PACK.iterdir()):
        print(f"{mib(path):7.1f} MiB  {path.name}")
    print(f"{mib(PACK):7.1f} MiB in total; skipped: {', '.join(skipped_paths)}")
    if mib(PACK) > LIMIT:
        raise SystemExit(f"{PACK}: larger than the limit of {LIMIT} MiB")


if __name__ == "__main__":
    try:
        main()
    except (InputError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")
