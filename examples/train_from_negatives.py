"""Train a small dual-encoder from BM25's hard negatives, and evaluate the encoder before and after.

    python examples/train_from_negatives.py --start intfloat/multilingual-e5-small --release build/sample

`python -m baselines train` has the paper's recipes. This program shows the idea with sentence-transformers alone.
"""

import argparse

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.training_args import BatchSamplers

from baselines import evaluate, open_release, search

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--start", default="intfloat/multilingual-e5-small", help="folder, or name on the hub")
parser.add_argument("--release", default="build/sample", help="release directory")
parser.add_argument("--out", default="build/examples/trained", help="folder of the trained model")
options = parser.parse_args()

release = open_release(options.release)
passages = dict(release.passages())
query_texts = release.queries("train")
positives: dict[str, list[str]] = {}
for query_id, judged_passages in release.qrels("train").items():
    positives[query_id] = [passage_id for passage_id, relevance in judged_passages.items() if relevance > 0]

# A hard negative is a passage that BM25 ranks high and that is not known to be positive.
rows = []
for query_id, hits in search("bm25", release, "train", top_k=20).items():
    positive_ids = positives.get(query_id, [])
    negative_ids = [passage_id for passage_id in hits if passage_id not in positive_ids]
    # Each positive gets one negative, the highest ranks first.
    for positive_id, negative_id in zip(positive_ids, negative_ids, strict=False):
        rows.append(
            {
                "query": query_texts[query_id],
                "positive": passages[positive_id],
                "negative": passages[negative_id],
            }
        )
print(f"{len(rows)} training rows")

model = SentenceTransformer(options.start, device="cpu")
model.max_seq_length = 64  # short texts, so that the program ends soon on a CPU
before = evaluate(model, release)

arguments = SentenceTransformerTrainingArguments(
    options.out,
    num_train_epochs=1,
    per_device_train_batch_size=8,
    batch_sampler=BatchSamplers.NO_DUPLICATES,  # another row's positive for the same question is no negative
    use_cpu=True,
    report_to="none",
    save_strategy="no",
)
trainer = SentenceTransformerTrainer(
    model, arguments, train_dataset=Dataset.from_list(rows), loss=MultipleNegativesRankingLoss(model)
)
trainer.train()
model.save_pretrained(options.out)

print(f"MRR@10 before {100 * before['MRR@10']:.2f}, after {100 * evaluate(model, release)['MRR@10']:.2f}")
