"""The answers of the search page: HTML with a column of hits for each system.

This module does not need Gradio. Queries, passages and ids are escaped in the HTML.
"""

import functools
import html
from collections.abc import Callable, Mapping, Sequence

from baselines.core.passages import CachedPassages
from baselines.look.excerpts import describe_ranking, excerpt_html
from builders.core.errors import InputError, make_visible
from builders.store.runs import Hit
from builders.store.search_log import one_line

# Characters of a query that are searched; official queries have at most about 100.
SEARCHED_CHARS = 1_000
_CACHED_ANSWERS = 512
_NO_HITS = '<div class="hit">No passage contains any of these words.</div>'
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

# (query text, number of hits): hits, best first, ties by corpus id.
Search = Callable[[str, int], list[Hit]]
# (query text, corpus ids): the same passages, best first.
Rerank = Callable[[str, Sequence[str]], list[Hit]]


class PageSearcher:
    """Systems that search one collection, and the split's questions. Threads can share a searcher.

    Args:
        systems: the search function of each column, by the column's name, in the order of the columns.
        passages: texts and ids of the collection.
        questions: (id, text) of each question.
        positives: the positive passages by query id; None if the split has no judgments.
        rerank: the name of a further, last column, and the function that re-ranks the hits of the last system.
        top_k: number of hits in a column of the page.
        candidates: number of hits that are re-ranked.
    """

    def __init__(
        self,
        systems: Mapping[str, Search],
        passages: CachedPassages,
        questions: Sequence[tuple[str, str]] = (),
        positives: Mapping[str, set[str]] | None = None,
        *,
        rerank: tuple[str, Rerank] | None = None,
        top_k: int = 10,
        candidates: int = 50,
    ) -> None:
        self.questions = questions
        self._systems = systems
        self._passages = passages
        self._positives = positives
        self._rerank = rerank
        self._top_k = top_k
        self._candidates = candidates
        self._ids_by_text: dict[str, str] = {}
        for query_id, query_text in questions:
            self._ids_by_text.setdefault(one_line(query_text), query_id)
        self._cached_columns = functools.lru_cache(_CACHED_ANSWERS)(self._columns)

    @property
    def system_names(self) -> list[str]:
        """Names of the columns."""
        names = list(self._systems)
        if self._rerank:
            names.append(self._rerank[0])
        return names

    def hits(self, system_name: str, query_text: str, top_k: int) -> list[Hit]:
        """Return the ``top_k`` best passages of a column, or at most ``candidates`` for the re-ranked column.

        ``query_text`` is one line of at most :data:`SEARCHED_CHARS` characters.
        """
        if system_name in self._systems:
            return self._systems[system_name](query_text, top_k)
        assert self._rerank is not None  # a column that is no system
        # The re-ranker reads the column before it, the last system.
        last_search = list(self._systems.values())[-1]
        candidate_ids = [passage_id for passage_id, _ in last_search(query_text, self._candidates)]
        if not candidate_ids:
            return []
        _, rerank = self._rerank
        return rerank(query_text, candidate_ids)[:top_k]

    def passage_texts(self, passage_ids: Sequence[str]) -> list[str]:
        """Return the texts of passages. Raises :class:`InputError` for an unknown id."""
        rows = self._passages.rows(passage_ids)
        for passage_id, row in zip(passage_ids, rows.tolist(), strict=True):
            if row < 0:
                raise InputError(f"no passage has the id {passage_id!r}; expected an id that search returned")
        return self._passages.texts(rows.tolist())

    def page(self, text: str) -> str:
        """Return the answer to a text as HTML, or a hint if the text is blank."""
        line = one_line(text)
        if not line:
            return f"{_STYLE}<p>Type a question, or choose one from the list.</p>"
        query_text = line[:SEARCHED_CHARS].rstrip()
        query_id = self._ids_by_text.get(line)
        if query_id is None:
            origin = "This is not a question of the split, so its positives are unknown."
        else:
            origin = f"question {html.escape(make_visible(query_id))}"
        notes = [f"“{html.escape(make_visible(query_text))}”", origin]
        if len(line) > SEARCHED_CHARS:
            notes.append(f"Only the first {SEARCHED_CHARS:,} of {len(line):,} characters were searched.")
        columns = self._cached_columns(query_text, query_id)
        return f'{_STYLE}<p>{" · ".join(notes)}</p><div class="found">{columns}</div>'

    def _columns(self, query_text: str, query_id: str | None) -> str:
        """Search by each system, and return the columns as HTML. ``query_id``: None for no question of the split."""
        positive_ids = None
        if query_id is not None and self._positives is not None:
            positive_ids = self._positives.get(query_id, set())
        depth = self._top_k
        if self._rerank:
            depth = max(depth, self._candidates)
        columns = []
        last_hits: list[Hit] = []
        for name, search in self._systems.items():
            last_hits = search(query_text, depth)
            columns.append(self._column(name, query_text, last_hits, positive_ids))
        if self._rerank:
            name, rerank = self._rerank
            candidate_ids = [passage_id for passage_id, _ in last_hits[: self._candidates]]
            earlier_ranks = {passage_id: rank for rank, passage_id in enumerate(candidate_ids, 1)}
            reranked_hits = rerank(query_text, candidate_ids) if candidate_ids else []
            columns.append(self._column(name, query_text, reranked_hits, positive_ids, earlier_ranks))
        return "".join(columns)

    def _column(
        self,
        name: str,
        query_text: str,
        hits: Sequence[Hit],
        positive_ids: set[str] | None,
        earlier_ranks: Mapping[str, int] | None = None,
    ) -> str:
        """Return one column as HTML: the first ``top_k`` of ``hits``.

        ``positive_ids``: None if the positives are unknown. ``earlier_ranks``: the rank of each passage id before
        re-ranking; None for a column that is not re-ranked.
        """
        best_hits = hits[: self._top_k]
        ranking = [passage_id for passage_id, _ in best_hits]
        texts = self._passages.texts(self._passages.rows(ranking).tolist())
        boxes = []
        for rank, ((passage_id, score), text) in enumerate(zip(best_hits, texts, strict=True), 1):
            is_positive = bool(positive_ids and passage_id in positive_ids)
            earlier_rank = earlier_ranks[passage_id] if earlier_ranks else None
            boxes.append(_hit_box(rank, passage_id, score, excerpt_html(text, query_text), is_positive, earlier_rank))
        counts = describe_ranking(ranking, positive_ids)
        heading = f'<h3>{html.escape(name)}</h3><p class="tally">{counts}</p>'
        return f"<section>{heading}{''.join(boxes) or _NO_HITS}</section>"


def _hit_box(
    rank: int,
    passage_id: str,
    score: float,
    excerpt_and_passage: tuple[str, str],
    is_positive: bool,
    earlier_rank: int | None,
) -> str:
    """Return a passage of a column as HTML. A click on an excerpt opens the passage.

    ``excerpt_and_passage`` are HTML; the second is empty if the excerpt is the whole passage. ``earlier_rank`` is the
    rank before re-ranking, or None.
    """
    excerpt, passage = excerpt_and_passage
    if passage:
        excerpt = f'<details><summary>{excerpt}</summary><p class="whole">{passage}</p></details>'
    css_class = "hit positive" if is_positive else "hit"
    label = '<span class="label">positive</span>' if is_positive else ""
    movement = "" if earlier_rank is None else f"<span>before: {earlier_rank}</span>"
    return (
        f'<div class="{css_class}"><div class="head">'
        f'<span class="rank">{rank}</span><span>{score:.4f}</span>{movement}{label}</div>'
        f'<div>{excerpt}</div><div class="id">{html.escape(make_visible(passage_id))}</div></div>'
    )
