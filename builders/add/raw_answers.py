"""Match raw DuReader rows with the queries of a release, and write the config ``answers``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from builders.core.errors import InputError
from builders.core.progress import progress
from builders.release.answer_records import Record, answers_of, merged, record_of
from builders.release.rows import find_sources, parse_rows
from builders.sources.lines import read_blocks
from builders.store.draft import describe_files, draft_release
from builders.store.judgments import read_judged
from builders.store.layout import SPLITS, text_id
from builders.store.reader import Release
from builders.store.stored_answers import warn_of_gaps
from builders.text.span_options import Options


def write_answers(release: Release, raw_paths: Sequence[Path], out: Path, options: Options) -> dict[str, Any]:
    """Write a copy of ``release`` with the answers of raw rows. Return the counts.

    Raises :class:`InputError` for a wrong row, and if no row asks a query of the release.
    """
    sources = find_sources(raw_paths, SPLITS[0])  # a raw row may belong to any split
    query_texts = {split: release.texts("queries", split) for split in SPLITS if ("queries", split) in release.splits()}
    # Questions are matched by the MD5 of their text, because queries of a copy from a hub may have other ids.
    wanted_ids: set[str] = set()
    for texts in query_texts.values():
        wanted_ids.update(text_id(text) for text in texts.values())
    records: dict[str, list[Record]] = {}
    with progress(unit="row", label="answers") as bar:
        for block in read_blocks(sources):
            for _, row in parse_rows(block):
                question_id = text_id(row.question)
                if question_id in wanted_ids:
                    records.setdefault(question_id, []).append(record_of(row, block.source.name))
                bar.update()
    if not records:
        named = ", ".join(map(str, raw_paths))
        raise InputError(
            f"no question of {named} is a query of this release; expected raw rows of its queries", path=release.path
        )
    files = describe_files((source.name.split("!")[0], source.path) for source in sources)
    build = {"verb": "answers", "options": options.rule_as_json(), "sources": files}
    matched = {}
    with draft_release(out, build, release) as draft:
        draft.drop("answers")
        for split, texts in query_texts.items():
            query_records = []
            for query_id, text in texts.items():
                if text_id(text) in records:
                    query_records.append((query_id, merged(records[text_id(text)])))
            if query_records:
                judged = read_judged(release, "qrels", split)
                draft.write("answers", split, answers_of(release, query_records, judged, options))
            matched[split] = {"queries": len(texts), "matched": len(query_records)}
    warn_of_gaps(draft.stats["answers"])
    return {"matched": matched, "answers": draft.stats["answers"]}
