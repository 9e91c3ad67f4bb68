"""What a Hugging Face Space starts: the search page over what lies beside this file.

`release/`, `model/` with `passages/` (its embeddings), `reranker/`; without a release the embedded sample, without
models BM25 alone. The Space's variables SPACE_MODEL and SPACE_RERANKER name models on the hub instead.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from baselines.__main__ import VERBS
from builders.core.command import main


def words(here: Path) -> list[str]:
    """The command for what a folder holds."""
    found = ["space", "--host", os.environ.get("GRADIO_SERVER_NAME", "0.0.0.0")]
    if port := os.environ.get("GRADIO_SERVER_PORT"):
        found += ["--port", port]
    if (here / "release").is_dir():
        found += ["--release", str(here / "release")]
    for option, variable in (("model", "SPACE_MODEL"), ("reranker", "SPACE_RERANKER")):
        name = str(here / option) if (here / option).is_dir() else os.environ.get(variable)
        if name:
            found += [f"--{option}", name]
    if (here / "passages").is_dir():
        found += ["--passages", str(here / "passages")]
    return found


if __name__ == "__main__":
    sys.exit(main("baselines", "The search page.", VERBS, words(Path(__file__).resolve().parent)))
