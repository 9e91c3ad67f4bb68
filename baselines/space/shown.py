"""An answer as HTML. Whatever a query, a passage or an id holds is text in it."""

from __future__ import annotations

import html

from baselines.space.searching import LONGEST, Answer, Column, Shown
from builders.core.errors import visible

_NOTHING = "Nothing: the passages hold none of these words."
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
.found mark { background: #fde047; color: #111; padding: 0 .05em; }
.found summary { cursor: pointer; }
.found .whole { margin: .4rem 0 0; max-height: 18rem; overflow-y: auto; }
div:has(.found) { transition: none !important; } /* Gradio fades an answer in */
</style>"""


def page_of(answer: Answer | None) -> str:
    """The HTML of what was found; of a note where nothing was asked."""
    if answer is None:
        return _note("Type a question, or choose one.")
    notes = [f"“{html.escape(visible(answer.query))}”"]
    if answer.id is None:
        notes.append("Not a question of this split: nobody knows its positives.")
    else:
        notes.append(f"question {html.escape(visible(answer.id))}")
    if answer.cut:
        notes.append(f"Of its {answer.cut:,} characters the first {LONGEST:,} were searched for.")
    columns = "".join(map(_column, answer.columns))
    return f'{_note(" · ".join(notes))}<div class="found">{columns}</div>'


def _note(text: str) -> str:
    return f"{_STYLE}<p>{text}</p>"


def _column(column: Column) -> str:
    hits = "".join(map(_hit, column.hits)) or f'<div class="hit">{_NOTHING}</div>'
    name = html.escape(column.name)
    return f'<section><h3>{name}</h3><p class="tally">{tally(column)}</p>{hits}</section>'


def tally(column: Column) -> str:
    """Where in a column the positives are, in words."""
    shown = f"{len(column.hits)} passage{'s' * (len(column.hits) != 1)}"
    if column.positives is None:
        return shown
    ranks = [str(hit.rank) for hit in column.hits if hit.positive]
    return f"{shown}, {len(ranks)} of {column.positives} positive" + f", at rank {', '.join(ranks)}" * bool(ranks)


def _hit(hit: Shown) -> str:
    moved = f"<span>before: {hit.before}</span>" if hit.before else ""
    label = '<span class="label">positive</span>' if hit.positive else ""
    short, whole = hit.excerpt
    text = f'<details><summary>{short}</summary><p class="whole">{whole}</p></details>' if whole else short
    kind = "hit positive" if hit.positive else "hit"
    return (
        f'<div class="{kind}"><div class="head">'
        f'<span class="rank">{hit.rank}</span><span>{hit.score:.4f}</span>{moved}{label}</div>'
        f'<div>{text}</div><div class="id">{html.escape(visible(hit.corpus))}</div></div>'
    )
