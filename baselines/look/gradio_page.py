"""The search page: a Gradio app around a :class:`~.shown_answers.PageSearcher`. It needs the extra ``space``.

Programs call the tools of :mod:`.agent_tools` by Gradio's HTTP interface, and agents by the Model Context Protocol.
"""

import contextlib
import functools
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

# Gradio reads the variable when it is imported.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

import gradio

from baselines.look.agent_tools import DEFAULT_HITS, MOST_HITS, AgentTools
from baselines.look.shown_answers import PageSearcher
from builders.core.errors import InputError, log, make_visible
from builders.core.limits import usable_cores

TITLE = "DuReader-retrieval: what each system finds"
_QUEUE_LENGTH = 256
_OTHER_THREADS = 8  # threads for requests that do not search
_LISTED_QUESTIONS = 1_000  # other questions can be typed
_MCP_PATH = "gradio_api/mcp/"
_FONTS = ["system-ui", "sans-serif"]  # Gradio would fetch its own fonts from a server


def _build_page(
    searcher: PageSearcher, tools: AgentTools, parallel_searches: int, *, for_agents: bool
) -> gradio.Blocks:
    """Build the app. At most ``parallel_searches`` searches run at a time, and the others wait in a queue.

    With ``for_agents``, the tools also get endpoints that return JSON as a text, for the Model Context Protocol.
    """
    distinct_texts = dict.fromkeys(text for _, text in searcher.questions)
    listed_texts = list(distinct_texts)[:_LISTED_QUESTIONS]

    # Gradio names endpoints after functions, and `search` is the name of a tool.
    def answer_page(text: str) -> str:
        try:
            return searcher.page(text or "")  # Gradio may pass None for an empty field
        except InputError as error:
            raise gradio.Error(make_visible(str(error))) from error

    def first_answer(request: gradio.Request) -> tuple[str, str]:
        """Return (text, answer as HTML) of the question in the URL (``?q=...``), or else of the first question."""
        text = request.query_params.get("q") or (listed_texts[0] if listed_texts else "")
        return text, answer_page(text)

    with gradio.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as app:
        gradio.Markdown(f"## {TITLE}\nPositives are green, terms of the query yellow; a click shows the whole passage.")
        with gradio.Row(equal_height=True):
            query = gradio.Textbox(label="Query", lines=1, max_lines=1, scale=4, autofocus=True)
            choice = gradio.Dropdown(listed_texts, value=None, label="A question of the split", scale=3)
            button = gradio.Button("Search", variant="primary", scale=1)
        answer = gradio.HTML()
        # All ways to search share one queue.
        shared_queue = {"concurrency_id": "search", "concurrency_limit": parallel_searches}
        button.click(answer_page, query, answer, api_name="page", api_visibility="undocumented", **shared_queue)
        query.submit(answer_page, query, answer, api_visibility="private", **shared_queue)
        choice.input(
            lambda text: (text or "", answer_page(text)),
            choice,
            [query, answer],
            api_visibility="private",
            **shared_queue,
        )
        # Gradio offers public endpoints to agents, under the names of their functions, and prints answers by str().
        # So agents get endpoints of their own, which return JSON as a text.
        for endpoint in _endpoints(tools):
            endpoint_visibility = "undocumented" if for_agents else "public"
            gradio.api(endpoint, api_name=endpoint.__name__, api_visibility=endpoint_visibility, **shared_queue)
            if for_agents:
                gradio.api(_return_text(endpoint), api_name=f"{endpoint.__name__}_text", **shared_queue)
        app.load(first_answer, None, [query, answer], api_visibility="private", **shared_queue)
    app.queue(max_size=_QUEUE_LENGTH, default_concurrency_limit=parallel_searches)
    return app


def _endpoints(tools: AgentTools) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the functions `search` and `passage`, with the descriptions that agents read."""

    def search(query: str, top_k: int = DEFAULT_HITS, system: str = "") -> dict[str, Any]:
        try:
            return tools.search(query, top_k, system)
        except InputError as error:
            raise gradio.Error(make_visible(str(error)), print_exception=False) from error

    def passage(id: str) -> dict[str, Any]:
        try:
            return tools.passage(id)
        except InputError as error:
            raise gradio.Error(make_visible(str(error)), print_exception=False) from error

    names = tools.system_names
    search.__doc__ = f"""Search the collection for passages that answer a question, best first.

    Args:
        query: the question, in the language of the passages (usually Chinese)
        top_k: number of passages, 1 to {MOST_HITS}
        system: one of: {", ".join(names)} (default: {names[0]})
    """
    passage.__doc__ = """Return the whole text of a passage.

    Args:
        id: the id of a passage, from an answer of search
    """
    return search, passage


def _return_text(endpoint: Callable[..., dict[str, Any]]) -> Callable[..., str]:
    """Return a function with the name, parameters and description of an endpoint, which returns JSON as a text."""

    @functools.wraps(endpoint)
    def answer(*arguments: Any, **named_arguments: Any) -> str:
        return json.dumps(endpoint(*arguments, **named_arguments), ensure_ascii=False)

    answer.__annotations__ = endpoint.__annotations__ | {"return": str}
    return answer


def serve(searcher: PageSearcher, tools: AgentTools, host: str, port: int | None, *, mcp: bool = False) -> None:
    """Serve the page until the process is stopped. With ``mcp``, serve the tools to agents, too.

    ``port`` is None or 0 for the first free port from 7860. Raises :class:`InputError` if the address cannot be used,
    or the package mcp is missing.
    """
    parallel_searches = usable_cores()
    app = _build_page(searcher, tools, parallel_searches, for_agents=mcp)
    logging.getLogger("mcp").setLevel(logging.WARNING)  # it logs three lines for each call
    try:
        # Gradio prints the address for agents, but stdout is for results.
        with contextlib.redirect_stdout(sys.stderr):
            _, address, _ = app.launch(
                server_name=host,
                server_port=port or None,
                theme=gradio.themes.Default(font=_FONTS, font_mono=["monospace"]),
                quiet=True,
                prevent_thread_lock=True,
                max_threads=parallel_searches + _OTHER_THREADS,
                ssr_mode=False,
                footer_links=["api"],
                mcp_server=mcp,
            )
    except ImportError as error:
        raise InputError(f"--mcp needs the package mcp: pip install 'gradio[mcp]' ({error})") from error
    except (OSError, ValueError) as error:
        raise InputError(f"--host {host}: cannot listen there ({' '.join(str(error).split())})") from error
    log.info("%d questions; the page is at %s (Ctrl-C ends it)", len(searcher.questions), address)
    if mcp:
        log.info("the tools for agents (MCP, streamable HTTP) are at %s%s", address, _MCP_PATH)
    try:
        threading.Event().wait()
    finally:
        app.close(verbose=False)
