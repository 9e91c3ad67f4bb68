"""``python -m builders VERB``: public sources in, a release directory out."""

from __future__ import annotations

import sys

from builders.core.command import main

GROUPS = {
    "make a release": {
        "release": "builders.release",
        "official": "builders.official",
        "squad": "builders.add.squad",
        "add": "builders.add",
    },
    "make it good": {
        "similar": "builders.similar",
        "annotate": "builders.annotate",
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
