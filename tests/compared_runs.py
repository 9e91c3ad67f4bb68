"""Judgments and runs of some systems of known quality, for `compare` and for ranx alike."""

from __future__ import annotations

import random
from pathlib import Path

QUERIES = [f"q{number}" for number in range(60)]
# How likely the positive passage stands at each rank from the first on.
SYSTEMS = {"strong": 0.7, "alike": 0.62, "middling": 0.35, "weak": 0.12}
DEPTH = 20


def write_judgments(path: Path) -> Path:
    """TREC qrels: one positive passage a query."""
    path.write_text("".join(f"{query} 0 good 1\n" for query in QUERIES))
    return path


def write_runs(folder: Path) -> list[Path]:
    """A TREC run of each of ``SYSTEMS``; the same at every call."""
    draw = random.Random(11)
    paths = []
    for name, quality in SYSTEMS.items():
        lines = []
        for query in QUERIES:
            passages = [f"other{place}" for place in range(DEPTH)]
            rank = next((place for place in range(DEPTH) if draw.random() < quality), None)
            if rank is not None:
                passages[rank] = "good"
            lines += [f"{query} Q0 {passage} {n} {DEPTH - n} {name}\n" for n, passage in enumerate(passages, 1)]
        paths.append(folder / f"{name}.run")
        paths[-1].write_text("".join(lines))
    return paths
