"""The tools of the page for programs and agents: `search` and `passage`, which answer in JSON and log each call.

The tools do not tell which passages are positive, so that a log can be evaluated as a run. This module does not need
Gradio.
"""

from collections.abc import Callable, Sequence
from typing import Any

from baselines.look.shown_answers import SEARCHED_CHARS, PageSearcher
from builders.core.errors import InputError
from builders.store.search_log import SearchLog, one_line

MOST_HITS = 100  # passages of an answer
DEFAULT_HITS = 10
Answer = dict[str, Any]


class AgentTools:
    """The tools. Threads can share them.

    Arguments of calls come from other programs, so their types are checked.

    Args:
        searcher: the systems and passages.
        log: the log of all calls (None: no log).
    """

    def __init__(self, searcher: PageSearcher, log: SearchLog | None = None) -> None:
        self._searcher = searcher
        self._log = log

    @property
    def system_names(self) -> Sequence[str]:
        """Names of the systems. The first is the default."""
        return self._searcher.system_names

    def search(self, query: Any, top_k: Any = DEFAULT_HITS, system: Any = "") -> Answer:
        """Return the best passages: {"query", "system", "hits": [{"rank", "id", "score", "text"}]}.

        Args:
            query: any text that is not blank, of at most :data:`SEARCHED_CHARS` characters.
            top_k: number of passages, 1 to :data:`MOST_HITS`.
            system: one of :attr:`system_names` ("": the first).

        Raises:
            InputError: an argument is wrong.
        """
        arguments = {"system": system, "query": query, "top_k": top_k}
        system_name, query_text = self._call_or_log("search", arguments, lambda: self._check_search(**arguments))
        hits = self._searcher.hits(system_name, query_text, top_k)
        passage_ids = [passage_id for passage_id, _ in hits]
        scores = [score for _, score in hits]
        logged_arguments = {"system": system_name, "query": query_text, "top_k": top_k}
        self._append("search", logged_arguments | {"passage_ids": passage_ids, "scores": scores})
        texts = self._searcher.passage_texts(passage_ids)
        answer_hits = []
        for rank, ((passage_id, score), text) in enumerate(zip(hits, texts, strict=True), start=1):
            answer_hits.append({"rank": rank, "id": passage_id, "score": score, "text": text})
        return {"query": query_text, "system": system_name, "hits": answer_hits}

    def passage(self, passage_id: Any) -> Answer:
        """Return {"id", "text"} of a passage. Raises :class:`InputError` for an unknown id."""
        arguments = {"passage_id": passage_id}

        def read_text() -> str:
            if not isinstance(passage_id, str):
                raise InputError(f"id: expected a text, found {passage_id!r}")
            return self._searcher.passage_texts([one_line(passage_id)])[0]

        text = self._call_or_log("passage", arguments, read_text)
        self._append("passage", arguments)
        return {"id": passage_id, "text": text}

    def _check_search(self, system: Any, query: Any, top_k: Any) -> tuple[str, str]:
        """Return (name of the system, query as one line). Raises :class:`InputError` for a wrong argument."""
        query_text = one_line(query) if isinstance(query, str) else ""
        if not query_text:
            raise InputError(f"query: expected a text that is not blank, found {query!r}")
        if len(query_text) > SEARCHED_CHARS:
            raise InputError(f"query: has {len(query_text):,} characters; expected at most {SEARCHED_CHARS:,}")
        is_count = isinstance(top_k, int) and not isinstance(top_k, bool)
        if not is_count or not 1 <= top_k <= MOST_HITS:
            raise InputError(f"top_k: expected a whole number from 1 to {MOST_HITS}, found {top_k!r}")
        system_name = system or self.system_names[0]
        if system_name not in self.system_names:
            raise InputError(f"system: expected one of {', '.join(self.system_names)}; found {system!r}")
        return system_name, query_text

    def _call_or_log(self, tool: str, arguments: dict[str, Any], function: Callable[[], Any]) -> Any:
        """Return the result of ``function``. Log an :class:`InputError` as a failed call of ``tool``, and raise it."""
        try:
            return function()
        except InputError as error:
            # Only texts are logged. Arguments of other types than the log's fields would make the log unreadable.
            logged_arguments = {}
            for name, value in arguments.items():
                if isinstance(value, str):
                    logged_arguments[name] = one_line(value)[:SEARCHED_CHARS]
            self._append(tool, logged_arguments | {"error": str(error)})
            raise

    def _append(self, tool: str, values: dict[str, Any]) -> None:
        if self._log is not None:
            self._log.append(tool, values)
