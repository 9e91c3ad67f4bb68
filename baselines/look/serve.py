"""Serve the search page."""

import argparse

from baselines.bm25.bm25_index import Texts
from baselines.bm25.tokens import tokens
from baselines.core.passages import open_passages
from baselines.look.excerpts import SAMPLE, positives_of
from baselines.look.shown_answers import Searcher
from baselines.measure.qrels import read_queries
from builders.core.errors import InputError, log
from builders.core.hub import check_models
from builders.core.limits import usable_cores
from builders.store.layout import SETS
from builders.store.reader import open_release

_MISSING = "the page needs Gradio: pip install 'gradio>=6.20'"


def serve(args: argparse.Namespace) -> None:
    """Serve the page until the process is stopped."""
    if (args.model is None) != (args.passages is None):
        raise InputError("--model M and --passages DIR (embeddings of the passages by M) need each other")
    check_models(args.model, args.reranker)
    try:
        from baselines.look import gradio_page
    except ImportError as error:
        raise InputError(f"{_MISSING} ({error})") from error
    if args.release == SAMPLE and not args.release.exists():
        from baselines.reproduce.steps import call, sample_command

        log.info("%s is missing: building the embedded sample", args.release)
        call(sample_command(args.release), args.quiet, here=True)
    gradio_page.serve(open_searcher(args), args.host, args.port)


def open_searcher(args: argparse.Namespace) -> Searcher:
    """Open the systems that the options name. Raises :class:`InputError` if a system cannot be opened."""
    release, configs = open_release(args.release), SETS[args.set]
    questions = read_queries(release, args.split, configs.queries)
    positives = positives_of(release, configs, args.split)
    passages = open_passages(release, configs.corpus)
    dense, rerank = {}, None
    if args.model or args.reranker:  # before BM25, so that a model's error appears before the index is built
        from baselines.look.model_search import open_cross_ranker, open_dual_search

        if args.model:
            dense["dual-encoder"] = open_dual_search(args, release, configs.corpus, passages)
        if args.reranker:
            rerank = f"{'dual-encoder' if args.model else 'BM25'} > re-ranker", open_cross_ranker(args, passages)
    from baselines.bm25.engine_numba import open_index

    index = open_index(Texts(release, configs.corpus), None, usable_cores())
    return Searcher(
        {"BM25": lambda query, top_k: index.search(tokens(query), top_k), **dense},
        passages,
        questions,
        positives,
        rerank=rerank,
        top_k=args.top_k or 10,
        candidates=args.candidates,
    )
