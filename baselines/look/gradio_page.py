"""The search page: a Gradio app around a :class:`~.shown_answers.Searcher`. It needs the extra ``space``."""

import os
import threading

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # Gradio reads the variable when it is imported

import gradio

from baselines.look.shown_answers import Searcher
from builders.core.errors import InputError, log, visible
from builders.core.limits import usable_cores

TITLE = "DuReader-retrieval: what each system finds"
_WAITING = 256  # longest queue of searches
_OFFERED = 1_000  # questions in the list; other questions can be typed
_FONTS = ["system-ui", "sans-serif"]  # Gradio would fetch its own fonts from a server


def _build(searcher: Searcher, at_once: int) -> gradio.Blocks:
    """Build the app. At most ``at_once`` searches run at a time, and the others wait in a queue."""
    texts = list(dict.fromkeys(text for _, text in searcher.questions))[:_OFFERED]

    def search(text: str) -> str:
        try:
            return searcher.page(text or "")
        except InputError as error:
            raise gradio.Error(visible(str(error))) from error

    def first(request: gradio.Request) -> tuple[str, str]:
        """Answer the question in the URL (``?q=...``), or else the first question."""
        text = request.query_params.get("q") or (texts[0] if texts else "")
        return text, search(text)

    with gradio.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as app:
        gradio.Markdown(f"## {TITLE}\nPositives are green, terms of the query yellow; a click shows the whole passage.")
        with gradio.Row(equal_height=True):
            query = gradio.Textbox(label="Query", lines=1, max_lines=1, scale=4, autofocus=True)
            choice = gradio.Dropdown(texts, value=None, label="A question of the split", scale=3)
            button = gradio.Button("Search", variant="primary", scale=1)
        found = gradio.HTML()
        same = {"concurrency_id": "search", "concurrency_limit": at_once}
        button.click(search, query, found, api_name="search", **same)
        query.submit(search, query, found, api_visibility="private", **same)
        choice.input(lambda text: (text or "", search(text)), choice, [query, found], api_visibility="private", **same)
        app.load(first, None, [query, found], api_visibility="private", **same)
    app.queue(max_size=_WAITING, default_concurrency_limit=at_once)
    return app


def serve(searcher: Searcher, host: str, port: int | None) -> None:
    """Serve the page until the process is stopped. Raises :class:`InputError` if the address cannot be used."""
    at_once = usable_cores()
    app = _build(searcher, at_once)
    try:
        _, address, _ = app.launch(
            server_name=host,
            server_port=port or None,
            theme=gradio.themes.Default(font=_FONTS, font_mono=["monospace"]),
            quiet=True,
            prevent_thread_lock=True,
            max_threads=at_once + 8,
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
