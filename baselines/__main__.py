"""``python -m baselines VERB``: a release directory in, runs, measures and tables out."""

from __future__ import annotations

import sys

from builders.common.command import main

VERBS = {
    "bm25": "baselines.bm25",
    "mine": "baselines.mine",
    "train": "baselines.train",
    "encode": "baselines.encode",
    "search": "baselines.search",
    "rerank": "baselines.rerank",
    "fuse": "baselines.runs.fuse",
    "evaluate": "baselines.runs.evaluate",
    "show": "baselines.show",
    "reproduce": "baselines.reproduce",
    "push": "baselines.hub.push",
    "pull": "baselines.hub.pull",
}

if __name__ == "__main__":
    sys.exit(main("baselines", "Retrieve, re-rank, evaluate: everything that starts from a release directory.", VERBS))
