"""Match raw DuReader rows with the queries of a release, and write the config ``answers``."""

from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from builders.add.collection import describe_sources
from builders.core.errors import InputError
from builders.core.progress import show_progress
from builders.release.answer_records import Record, answers_of, merge_records, record_of
from builders.release.rows import find_sources, parse_rows
from builders.sources.lines import read_blocks
from builders.sources.source_bars import total_bytes
from builders.sources.source_files import Source
from builders.store.draft import draft_release
from builders.store.judgments import read_judged
from builders.store.layout import SPLITS, text_id
from builders.store.reader import Release
from builders.store.stored_answers import warn_of_gaps
from builders.text.span_options import SpanOptions


def write_answers(
    base_release: Release, raw_paths: Sequence[Path], out_path: Path, span_options: SpanOptions
) -> dict[str, Any]:
    """Write a copy of ``base_release`` with the answers of raw rows, in place of earlier answers.

    Returns ``matched`` (split -> number of queries, and of queries with a raw row) and ``answers`` of ``stats.json``.
    Raises :class:`InputError` for a wrong row, and if no row asks a query of the release.
    """
    # Rows are matched by their question, not by split. A fixed split lets the files have any name.
    sources = find_sources(raw_paths, SPLITS[0])
    texts_by_split: dict[str, dict[str, str]] = {}
    for split in SPLITS:
        if ("queries", split) in base_release.splits():
            texts_by_split[split] = base_release.texts("queries", split)
    # Questions are matched by the MD5 of their text, because queries of an official archive may have other ids.
    question_ids: set[str] = set()
    for query_texts in texts_by_split.values():
        question_ids.update(map(text_id, query_texts.values()))
    # A question may have several raw rows, for example of both services.
    records = _read_records(sources, question_ids)
    if not records:
        raw_names = ", ".join(map(str, raw_paths))
        raise InputError(
            f"no question of {raw_names} is a query of this release; expected raw rows of its queries",
            path=base_release.path,
        )

    build = {"verb": "answers", "options": span_options.rule_as_json(), "sources": describe_sources(sources)}
    matched_counts = {}
    with draft_release(out_path, build, base_release) as draft:
        draft.drop("answers")
        for split, query_texts in texts_by_split.items():
            query_records = []
            for query_id, text in query_texts.items():
                question_id = text_id(text)
                if question_id in records:
                    query_records.append((query_id, merge_records(records[question_id])))
            # A split whose queries have no raw row gets no config.
            if query_records:
                judged = read_judged(base_release, "qrels", split)
                draft.write("answers", split, answers_of(base_release, query_records, judged, span_options))
            matched_counts[split] = {"queries": len(query_texts), "matched": len(query_records)}
    # The end of the block has counted the answers that were written.
    warn_of_gaps(draft.stats["answers"])
    return {"matched": matched_counts, "answers": draft.stats["answers"]}


def _read_records(
    raw_sources: Sequence[Source],
    question_ids: Container[str],
) -> dict[str, list[Record]]:
    """Return the answers of the raw rows that ask one of the questions, by the question's MD5.

    ``question_ids`` are the MD5s of the questions' texts.
    """
    records: dict[str, list[Record]] = {}
    with show_progress(total=total_bytes(raw_sources), unit="B", label="answers") as bar:
        for block in read_blocks(raw_sources):
            for _, row in parse_rows(block):
                question_id = text_id(row.question)
                if question_id in question_ids:
                    records.setdefault(question_id, []).append(record_of(row, block.source.name))
            bar.update(len(block.data))
    return records
