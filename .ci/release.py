"""Build the sdist and the wheel, test them in a new environment, and print the steps that a person does.

`make release` runs this module in an environment with the packages `build`, `twine` and `uv`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from builders.core.version import VERSION  # noqa: E402

FOLDER = ROOT / "build" / "release"
DIST = FOLDER / "dist"
# The first lines of README.
EVALUATE = """
import numpy as np
from baselines import evaluate


def encode(texts):
    return [np.bincount([ord(character) % 1000 for character in text], minlength=1000) for text in texts]


print(round(evaluate(encode, "build/sample", split="dev")["MRR@10"], 4))
"""
LOAD = """
import dureader_retrieval
from datasets import load_dataset

dev = load_dataset("dureader_retrieval", "dev", data_dir="build/sample", split="dev")
print(dev[0]["query"], len(dev[0]["positive_passages"]))
"""
NEXT_STEPS = f"""
build/release/dist is complete and tested. These steps are for a person:
1. In CHANGELOG.md, write the day of the release behind {VERSION}. Commit, and wait for the checks of the main branch.
2. Only once: create the environment `release` in the repository's settings, with a required reviewer and the tags v*.
   (A workflow would create it without protection, and would upload without an approval.) Then register the repository,
   the workflow publish.yml and this environment as a trusted publisher of dureader-retrieval at the registry. Before
   the first upload, this is a pending publisher of the account.
3. git tag v{VERSION} && git push origin v{VERSION}
   The workflow builds and checks the files again, waits for the approval of the environment, and uploads them.
4. Install the package from the registry in an empty environment, and run README's first screen.
"""


def call(words: Sequence[object], folder: Path = ROOT) -> str:
    """Print and run a command. Return its stdout. A command that fails ends the release."""
    texts = [str(word) for word in words]
    print("+", " ".join(text if "\n" not in text else "..." for text in texts), flush=True)
    completed = subprocess.run(texts, cwd=folder, stdout=subprocess.PIPE, text=True, encoding="utf-8", check=False)
    print(completed.stdout, end="", flush=True)
    if completed.returncode:
        sys.exit(f"exit code {completed.returncode}")
    return completed.stdout


def expect(condition: bool, problem: str) -> None:
    """End the release with a message unless the condition holds."""
    if not condition:
        sys.exit(f"error: {problem}")


def build_files() -> Path:
    """Build the sdist, and the wheel from the sdist. Return the wheel's path."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    call([sys.executable, "-m", "build", "--outdir", DIST])
    call([sys.executable, "-m", "twine", "check", "--strict", *sorted(DIST.iterdir())])
    expect(len(list(DIST.iterdir())) == 2, "expected an sdist and a wheel")
    (wheel,) = DIST.glob(f"dureader_retrieval-{VERSION}-*.whl")
    return wheel


def try_wheel(wheel: Path) -> None:
    """Install the wheel into a new environment. Run README's first lines in an empty folder."""
    uv = [sys.executable, "-m", "uv"]
    call([*uv, "venv", "--quiet", "--python", sys.executable, FOLDER / "venv"])
    programs = FOLDER / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    constraints = ROOT / "constraints.txt"
    requirement = f"dureader-retrieval[baselines] @ {wheel.as_uri()}"
    call([*uv, "pip", "install", "--quiet", "--python", programs / "python", "-c", constraints, requirement])
    folder = FOLDER / "empty"
    folder.mkdir()
    # Indexes and prepared data of earlier versions must not be reused.
    os.environ["DUREADER_RETRIEVAL_CACHE"] = str(FOLDER / "cache")
    os.environ["HF_DATASETS_CACHE"] = str(FOLDER / "datasets")
    version_line = call([programs / "dureader-retrieval", "--version"], folder)
    expect(version_line.split()[-1] == VERSION, f"expected version {VERSION}, found {version_line}")
    call([programs / "dureader-retrieval", "release", "--raw", "builders/sample", "--out", "build/sample"], folder)
    call([programs / "python", "-c", LOAD], folder)
    score = call([programs / "python", "-c", EVALUATE], folder)
    expect(score.split()[-1] == "0.3173", "README's MRR@10 of the sample is 0.3173")
    search = [programs / "dureader-retrieval", "bm25", "--release", "build/sample", "--out", "bm25.run.gz"]
    call(search, folder)
    measures = [
        programs / "dureader-retrieval",
        "evaluate",
        "--release",
        "build/sample",
        "--split",
        "dev",
        "bm25.run.gz",
    ]
    call(measures, folder)


def main() -> None:
    """Build, check and try the release files."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    expect(f"\n## [{VERSION}]" in changelog, f"CHANGELOG.md has no section [{VERSION}]")
    try_wheel(build_files())
    print(NEXT_STEPS)


if __name__ == "__main__":
    main()
