"""Measure a Qdrant collection: quality on the development set, and the latency of a query.

    pip install qdrant-client
    python examples/qdrant_engine.py --model intfloat/multilingual-e5-small --release build/sample

The adapter has one method. A server instead of the in-memory client: QdrantClient("http://localhost:6333").
"""

import argparse

from qdrant_client import QdrantClient
from qdrant_client.models import Distance, PointStruct, VectorParams
from sentence_transformers import SentenceTransformer

from baselines import evaluate, open_release

COLLECTION = "passages"


class QdrantSearcher:
    """Search a collection whose points have the passage id in their payload."""

    def __init__(self, client: QdrantClient, model: SentenceTransformer, query_prompt: str) -> None:
        self.client = client
        self.model = model
        self.query_prompt = query_prompt

    def search(self, queries: list[str], top_k: int) -> list[list[tuple[str, float]]]:
        """Return the (passage id, score) hits of each query, best first."""
        all_hits = []
        for vector in self.model.encode([self.query_prompt + query for query in queries], show_progress_bar=False):
            points = self.client.query_points(COLLECTION, query=vector.tolist(), limit=top_k).points
            all_hits.append([(point.payload["passage_id"], point.score) for point in points])
        return all_hits


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="intfloat/multilingual-e5-small", help="folder, or name on the hub")
parser.add_argument("--release", default="build/sample", help="release directory")
parser.add_argument("--out", default="build/examples/qdrant.dev.run.gz", help="the run")
options = parser.parse_args()

release = open_release(options.release)
model = SentenceTransformer(options.model, device="cpu")

# Qdrant's own ids are numbers, so the id of a passage is in the payload.
passages = list(release.passages())
vectors = model.encode(["passage: " + text for _, text in passages])
client = QdrantClient(":memory:")
if client.collection_exists(COLLECTION):  # on a server, from an earlier call
    client.delete_collection(COLLECTION)
client.create_collection(COLLECTION, VectorParams(size=vectors.shape[1], distance=Distance.COSINE))
points = []
for number, ((passage_id, _), vector) in enumerate(zip(passages, vectors, strict=True)):
    points.append(PointStruct(id=number, vector=vector.tolist(), payload={"passage_id": passage_id}))
client.upload_points(COLLECTION, points, wait=True)

searcher = QdrantSearcher(client, model, query_prompt="query: ")
measures = evaluate(searcher, release, split="dev", measures=["nDCG@20"], out=options.out)
print(measures.to_text())
