"""Evaluate a system on a second dataset: reading comprehension in SQuAD's format becomes a release.

    python examples/second_dataset.py --squad cmrc2018_dev.json --out build/examples/cmrc

Every paragraph is a passage, and a question's paragraph is the positive passage.
"""

import argparse

from baselines import evaluate, open_release
from builders import build_squad

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--squad", required=True, help="JSON file in SQuAD's format, for example of CMRC 2018")
parser.add_argument("--first", default="build/sample", help="the first release directory")
parser.add_argument("--out", default="build/examples/second", help="the new release directory")
options = parser.parse_args()

build_squad(dev=[options.squad], out=options.out)

for path in (options.first, options.out):
    release = open_release(path)
    measures = evaluate("bm25", release, split="dev")
    print(f"{path}: {len(release.queries('dev'))} questions, MRR@10 {100 * measures['MRR@10']:.2f}")
