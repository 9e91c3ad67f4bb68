import sys

from builders.command import main

VERBS = {
    "release": "builders.release",
}

if __name__ == "__main__":
    sys.exit(main("builders", "Public sources in, a release directory out.", VERBS))
