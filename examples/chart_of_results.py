"""Draw the results of several runs as a chart with 95 % intervals.

    python examples/chart_of_results.py --release build/sample --out build/examples/chart.png

The systems are BM25 on words, on characters, and on words and bigrams.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt

from baselines import evaluate, open_release, search

MEASURE = "MRR@10"

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--release", default="build/sample", help="release directory")
parser.add_argument("--out", default="build/examples/chart.png", help="image file: PNG or SVG")
options = parser.parse_args()

release = open_release(options.release)
results = {name: evaluate(search("bm25", release, analyzer=name), release) for name in ("words", "characters", "both")}

figure, axes = plt.subplots(figsize=(6, 3))
for row, measures in enumerate(results.values()):
    low, high = measures.intervals()[MEASURE]
    score = measures[MEASURE]
    axes.errorbar(score, row, xerr=[[score - low], [high - score]], fmt="o", color="black", capsize=4)
axes.set_yticks(range(len(results)), list(results))
axes.invert_yaxis()
axes.set_xlabel(f"{MEASURE}, 95 % interval over questions")

Path(options.out).parent.mkdir(parents=True, exist_ok=True)
figure.savefig(options.out, dpi=150, bbox_inches="tight")
print(f"wrote {options.out}")
