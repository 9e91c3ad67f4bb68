"""Start the search page of a Hugging Face Space with the folders beside this file.

The folders are `release/`, `model/`, `passages/` (the model's embeddings) and `reranker/`. Without a release, the page
builds the embedded sample. Without models, it searches by BM25 only. The Space's variables SPACE_MODEL and
SPACE_RERANKER name models on the hub instead.
"""

import os
import sys
from pathlib import Path

from baselines.__main__ import VERBS
from builders.core.command import main


def words(here: Path) -> list[str]:
    """Return the arguments of `python -m baselines` for the folders in ``here`` and the Space's variables."""
    found = ["show", "--serve", "--host", os.environ.get("GRADIO_SERVER_NAME", "0.0.0.0")]
    if port := os.environ.get("GRADIO_SERVER_PORT"):
        found += ["--port", port]
    named = {"model": "SPACE_MODEL", "reranker": "SPACE_RERANKER"}
    for option in ("release", *named, "passages"):
        if (here / option).is_dir():
            found += [f"--{option}", str(here / option)]
        elif name := os.environ.get(named.get(option, "")):
            found += [f"--{option}", name]
    return found


if __name__ == "__main__":
    sys.exit(main("baselines", "The search page.", VERBS, words(Path(__file__).resolve().parent)))
