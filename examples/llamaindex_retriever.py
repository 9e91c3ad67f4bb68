"""Measure a retriever of LlamaIndex on the development set.

    pip install llama-index-core
    python examples/llamaindex_retriever.py --model intfloat/multilingual-e5-small --release build/sample

Replace the index by your own retriever, whose nodes have the passage ids of the release.
"""

import argparse
from typing import Any

from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import TextNode
from sentence_transformers import SentenceTransformer

from baselines import evaluate, make_searcher, open_release

TOP_K = 50


class PromptedModel(BaseEmbedding):
    """An embedding model of LlamaIndex with the prompts of e5."""

    model: Any

    def _get_text_embedding(self, text: str) -> list[float]:
        return self.model.encode("passage: " + text, show_progress_bar=False).tolist()

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self.model.encode(["passage: " + text for text in texts], show_progress_bar=False).tolist()

    def _get_query_embedding(self, query: str) -> list[float]:
        return self.model.encode("query: " + query, show_progress_bar=False).tolist()

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="intfloat/multilingual-e5-small", help="folder, or name on the hub")
parser.add_argument("--release", default="build/sample", help="release directory")
options = parser.parse_args()

release = open_release(options.release)
model = PromptedModel(model=SentenceTransformer(options.model, device="cpu"))
nodes = [TextNode(id_=passage_id, text=text) for passage_id, text in release.passages()]
retriever = VectorStoreIndex(nodes, embed_model=model).as_retriever(similarity_top_k=TOP_K)


def search_llamaindex(query: str, top_k: int) -> list[tuple[str, float]]:
    return [(hit.node_id, hit.score) for hit in retriever.retrieve(query)[:top_k]]


measures = evaluate(make_searcher(search_llamaindex), release, split="dev", top_k=TOP_K)
print(measures.to_text())
