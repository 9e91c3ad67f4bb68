"""Program ``python -m builders VERB``: build release directories from public sources."""

import sys

from builders.core.command import main
from builders.core.exit_codes import end_soon

# Title -> verb -> target. A target is "module:function", or a package that lists the steps of its verb in STEPS.
GROUPS = {
    "make a release": {
        "release": "builders.release.build_release:build_release",
        "official": "builders.official.build_official:build_official",
        "squad": "builders.add.squad:build_squad",
        "add": "builders.add",
    },
    "improve and check it": {
        "similar": "builders.similar.find_similar:find_similar",
        "annotate": "builders.annotate",
        "check": "builders.check.check_release:check_release",
    },
    "export and publish it": {
        "export": "builders.export.export_release:export_release",
        "publish": "builders.publish.publish_release:publish_release",
    },
}
VERBS: dict[str, str] = {}
for _group_verbs in GROUPS.values():
    VERBS |= _group_verbs

if __name__ == "__main__":
    sys.exit(end_soon(main("builders", "Build release directories from public sources.", VERBS, groups=GROUPS)))
