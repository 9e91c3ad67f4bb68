"""The verb `show`: show the passages of runs, or serve the search page."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from baselines.core.model_options import Device, Dtype, ModelName
from baselines.measure.measure_options import RUN_HELP
from baselines.retrieve.vector_options import EmbeddingsPath
from builders.core.errors import UsageError
from builders.core.options import AtLeastOne, Between, Excludes, Help, Needs, NotNegativeInt, Placeholder, Use
from builders.core.verbs import verb
from builders.store.names import SAMPLE_RELEASE
from builders.store.release_options import AnySplit, QueriesFile, ReleasePath, RunPath, SetName

if TYPE_CHECKING:
    from builders.core.results import Report

PASSAGES_OF_RUN = 3
PASSAGES_OF_COLUMN = 10
DEFAULT_LOG = "search-log.jsonl"


@verb()
def show_passages(
    runs: Annotated[Sequence[RunPath], Use.POSITIONAL, Use.MAY_BE_EMPTY, Help(RUN_HELP), Excludes("serve")] = (),
    *,
    release: ReleasePath = Path(SAMPLE_RELEASE),
    set: SetName = "main",
    split: AnySplit = "dev",
    query: Annotated[str, Placeholder("TEXT_OR_ID"), Excludes("serve")] | None = None,
    queries_file: Annotated[QueriesFile, Excludes("serve")] | None = None,
    top_k: Annotated[AtLeastOne, Placeholder("K")] | None = None,
    chars: Annotated[int, Between(low=10), Placeholder("N"), Excludes("serve")] = 100,
    serve: bool = False,
    model: Annotated[ModelName, Needs("serve")] | None = None,
    passages: Annotated[EmbeddingsPath, Needs("serve")] | None = None,
    reranker: Annotated[ModelName, Needs("serve")] | None = None,
    candidates: Annotated[AtLeastOne, Placeholder("N"), Needs("serve")] = 50,
    host: Annotated[str, Placeholder("H"), Needs("serve")] = "127.0.0.1",
    port: Annotated[NotNegativeInt, Placeholder("P"), Needs("serve")] | None = None,
    mcp: Annotated[bool, Needs("serve")] = False,
    log: Annotated[Path, Placeholder("FILE"), Needs("serve")] | None = None,
    device: Device | None = None,
    dtype: Dtype = "auto",
) -> "Report | None":
    """Show a question with the passages of each run, or serve a page.

    --query names a question by its id, its text or a part of its text. Without --query, the first question that every
    run answers is shown. Without runs, --query searches by BM25, and TEXT may be any text. --queries-file names the
    queries of runs that were searched with --queries-file. Positives are marked, and positives that are not among the
    shown passages follow with their ranks. A passage longer than --chars characters is shown as an excerpt around the
    terms that passage and question share. The terms are BM25's tokens. Terminals show terms in colour, unless NO_COLOR
    is set.

    --serve starts a page (Gradio) that searches the release. Each system has a column with ranks, scores, positives and
    shared terms. The query is a question of the split or any other text. The first column is BM25. --model adds a
    dual-encoder, and needs --passages, the output of `encode`. --reranker adds a cross-encoder, which re-ranks the
    passages of the dual-encoder or, without --model, of BM25. By default, only this machine can open the page. With
    --host 0.0.0.0, other machines can open it, too. If build/sample is missing, the embedded sample is built.

    Programs search by HTTP, and with --mcp agents search by the Model Context Protocol. Both have two tools, which
    answer in JSON: search(query, top_k, system) and passage(id). Their calls are appended to --log, and `evaluate`
    measures the first search of each question.

    Args:
        release: release to read
        split: split of the questions
        query: question by its id, its text or a part of its text; without runs: any text, searched by BM25
        queries_file: queries of the runs (JSON lines, TSV or text), in place of the split's
        top_k: passages of each run (default: 3) or column (default: 10)
        chars: characters of an excerpt
        serve: serve the search page until Ctrl-C
        model: page: dual-encoder (hub name or folder); needs --passages
        passages: page: embeddings of the passages by --model
        reranker: page: cross-encoder (hub name or folder)
        candidates: page: passages to re-rank
        host: page: address to listen on
        port: page: port (default: first free port from 7860)
        mcp: page: serve the tools to agents, too
        log: page: append each call of a tool to this file of JSON lines (default with --mcp: search-log.jsonl)

    Returns:
        The question and its passages, or with ``serve`` None, after the page was stopped.

    Raises:
        InputError: there is no such question, a passage is unknown, or the page cannot be served.

    Examples:
        python -m baselines show --release build/sample --split dev --query 机 build/runs/bm25.dev.run.gz
        python -m baselines show --release build/sample --query 怎么给手机换电池
        python -m baselines show --serve
        python -m baselines show --serve --mcp --log agent.jsonl
        python -m baselines show --serve --release DIR --model M --passages build/embeddings/passages --reranker M2
    """
    if serve:
        from baselines.look.serve import PageModels, serve_page

        serve_page(
            release,
            set_name=set,
            split=split,
            models=PageModels(model, passages, reranker, device, dtype),
            top_k=top_k or PASSAGES_OF_COLUMN,
            candidates=candidates,
            host=host,
            port=port,
            mcp=mcp,
            log_path=log or (Path(DEFAULT_LOG) if mcp else None),
        )
        return None
    if not runs and query is None:
        raise UsageError("no runs given; name runs to show, add --query TEXT to search by BM25, or add --serve")
    from baselines.look.question_view import search_question, view_question
    from builders.store.original_runs import read_release_run
    from builders.store.own_queries import open_queries
    from builders.store.reader import open_release

    opened_release = open_release(release)
    own_queries = None
    if queries_file is not None:
        own_queries = open_queries(queries_file)
    depth = top_k or PASSAGES_OF_RUN
    if runs:
        view = view_question(
            opened_release,
            [read_release_run(run, opened_release) for run in runs],
            set_name=set,
            split=split,
            query=query,
            top_k=depth,
            own_queries=own_queries,
        )
    else:
        assert query is not None
        view = search_question(opened_release, query, set_name=set, split=split, top_k=depth, own_queries=own_queries)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return view.report(chars, colour)
