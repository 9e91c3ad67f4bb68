"""Compare two systems on the same questions, with a paired test.

    python examples/compare_two_systems.py --release build/sample

Here the systems are BM25 on words and BM25 on pairs of neighbouring characters.
"""

import argparse

from baselines import compare, open_release, search

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--release", default="build/sample", help="release directory")
options = parser.parse_args()

release = open_release(options.release)
runs = {
    "words": search("bm25", release, "dev", analyzer="words"),
    "bigrams": search("bm25", release, "dev", analyzer="bigrams"),
}

# The table has each system's measures with intervals, and the p-value of every difference.
comparison = compare(runs, release, measure=["MRR@10", "Recall@50"])
print(comparison.to_markdown())
