"""The search page: a Gradio app around a :class:`~.shown_answers.PageSearcher`. It needs the extra ``space``."""

import os
import threading

# Gradio reads the variable when it is imported.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

import gradio

from baselines.look.shown_answers import PageSearcher
from builders.core.errors import InputError, log, make_visible
from builders.core.limits import usable_cores

TITLE = "DuReader-retrieval: what each system finds"
_QUEUE_LENGTH = 256
_LISTED_QUESTIONS = 1_000  # other questions can be typed
_FONTS = ["system-ui", "sans-serif"]  # Gradio would fetch its own fonts from a server


def _build_page(searcher: PageSearcher, parallel_searches: int) -> gradio.Blocks:
    """Build the app. At most ``parallel_searches`` searches run at a time, and the others wait in a queue."""
    distinct_texts = dict.fromkeys(text for _, text in searcher.questions)
    listed_texts = list(distinct_texts)[:_LISTED_QUESTIONS]

    def search(text: str) -> str:
        try:
            return searcher.page(text or "")
        except InputError as error:
            raise gradio.Error(make_visible(str(error))) from error

    def first_answer(request: gradio.Request) -> tuple[str, str]:
        """Answer the question in the URL (``?q=...``), or else the first question."""
        text = request.query_params.get("q") or (listed_texts[0] if listed_texts else "")
        return text, search(text)

    with gradio.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as app:
        gradio.Markdown(f"## {TITLE}\nPositives are green, terms of the query yellow; a click shows the whole passage.")
        with gradio.Row(equal_height=True):
            query = gradio.Textbox(label="Query", lines=1, max_lines=1, scale=4, autofocus=True)
            choice = gradio.Dropdown(listed_texts, value=None, label="A question of the split", scale=3)
            button = gradio.Button("Search", variant="primary", scale=1)
        answer = gradio.HTML()
        # All ways to search share one queue.
        shared_queue = {"concurrency_id": "search", "concurrency_limit": parallel_searches}
        button.click(search, query, answer, api_name="search", **shared_queue)
        query.submit(search, query, answer, api_visibility="private", **shared_queue)
        choice.input(
            lambda text: (text or "", search(text)), choice, [query, answer], api_visibility="private", **shared_queue
        )
        app.load(first_answer, None, [query, answer], api_visibility="private", **shared_queue)
    app.queue(max_size=_QUEUE_LENGTH, default_concurrency_limit=parallel_searches)
    return app


def serve(searcher: PageSearcher, host: str, port: int | None) -> None:
    """Serve the page until the process is stopped. Raises :class:`InputError` if the address cannot be used."""
    parallel_searches = usable_cores()
    app = _build_page(searcher, parallel_searches)
    try:
        _, address, _ = app.launch(
            server_name=host,
            server_port=port or None,
            theme=gradio.themes.Default(font=_FONTS, font_mono=["monospace"]),
            quiet=True,
            prevent_thread_lock=True,
            max_threads=parallel_searches + 8,
            ssr_mode=False,
            footer_links=["api"],
        )
    except (OSError, ValueError) as error:
        raise InputError(f"--host {host}: cannot listen there ({' '.join(str(error).split())})") from error
    log.info("%d questions; the page is at %s (Ctrl-C ends it)", len(searcher.questions), address)
    try:
        threading.Event().wait()
    finally:
        app.close(verbose=False)
