"""Helpers of the benchmarks: describe the machine, measure memory of a process tree, create rows, write JSON."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from itertools import cycle
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

_FIELDS = ("question_id", "question", "question_type", "fact_or_opinion", "answers")
_DOCUMENT_FIELDS = ("title", "paragraphs", "is_selected", "bs_rank_pos")
_TAG = "\ue000"  # placeholder for the number; a private-use character that occurs in no text


def machine(*packages: str) -> dict[str, Any]:
    """Return cores, load and versions for the figures of a benchmark."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }


def memory(pid: int) -> int:
    """Return the proportional set size of a process and its descendants, in bytes."""
    total, waiting = 0, [pid]
    while waiting:
        current = waiting.pop()
        try:
            for line in Path(f"/proc/{current}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
            for task in Path(f"/proc/{current}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:  # the process has just ended
            continue
    return total


def raw_rows(paths: list[Path], questions: int, folder: Path) -> int:
    """Write ``questions`` rows in the raw format to ``folder``, one file per split, and return their size in bytes.

    The splits of ``paths`` take turns, and their rows repeat until there are enough. A number is appended to the
    question and to every paragraph, so that all texts are distinct.
    """
    from builders.release.rows import find_sources
    from builders.sources.lines import lines, read_blocks

    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[bytes]] = {}
    for block in read_blocks(find_sources(paths)):
        for _, line in lines(block):
            if bytes(line).strip():
                rows.setdefault(block.source.split, []).append(_template(json.loads(bytes(line))))
    for first, (split, found) in enumerate(rows.items()):
        with open(folder / f"{split}.json", "wb") as file:
            for row, number in zip(cycle(found), range(first, questions, len(rows)), strict=False):
                file.write(row.replace(_TAG.encode(), b"%d" % number))
    return sum(file.stat().st_size for file in folder.iterdir())


def _template(row: dict[str, Any]) -> bytes:
    kept = {name: row[name] for name in _FIELDS if name in row}
    kept["question"] += f"#{_TAG}"
    kept["documents"] = [{name: each[name] for name in _DOCUMENT_FIELDS if name in each} for each in row["documents"]]
    for document in kept["documents"]:
        document["paragraphs"] = [f"{paragraph}#{_TAG}" for paragraph in document["paragraphs"]]
    kept["question_id"] = _TAG
    text = json.dumps(kept, ensure_ascii=False).replace(f'"question_id": "{_TAG}"', f'"question_id": {_TAG}')
    return text.encode() + b"\n"


def write_json(path: Path | None, figures: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
