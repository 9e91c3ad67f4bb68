"""Serve a page that searches the passages with an embedding model.

    python examples/search_page.py --model intfloat/multilingual-e5-small --port 8000

Then open http://localhost:8000/?q=君子兰夹箭怎么办. For runs, judgments and re-rankers, see `baselines show --serve`.
"""

import argparse
import html
import http.server
import urllib.parse

from sentence_transformers import SentenceTransformer

from baselines import open_release

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="intfloat/multilingual-e5-small", help="folder, or name on the hub")
parser.add_argument("--release", default="build/sample", help="release directory")
parser.add_argument("--port", type=int, default=8000, help="port on this machine (0: any free port)")
options = parser.parse_args()

passage_texts = [text for _, text in open_release(options.release).passages()]
model = SentenceTransformer(options.model, device="cpu")
passage_vectors = model.encode(["passage: " + text for text in passage_texts], normalize_embeddings=True)


def search(query_text: str, top_k: int = 10) -> list[str]:
    """Return the passages with the largest cosine to the query, best first."""
    query_vector = model.encode("query: " + query_text, normalize_embeddings=True)
    best_rows = (passage_vectors @ query_vector).argsort()[::-1][:top_k]
    return [passage_texts[row] for row in best_rows]


class SearchPage(http.server.BaseHTTPRequestHandler):
    """The page: a field for the query ``q``, and a list of the passages found."""

    def do_GET(self) -> None:
        parameters = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        query_text = parameters.get("q", [""])[0]
        hits = search(query_text) if query_text else []
        # A passage is a text of the web: it must not become part of the page's HTML.
        items = "".join(f"<li>{html.escape(text)}</li>" for text in hits)
        form = f'<form><input name="q" value="{html.escape(query_text)}"><button>Search</button></form>'
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(f"<!doctype html><title>Search</title>{form}<ol>{items}</ol>".encode())


with http.server.ThreadingHTTPServer(("127.0.0.1", options.port), SearchPage) as server:
    print(f"serving on http://localhost:{server.server_address[1]}", flush=True)
    server.serve_forever()
