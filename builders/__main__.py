import sys

from builders.common.command import main

VERBS = {
    "release": "builders.release",
    "official": "builders.official",
    "cmedqa": "builders.cmedqa",
    "ccovid": "builders.ccovid",
    "crosslingual": "builders.crosslingual",
    "squad": "builders.squad",
    "extrapolate": "builders.extrapolate",
    "export": "builders.export",
    "stats": "builders.stats",
    "check": "builders.check",
    "publish": "builders.publish",
}

if __name__ == "__main__":
    sys.exit(main("builders", "Public sources in, a release directory out.", VERBS))
