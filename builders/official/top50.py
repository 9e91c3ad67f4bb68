"""The official dual-encoder's top 50 of the dev set as a run of the release: ``runs/official-dev-top50.trec``.

The archive gives it as pairs, texts in one file and ids in the other, best first inside a question; it gives no scores.
The run's scores are the ranks turned round (50 for the first of 50): rank measures come out as for the true scores.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from builders.core.errors import InputError
from builders.core.files import write_text
from builders.official.blocks import OfficialFile, Work
from builders.official.formats import parse_pairs
from builders.official.numbered import Keys, as_keys, hex_ids
from builders.official.questions import Split

RUN = "runs/official-dev-top50.trec"
TAG = "official-dual-encoder"


class Pairs(NamedTuple):
    """The ids of questions and passages, row by row, each of shape (rows, 2), and the rows' lines, shape (rows,)."""

    questions: Keys
    passages: Keys
    lines: npt.NDArray[np.int64]


def read_top50(work: Work, files: list[OfficialFile], dev: Split) -> None:
    """Write the run, where the archives have it; hold the file of texts against the file of ids if both are there."""
    by_role = {file.role: file for file in reversed(files)}  # of several the first
    ids, texts = by_role.get("top50ids"), by_role.get("top50")
    by_id = _read_ids(work, ids) if ids else None
    by_text = _read_texts(work, texts, dev) if texts else None
    if ids and texts and by_id and by_text:
        bad = [line for file in (ids, texts) for line, _ in work.skipped.lines.get(file.name, ())]
        _compare(work, by_id, by_text, bad)
    if pairs := by_id or by_text:
        _write_run(work, pairs, dev)


def _read_ids(work: Work, file: OfficialFile) -> Pairs:
    """``dev.retrieval.top50.res.id_map.tsv``."""
    blocks = [(*block.found, block.lines(len(block.found[0]) // 16)) for block in work.parsed(file, parse_pairs)]
    questions, passages = (as_keys(b"".join([block[column] for block in blocks])) for column in (0, 1))
    file.rows = len(questions)
    return Pairs(questions, passages, np.concatenate([block[2] for block in blocks]))


def _read_texts(work: Work, file: OfficialFile, dev: Split) -> Pairs:
    """``dev.retrieval.top50.res.tsv``: the ids of its questions by dev, of its passages by the collection."""
    unused = work.first_nothing(file)
    if unused and unused[0].isdigit():
        raise InputError(
            "looks like a retriever's output (query, line number, rank, score); expected the archive's file"
            " (query, -, passage, -)",
            path=file.member.shown,
            line=1,
        )
    columns = work.text_columns(file)
    query, passage = columns.texts["query"], columns.texts["passage"]
    digests = work.texts.digests()
    ids = [dev.by_text[text].key if text in dev.by_text else digests[text].tobytes() for text in query.tolist()]
    return Pairs(as_keys(b"".join(ids)), work.passages.ids_of(digests[passage]), columns.lines)


def _compare(work: Work, by_id: Pairs, by_text: Pairs, bad: list[int]) -> None:
    """Hold the ids of texts and of ids against each other, line by line; ``bad``: lines that one of the files lacks."""
    if len(apart := np.setdiff1d(np.setxor1d(by_id.lines, by_text.lines), bad)):
        work.findings.add("lines of the top 50's texts and ids apart", len(apart))
        return
    lines, *rows = np.intersect1d(by_id.lines, by_text.lines, return_indices=True)
    for what in ("questions", "passages"):
        one, other = (getattr(pairs, what)[chosen] for pairs, chosen in zip((by_id, by_text), rows, strict=True))
        if (wrong := (one != other).any(axis=1)).any():
            line = int(lines[wrong][0])
            what = f"{what} of the top 50 whose id is not that of their text"
            work.findings.add(what, int(wrong.sum()), f"line {line}")


def _write_run(work: Work, pairs: Pairs, dev: Split) -> None:
    found: dict[str, list[str]] = {}
    for query, passage in zip(hex_ids(pairs.questions), hex_ids(pairs.passages), strict=True):
        found.setdefault(query, []).append(passage)
    if again := sum(len(ranked) - len(set(ranked)) for ranked in found.values()):
        work.findings.add("passages twice in the top 50 of a question (left out)", again)
    if dev.questions and (other := [query for query in found if bytes.fromhex(query) not in dev.by_id]):
        work.findings.add("questions of the top 50 that are not in dev", len(other), other[0])
    if work.passages.given and (missing := int((~work.passages.has(pairs.passages)).sum())):
        work.findings.add("passages of the top 50 that the collection lacks", missing)
    lines = []
    for query, ranked in found.items():
        ranked = list(dict.fromkeys(ranked))
        lines += [f"{query} Q0 {p} {rank} {len(ranked) - rank + 1} {TAG}\n" for rank, p in enumerate(ranked, 1)]
    draft = work.draft
    draft.stats["official_top50"] = {
        "questions": len(found),
        "passages": len(lines),
        "passages_per_question": {str(n): times for n, times in sorted(Counter(map(len, found.values())).items())},
    }
    (draft.folder / "runs").mkdir()
    write_text(draft.folder / RUN, "".join(lines))
    draft.add_file(RUN)
