"""Reproduce Table 4 of the paper: retrieval by BM25 and by DE w/ BM25 Neg.

    python examples/table_4.py --release build/sample --small

--small trains a tiny model, so only the steps are those of the paper. Without it, ERNIE 1.0 is trained on a GPU.
"""

import argparse

from baselines import reproduce_tables

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--release", default="build/sample", help="release directory")
parser.add_argument("--out", default="build/examples/table_4", help="folder of runs, models and the report")
parser.add_argument("--small", action="store_true", help="train a tiny model")
options = parser.parse_args()

# A killed reproduction goes on when the program is called again.
report = reproduce_tables(table=[4], release=options.release, out=options.out, small=options.small)
print(report)
print(report.to_pandas()[["title", "metric", "ours", "published", "mark"]].to_string(index=False))
