"""Search in two stages on a laptop: BM25 finds 50 passages, and a cross-encoder re-orders the best 20.

    python examples/two_stages.py --reranker BAAI/bge-reranker-base --release build/sample

The program prints the time per query, with the loading of the model. The time grows with the number of re-ordered
passages.
"""

import argparse
import time

from baselines import evaluate, open_release, search, write_run

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--reranker", default="BAAI/bge-reranker-base", help="folder, or name on the hub")
parser.add_argument("--release", default="build/sample", help="release directory")
parser.add_argument("--out", default="build/examples/two_stages.run.gz", help="the re-ranked run")
options = parser.parse_args()

release = open_release(options.release)
first_stage = search("bm25", release, "dev", top_k=50)

# A cross-encoder reads query and passage together. Its time grows with top_k.
started = time.monotonic()
second_stage = search(options.reranker, release, "dev", run=first_stage, top_k=20)
seconds_per_query = (time.monotonic() - started) / len(second_stage)

print(f"first stage   MRR@10 {100 * evaluate(first_stage, release)['MRR@10']:.2f}")
print(f"second stage  MRR@10 {100 * evaluate(second_stage, release)['MRR@10']:.2f}")
print(f"re-ranking took {seconds_per_query:.2f} s per query, with the loading of the model")
print(f"wrote {write_run(second_stage, options.out)}")
