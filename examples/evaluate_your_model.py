"""Evaluate an embedding model on the questions of the development set.

    python examples/evaluate_your_model.py --model intfloat/multilingual-e5-small --release build/sample

Any object with ``encode`` is a model: replace the line with SentenceTransformer by your own class.
"""

import argparse

from sentence_transformers import SentenceTransformer

from baselines import evaluate, open_release

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="intfloat/multilingual-e5-small", help="folder, or name on the hub")
parser.add_argument("--release", default="build/sample", help="release directory")
options = parser.parse_args()

release = open_release(options.release)
model = SentenceTransformer(options.model, device="cpu")

# e5 was trained with these prompts. Other models have other prompts, or none.
measures = evaluate(model, release, split="dev", query_prompt="query: ", passage_prompt="passage: ")

for name, (low, high) in measures.intervals().items():
    print(f"{name:10} {100 * measures[name]:6.2f}   95 % interval {100 * low:.1f} to {100 * high:.1f}")
