"""Read the questions that a system fails: no positive passage is among the best 10.

    python examples/read_failures.py --release build/sample

The system is BM25. Replace the line with ``search`` by your own run or model.
"""

import argparse

from baselines import evaluate, open_release, search

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--release", default="build/sample", help="release directory")
options = parser.parse_args()

release = open_release(options.release)
run = search("bm25", release, "dev")
measures = evaluate(run, release)

passages = dict(release.passages())
query_texts = release.queries("dev")
judgments = release.qrels("dev")

values_by_query = measures.per_query()
failed_ids = [query_id for query_id, values in values_by_query.items() if values["MRR@10"] == 0]
print(f"{len(failed_ids)} of {len(values_by_query)} questions have no positive passage among the best 10")
for query_id in failed_ids:
    best_id = next(iter(run.get(query_id, {})), None)  # a run may lack a question
    positive_id = next(passage_id for passage_id, relevance in judgments[query_id].items() if relevance > 0)
    print(f"\n{query_texts[query_id]}")
    print(f"  best hit: {passages[best_id][:60] if best_id else '(none)'}")
    print(f"  positive: {passages[positive_id][:60]}")
