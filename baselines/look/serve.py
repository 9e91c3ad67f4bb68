"""Serve the search page."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from baselines.bm25.bm25_index import IndexedTexts
from baselines.core.passages import open_passages
from baselines.look.agent_tools import AgentTools
from baselines.look.excerpts import positives_of
from baselines.look.shown_answers import PageSearcher
from baselines.measure.qrels import read_queries
from builders.core.errors import InputError, UsageError, log
from builders.core.hub import check_models
from builders.core.limits import usable_cores
from builders.store.layout import SETS
from builders.store.names import SAMPLE_RELEASE
from builders.store.reader import Release, open_release
from builders.store.runs import Hit
from builders.store.search_log import SearchLog

if TYPE_CHECKING:
    from baselines.retrieve.index_files import VectorIndex

_GRADIO_HINT = "the page needs Gradio: pip install 'gradio>=6.20'"
# `builders release` finds the package's sample outside a checkout.
_SAMPLE_ROWS = Path("builders/sample")


@dataclass(frozen=True)
class PageModels:
    """The models of the page besides BM25, and how they run.

    Attributes:
        model: name or folder of a dual-encoder.
        passages: the dual-encoder's embeddings of the passages.
        reranker: name or folder of a cross-encoder.
        device, dtype: values of --device and --dtype.
    """

    model: str | None = None
    passages: "VectorIndex | Path | None" = None
    reranker: str | None = None
    device: str | None = None
    dtype: str = "auto"


def serve_page(
    release: Release | Path,
    *,
    set_name: str,
    split: str,
    models: PageModels,
    top_k: int,
    candidates: int,
    host: str,
    port: int | None,
    mcp: bool = False,
    log_path: Path | None = None,
) -> None:
    """Serve the page until the process is stopped. If ``release`` is the embedded sample and is missing, it is built.

    ``top_k`` is the number of passages in a column, and ``candidates`` the number that a re-ranker reads. ``port`` is
    None or 0 for the first free port from 7860. With ``mcp``, agents can use the page's tools. Their calls, and those
    of other programs, are appended to ``log_path`` (None: no log).

    Raises :class:`InputError` if Gradio is missing, or a system cannot be opened, and :class:`UsageError` if only one
    of ``models.model`` and ``models.passages`` is given.
    """
    if (models.model is None) != (models.passages is None):
        raise UsageError("--model M and --passages DIR (embeddings of the passages by M) need each other")
    check_models(models.model, models.reranker)
    try:
        from baselines.look import gradio_page
    except ImportError as error:
        raise InputError(f"{_GRADIO_HINT} ({error})") from error
    if release == Path(SAMPLE_RELEASE) and not release.exists():
        from builders.release.build_release import build_release

        log.info("%s is missing: building the embedded sample", release)
        build_release([_SAMPLE_ROWS], out=release)
    search_log = None if log_path is None else SearchLog(log_path)
    searcher = open_searcher(
        open_release(release), set_name=set_name, split=split, models=models, top_k=top_k, candidates=candidates
    )
    gradio_page.serve(searcher, AgentTools(searcher, search_log), host, port, mcp=mcp)


def open_searcher(
    release: Release, *, set_name: str, split: str, models: PageModels, top_k: int, candidates: int
) -> PageSearcher:
    """Open BM25 and the models of the page. Raises :class:`InputError` if a system cannot be opened.

    ``top_k`` is the number of passages in a column, and ``candidates`` the number that a re-ranker reads.
    """
    configs = SETS[set_name]
    questions = read_queries(release, split, configs.queries)
    positives = positives_of(release, configs, split)
    passages = open_passages(release, configs.corpus)
    dense_systems = {}
    rerank = None
    # Models are opened before BM25, so that a model's error appears before the index is built.
    if models.model or models.reranker:
        from baselines.look.model_search import open_cross_ranker, open_dual_search

        if models.model and models.passages:
            dense_systems["dual-encoder"] = open_dual_search(
                models.model,
                models.passages,
                release,
                configs.corpus,
                passages,
                device=models.device,
                dtype=models.dtype,
            )
        if models.reranker:
            first_stage = "dual-encoder" if models.model else "BM25"
            ranker = open_cross_ranker(models.reranker, passages, device=models.device, dtype=models.dtype)
            rerank = f"{first_stage} > re-ranker", ranker
    from baselines.bm25.engine_numba import open_index
    from baselines.bm25.tokens import DEFAULT

    indexed_texts = IndexedTexts(release, configs.corpus, analyzer=DEFAULT)
    index = open_index(indexed_texts, indexes_folder=None, workers=usable_cores())

    def search_bm25(query_text: str, top_k: int) -> list[Hit]:
        return index.search(index.analyzer(query_text), top_k)

    return PageSearcher(
        {"BM25": search_bm25} | dense_systems,
        passages,
        questions,
        positives,
        rerank=rerank,
        top_k=top_k,
        candidates=candidates,
    )
