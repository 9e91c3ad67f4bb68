"""Serve the search page, or write the folder of a Hugging Face Space that serves it."""

import argparse
import shutil
from pathlib import Path

from baselines.bm25.bm25_index import Texts
from baselines.bm25.tokens import tokens
from baselines.core.passages import open_passages
from baselines.look.excerpts import SAMPLE, positives_of
from baselines.look.shown_answers import Searcher
from baselines.measure.qrels import read_queries
from builders.core.errors import InputError, log
from builders.core.folders import new_directory
from builders.core.hub import check_models
from builders.core.limits import usable_cores
from builders.store.layout import SETS
from builders.store.reader import open_release

_MISSING = "the page needs Gradio: pip install 'gradio>=6.20'"
_SPACE = Path(__file__).resolve().parent / "space"
_CHECKOUT = _SPACE.parents[2]
_TOP = ("README.md", "requirements.txt", "search_page.py")  # search_page.py starts the page and identifies a Space


def serve(args: argparse.Namespace) -> None:
    """Serve the page until the process is stopped, or write the Space's folder (``--assemble``)."""
    if (args.model is None) != (args.passages is None):
        raise InputError("--model M and --passages DIR (embeddings of the passages by M) need each other")
    if args.assemble:
        _assemble(args)  # without --release, the Space builds the sample itself
        return
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


def _assemble(args: argparse.Namespace) -> None:
    """Write the folder ``--assemble DIR``. An earlier assembled folder is replaced.

    Raises :class:`InputError` for a set or split other than the page's defaults, and for models that are not folders.
    In a Space, the variables SPACE_MODEL and SPACE_RERANKER name models on the hub.
    """
    if (args.set, args.split) != ("main", "dev"):
        raise InputError("--assemble: a Space only shows the set main and its split dev")
    folders = {name: Path(path) for name, path in (("model", args.model), ("reranker", args.reranker)) if path}
    for name, path in folders.items():
        if not path.is_dir():
            raise InputError(f"--{name}: expected a folder; name a hub model by SPACE_{name.upper()}", path=path)
    if args.release != SAMPLE:
        release = open_release(args.release)
        for entry in release.manifest.files:
            release.file(entry)  # raises InputError if the file is damaged
        folders["release"] = release.path
    if args.passages:
        folders["passages"] = args.passages
    with new_directory(args.assemble, "a Space of this project", _TOP[-1]) as new:
        for name in _TOP:
            shutil.copyfile(_SPACE / name, new / name)
        for name in ("builders", "baselines"):
            shutil.copytree(_CHECKOUT / name, new / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name, path in folders.items():
            shutil.copytree(path, new / name)
    log.info("%s: push it with `hf upload OWNER/NAME %s --repo-type space`", args.assemble, args.assemble)
