"""Measure a retriever of LangChain on the development set.

    pip install langchain-core
    python examples/langchain_retriever.py --model intfloat/multilingual-e5-small --release build/sample

Retrievers of LangChain return no scores, so a hit gets 1/rank. Replace the in-memory store by your own retriever, whose
documents have the passage ids of the release.
"""

import argparse

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore
from sentence_transformers import SentenceTransformer

from baselines import evaluate, make_searcher, open_release

TOP_K = 50


class PromptedModel(Embeddings):
    """An embedding model of LangChain with the prompts of e5."""

    def __init__(self, model: SentenceTransformer) -> None:
        self.model = model

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.model.encode(["passage: " + text for text in texts]).tolist()

    def embed_query(self, text: str) -> list[float]:
        return self.model.encode("query: " + text, show_progress_bar=False).tolist()


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="intfloat/multilingual-e5-small", help="folder, or name on the hub")
parser.add_argument("--release", default="build/sample", help="release directory")
options = parser.parse_args()

release = open_release(options.release)
store = InMemoryVectorStore(PromptedModel(SentenceTransformer(options.model, device="cpu")))
store.add_documents([Document(id=passage_id, page_content=text) for passage_id, text in release.passages()])
retriever: BaseRetriever = store.as_retriever(search_kwargs={"k": TOP_K})


def search_langchain(query: str, top_k: int) -> list[tuple[str, float]]:
    documents = retriever.invoke(query)[:top_k]
    return [(document.id, 1 / rank) for rank, document in enumerate(documents, start=1)]


measures = evaluate(make_searcher(search_langchain), release, split="dev", top_k=TOP_K)
print(measures.to_text())
