"""What `estimate` says of rows, beside what their steps wrote and took: for a folder that `reproduce` has filled.

Bytes are those on the disk; seconds are the training's own (training.json), of other steps those of the whole command
(the stamp beside its output), starting included. GFLOPS: counted operations over measured seconds.

Example:

  python benchmarks/estimate.py --release DIR --settings baselines/settings/e5-cpu.toml --out build/runs --table 4 5
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from baselines import estimate  # noqa: E402


def bytes_of(path: Path) -> int:
    """A file's, or of all files of a directory; 0 where there is none."""
    if path.is_dir():
        return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    return path.stat().st_size if path.exists() else 0


def seconds_of(output: Path) -> float:
    """How long the step took."""
    if (output / "training.json").is_file():
        return float(json.loads((output / "training.json").read_text(encoding="utf-8"))["seconds"])
    stamp = output.with_name(f".{output.name}.step.json")
    return float(json.loads(stamp.read_text(encoding="utf-8"))["seconds"])


def table(report: dict[str, Any], out: Path) -> str:
    """The steps that are there, as Markdown."""
    lines = [
        "| step | said, MB | written, MB | said / written | operations | seconds | GFLOPS |",
        "|---|---|---|---|---|---|---|",
    ]
    for step in report["steps"]:
        output = out / step["output"]
        if not output.exists():
            continue
        written, seconds = bytes_of(output) + bytes_of(Path(f"{output}.training")), seconds_of(output)
        speed = f"{step['operations'] / seconds / 1e9:.0f}" if step["operations"] else ""
        cells = [f"{step['kept'] / 1e6:.2f}", f"{written / 1e6:.2f}", f"{step['kept'] / written:.3f}"]
        cells += [f"{step['operations']:.2e}" if step["operations"] else "", f"{seconds:.0f}", speed]
        lines.append(f"| `{step['output']}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    estimate.add_arguments(parser)
    args = parser.parse_args()
    print(table(estimate.estimate(args), args.out))


if __name__ == "__main__":
    main()
