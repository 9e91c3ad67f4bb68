"""The answers of the search page: HTML with a column of hits for each system.

This module does not need Gradio. Queries, passages and ids are escaped in the HTML.
"""

import functools
import html
from collections.abc import Callable, Mapping, Sequence

from baselines.core.passages import Passages
from baselines.look.excerpts import excerpt_of, tally
from builders.core.errors import visible
from builders.store.runs import Hit

LONGEST = 1_000  # characters of a query that are searched; official queries have at most about 100
_CACHED = 512  # answers in the cache
_NOTHING = '<div class="hit">No passage contains any of these words.</div>'
_STYLE = """<style>
.found { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); align-items: start; }
.found h3 { margin: 0; font-size: 1rem; }
.found .tally { margin: 0 0 .4rem; font-size: .85rem; opacity: .75; }
.found .hit { border: 1px solid #8886; border-left: 4px solid #8886; border-radius: 4px; margin: 0 0 .45rem;
  padding: .35rem .55rem; overflow-wrap: anywhere; }
.found .hit.positive { border-left-color: #16a34a; background: #16a34a1a; }
.found .head { display: flex; gap: .6rem; font-size: .8rem; }
.found .head .rank { font-weight: 700; }
.found .head .label { color: #15803d; font-weight: 700; }
.found .id { font-size: .7rem; opacity: .6; }
/* Gradio's dark theme colours every element of the answer. */
.found mark { background: #fde047; color: #111 !important; padding: 0 .05em; }
.dark .found .head .label { color: #4ade80; }
.found summary { cursor: pointer; }
.found .whole { margin: .4rem 0 0; max-height: 18rem; overflow-y: auto; }
div:has(.found) { transition: none !important; } /* Gradio fades an answer in */
</style>"""

Search = Callable[[str, int], list[Hit]]  # (query text, number of hits): hits, best first, ties by corpus id
Rerank = Callable[[str, Sequence[str]], list[Hit]]  # (query text, corpus ids): the same passages, best first


class Searcher:
    """Systems that search one collection, and the split's questions. Threads can share a searcher.

    Args:
        systems: the search function of each column, by the column's name.
        questions: (id, text) of each question.
        positives: the positive passages by query id; None if the split has no judgments.
        rerank: the name of the last column, and the function that re-ranks the column before it.
        top_k, candidates: number of hits in a column, and number of hits that are re-ranked.
    """

    def __init__(
        self,
        systems: Mapping[str, Search],
        passages: Passages,
        questions: Sequence[tuple[str, str]] = (),
        positives: Mapping[str, set[str]] | None = None,
        *,
        rerank: tuple[str, Rerank] | None = None,
        top_k: int = 10,
        candidates: int = 50,
    ) -> None:
        self.questions = questions
        self._systems, self._passages, self._rerank = systems, passages, rerank
        self._top_k, self._candidates = top_k, candidates
        self._positives = positives
        self._ids: dict[str, str] = {}
        for query, text in questions:
            self._ids.setdefault(_one_line(text), query)
        self._answer = functools.lru_cache(_CACHED)(self._columns)

    def page(self, text: str) -> str:
        """Return the answer to a text as HTML, or a hint if the text is blank."""
        line = _one_line(text)
        if not line:
            return f"{_STYLE}<p>Type a question, or choose one from the list.</p>"
        query, known = line[:LONGEST].rstrip(), self._ids.get(line)
        unknown = "This is not a question of the split, so its positives are unknown."
        origin = unknown if known is None else f"question {html.escape(visible(known))}"
        notes = [f"“{html.escape(visible(query))}”", origin]
        if len(line) > LONGEST:
            notes.append(f"Only the first {LONGEST:,} of {len(line):,} characters were searched.")
        return f'{_STYLE}<p>{" · ".join(notes)}</p><div class="found">{self._answer(query, known)}</div>'

    def _columns(self, query: str, known: str | None) -> str:
        positive = None if known is None or self._positives is None else self._positives.get(known, set())
        columns, last = [], list[Hit]()
        depth = max(self._top_k, self._candidates if self._rerank else 0)
        for name, search in self._systems.items():
            last = search(query, depth)
            columns.append(self._column(name, query, last, positive))
        if self._rerank:
            name, rerank = self._rerank
            ids = [corpus for corpus, _ in last[: self._candidates]]
            before = {corpus: rank for rank, corpus in enumerate(ids, 1)}
            columns.append(self._column(name, query, rerank(query, ids) if ids else [], positive, before))
        return "".join(columns)

    def _column(
        self,
        name: str,
        query: str,
        hits: Sequence[Hit],
        positive: set[str] | None,
        before: Mapping[str, int] | None = None,
    ) -> str:
        """Return one column as HTML. ``before`` has the passages' ranks before re-ranking."""
        best = hits[: self._top_k]
        texts = self._passages.texts(self._passages.rows([corpus for corpus, _ in best]).tolist())
        shown = []
        for rank, ((corpus, score), text) in enumerate(zip(best, texts, strict=True), 1):
            good = bool(positive and corpus in positive)
            moved = f"<span>before: {before[corpus]}</span>" if before else ""
            label = '<span class="label">positive</span>' * good
            short, whole = excerpt_of(text, query)
            if whole:
                short = f'<details><summary>{short}</summary><p class="whole">{whole}</p></details>'
            shown.append(
                f'<div class="hit{" positive" * good}"><div class="head">'
                f'<span class="rank">{rank}</span><span>{score:.4f}</span>{moved}{label}</div>'
                f'<div>{short}</div><div class="id">{html.escape(visible(corpus))}</div></div>'
            )
        ranks = tally([corpus for corpus, _ in best], positive)
        head = f'<h3>{html.escape(name)}</h3><p class="tally">{ranks}</p>'
        return f"<section>{head}{''.join(shown) or _NOTHING}</section>"


def _one_line(text: str) -> str:
    """Return a text as one line with single spaces. Lone surrogates, which UTF-8 cannot encode, become "?"."""
    return " ".join(text.encode("utf-8", "replace").decode().split())
