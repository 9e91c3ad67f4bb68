"""``python -m builders VERB``: public sources in, a release directory out."""

from __future__ import annotations

import sys

from builders.common.command import main

GROUPS = {
    "make a release": {
        "sources": "builders.sources",
        "release": "builders.release",
        "official": "builders.official",
        "squad": "builders.squad",
    },
    "add sets to it": {
        "cmedqa": "builders.cmedqa",
        "ccovid": "builders.ccovid",
        "crosslingual": "builders.crosslingual",
        "extrapolate": "builders.extrapolate",
        "samples": "builders.samples",
    },
    "make it good": {
        "similar": "builders.similar",
        "contamination": "builders.similar.contamination",
        "pool": "builders.pool",
        "relabel": "builders.relabel",
        "annotate": "builders.annotate",
    },
    "look at it": {
        "stats": "builders.stats",
        "check": "builders.check",
    },
    "hand it on": {
        "export": "builders.export",
        "publish": "builders.publish",
    },
}
VERBS = {verb: module for verbs in GROUPS.values() for verb, module in verbs.items()}

if __name__ == "__main__":
    sys.exit(main("builders", "Public sources in, a release directory out.", VERBS, groups=GROUPS))
