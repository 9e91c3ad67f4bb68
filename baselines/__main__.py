"""``python -m baselines VERB``: a release directory in, runs, checkpoints and tables out."""

from __future__ import annotations

import sys

from builders.core.command import main

GROUPS = {
    "any model": {
        "run": "baselines.retrieve.run",
    },
    "search by words": {
        "bm25": "baselines.bm25",
    },
    "train a model": {
        "mine": "baselines.train.mine",
        "train": "baselines.train.train",
    },
    "search by a model": {
        "encode": "baselines.retrieve.encode",
        "search": "baselines.retrieve.search",
        "rerank": "baselines.retrieve.rerank",
        "fuse": "baselines.measure.fuse",
        "match": "baselines.match",
    },
    "measure and look": {
        "evaluate": "baselines.measure.evaluate",
        "compare": "baselines.measure.compare",
        "show": "baselines.look.show",
        "errors": "baselines.errors",
        "reproduce": "baselines.reproduce",
    },
    "hand a model on": {
        "convert": "baselines.hub.convert",
        "push": "baselines.hub.push",
        "pull": "baselines.hub.pull",
    },
}
VERBS = {verb: module for verbs in GROUPS.values() for verb, module in verbs.items()}

if __name__ == "__main__":
    sys.exit(main("baselines", "A release directory in; runs, checkpoints and tables out.", VERBS, groups=GROUPS))
