"""The official dual-encoder's top 50 of the dev set as a run of the release: ``runs/official-dev-top50.trec``.

The archive gives it as pairs, texts in one file and ids in the other, best first inside a question; it gives no scores.
The run's scores are the ranks turned round (50 for the first of 50): rank measures come out as for the true scores.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from builders.common.command import InputError
from builders.common.files import write_text
from builders.official.blocks import parsed
from builders.official.corpus import Corpus, File, Step, count_unusual, id_array, usual_columns
from builders.official.formats import read_pairs, read_tsv
from builders.official.queries import Split
from builders.official.text_pool import Keys, TextPool, as_keys, hex_ids

RUN = "runs/official-dev-top50.trec"
TAG = "official-dual-encoder"


def read_top50(step: Step, texts: File | None, ids: File | None, dev: Split, pool: TextPool, corpus: Corpus) -> None:
    """Write the run, and hold the file of texts against the file of ids where both are given."""
    pairs = None
    if ids is not None:
        blocks = list(parsed(ids.member, read_pairs, pool=step.pool, workers=step.workers))
        pairs = tuple(as_keys(b"".join(block[n] for block in blocks)) for n in (0, 1))
        ids.layout["rows"] = len(pairs[0])
        ids.columns = {"query": id_array(pairs[0]), "passage": id_array(pairs[1])}
    if texts is not None:
        by_text = _read_texts(step, texts, dev, pool, corpus)
        if pairs is None:
            pairs = by_text
        elif len(pairs[0]) != len(by_text[0]):
            step.findings.add("lines of the top 50's texts and ids apart", abs(len(pairs[0]) - len(by_text[0])))
        else:
            for what, one, other in zip(("questions", "passages"), pairs, by_text, strict=True):
                if (wrong := (one != other).any(axis=1)).any():
                    where = f"line {int(np.flatnonzero(wrong)[0]) + 1}"
                    step.findings.add(
                        f"{what} of the top 50 whose id is not that of their text", int(wrong.sum()), where
                    )
    assert pairs is not None
    _write_run(step, pairs[0], pairs[1], dev, corpus)


def _read_texts(step: Step, file: File, dev: Split, pool: TextPool, corpus: Corpus) -> tuple[Keys, Keys]:
    usual = usual_columns(file)
    if usual and usual[0].isdigit():
        raise InputError(
            "looks like a retriever's output (query, line number, rank, score); expected the archive's file"
            " (query, -, passage, -)",
            path=file.member.shown,
            line=1,
        )
    numbers: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])  # type: ignore[type-arg]
    for columns, _, unusual in parsed(file.member, read_tsv, "top50", usual, pool=step.pool, workers=step.workers):
        count_unusual(step, file, unusual)
        for found, column in zip(numbers, columns, strict=True):
            found.append(pool.add(column.texts, as_keys(column.digests)))
    query, passage = (np.concatenate(found) for found in numbers)
    file.columns, file.layout["rows"] = {"query": query, "passage": passage}, len(query)
    digests = pool.keys()
    queries = digests[query].copy()
    for row, text in enumerate(query.tolist()):
        if (known := dev.by_text.get(text)) is not None:
            queries[row] = as_keys(dev.ids[known])[0]
    return queries, corpus.id_of(digests[passage])


def _write_run(step: Step, queries: Keys, passages: Keys, dev: Split, corpus: Corpus) -> None:
    found: dict[str, list[str]] = {}
    for query, passage in zip(hex_ids(queries), hex_ids(passages), strict=True):
        found.setdefault(query, []).append(passage)
    again = sum(len(ranked) - len(set(ranked)) for ranked in found.values())
    if again:
        step.findings.add("passages twice in the top 50 of a question (left out)", again)
    if dev.ids:
        other = [query for query in found if bytes.fromhex(query) not in dev.by_id]
        if other:
            step.findings.add("questions of the top 50 that are not in dev", len(other), other[0])
    if corpus.present:
        missing = int((corpus.ids.find(passages) < 0).sum())
        if missing:
            step.findings.add("passages of the top 50 that the collection lacks", missing)
    lines = []
    for query, ranked in found.items():
        ranked = list(dict.fromkeys(ranked))
        lines += [f"{query} Q0 {p} {rank} {len(ranked) - rank + 1} {TAG}\n" for rank, p in enumerate(ranked, 1)]
    step.draft.stats["official_top50"] = {
        "questions": len(found),
        "passages": len(lines),
        "passages_per_question": {str(n): times for n, times in sorted(Counter(map(len, found.values())).items())},
    }
    (step.draft.folder / "runs").mkdir()
    write_text(step.draft.folder / RUN, "".join(lines))
    step.draft.add_file(RUN)
