"""Program ``python -m builders VERB``: build release directories from public sources."""

import sys

from builders.core.command import main

GROUPS = {
    "make a release": {
        "release": "builders.release",
        "official": "builders.official",
        "squad": "builders.add.squad",
        "add": "builders.add",
    },
    "improve and check it": {"similar": "builders.similar", "annotate": "builders.annotate", "check": "builders.check"},
    "export and publish it": {"export": "builders.export", "publish": "builders.publish"},
}
VERBS = {verb: module for verbs in GROUPS.values() for verb, module in verbs.items()}

if __name__ == "__main__":
    sys.exit(main("builders", "Build release directories from public sources.", VERBS, groups=GROUPS))
