"""Read translations of queries, and write the cross-lingual set (Section 2.5)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from builders.add.collection import described, open_base
from builders.core.errors import InputError, log
from builders.core.results import Report, Table
from builders.core.tables import round_stat
from builders.sources.source_files import Source
from builders.sources.source_tables import find_tables, open_table
from builders.store.draft import draft_release
from builders.store.layout import CROSSLINGUAL, CROSSLINGUAL_QUERIES, SPLITS, text_id
from builders.store.reader import Release

# Accepted names of the columns with the query's id, Chinese text and English text.
_COLUMNS = {
    "key": ("key", "id", "_id", "zh_id", "query_id", "query-id", "question_id", "qid"),
    "zh": ("zh", "query_zh", "chinese", "中文", "text", "query", "question"),
    "english": ("english", "en", "query_en", "translation", "英文", "machine_translation"),
}
_HAN = re.compile("[\u3400-\u9fff]")

Splits = Mapping[str, Mapping[str, str]]  # split -> id of a Chinese query -> text
English = dict[str, list[tuple[str, str]]]  # id of a Chinese query -> (id, text) of its English queries


def crosslingual_report(stats: Mapping[str, Any], out: Path) -> Report:
    """Return the figures of :func:`build_crosslingual` as a report. ``out`` is the release that was written."""
    lines, rows = [], []
    for split, figures in stats["english"].items():
        queries, words = figures["queries"], figures["words_per_query"]
        lines.append(f"{split}: {queries:,} English queries, {words:.2f} words each")
        rows.append([split, queries, words])
    table = Table(("split", "queries", "words_per_query"), rows)
    return Report(stats, "\n".join([*lines, f"release: {out}"]), [table])


def open_translations(
    release: Release | Path, tables: Sequence[Path], encoding: str
) -> tuple[Release, Splits, list[Translation]]:
    """Return a release, its Chinese queries, and the rows of the tables that translate these queries.

    A query of several splits stays in the first of test, dev, train. Rows of unknown queries are counted, reported and
    skipped. Raises :class:`InputError` if the release has no query, or if no row translates a query.
    """
    base = open_base(release, "crosslingual")
    splits: dict[str, dict[str, str]] = {}
    known: dict[str, str] = {}
    for split in reversed(SPLITS):
        if ("queries", split) in base.splits():
            texts = base.texts("queries", split)
            splits[split] = {zh_id: text for zh_id, text in texts.items() if zh_id not in known}
            known |= texts
    found = list(read_pairs(find_tables(tables), known, encoding)) if tables else []
    kept = [pair for pair in found if pair.zh_id in known]
    if unknown := [pair for pair in found if pair.zh_id not in known]:
        first = f"{unknown[0].source.shown}:{unknown[0].line}"
        log.warning("skipped %d rows that name no query of the release; the first is %s", len(unknown), first)
    if not known:
        raise InputError("has no queries to translate", path=base.path)
    if tables and not kept:
        raise InputError("no row of the tables names a query of the release, by id or by Chinese text", path=base.path)
    return base, splits, kept


@dataclass(frozen=True)
class Translation:
    """One row of a table. ``english`` may be empty. Only tables of `annotate translations` have a ``package``.

    ``by_machine`` is True if the English text equals the column machine_translation.
    """

    zh_id: str
    english: str
    package: str
    by_machine: bool
    source: Source
    line: int


def read_pairs(sources: Sequence[Source], known: Mapping[str, str], encoding: str) -> Iterator[Translation]:
    """Yield the rows of translation tables. A table without a header has two columns: id or Chinese text, and English.

    ``known`` maps the release's query ids to texts. Values that are not in ``known`` are Chinese texts. Raises
    :class:`InputError` for a table with other columns, and a row whose id and Chinese text are of different queries.
    """
    for source in sources:
        table = open_table(source, encoding, spreadsheet=True)
        roles = {role: next((name for name in names if name in table.columns), "") for role, names in _COLUMNS.items()}
        has_header = bool(roles["english"] and (roles["key"] or roles["zh"]))
        if not has_header and len(table.columns) != 2:
            raise InputError(
                "expected columns named id or zh, and english, or two columns: query id or Chinese text, English text;"
                f" found {', '.join(table.columns)[:200]}",
                path=source.shown,
                line=1,
            )
        names = table.columns if has_header else ["key", "english"]
        roles = roles if has_header else {"key": "key", "zh": "", "english": "english"}
        for line, row in table.rows(names if has_header else None):
            fields = dict(zip(names, row, strict=True))
            key, chinese, english = (fields.get(name, "") for name in roles.values())
            if not key:  # without a column of ids, the column of Chinese texts may contain ids
                key, chinese = chinese, ""
            # A spreadsheet may have changed the id, for example from digits to a rounded number.
            if key and chinese and key != text_id(chinese) and (key in known or text_id(chinese) in known):
                expected = f"has the id {key!r} for {chinese!r}; expected {text_id(chinese)}"
                raise InputError(expected, path=source.shown, line=line)
            zh_id = key if key in known else text_id(key)
            by_machine = english.strip() == fields.get("machine_translation", "").strip() != ""
            yield Translation(zh_id, english.strip(), fields.get("package", ""), by_machine, source, line)


def english_queries(pairs: Sequence[Translation], splits: Splits) -> tuple[English, dict[str, int]]:
    """Return the English queries, with ids that are unique in a split, and counts.

    Raises :class:`InputError` if no pair has an English text.
    """
    texts: dict[str, dict[str, None]] = {}
    for pair in pairs:
        if pair.english:
            texts.setdefault(pair.zh_id, {})[pair.english] = None
    if not texts:
        raise InputError("no row of --source has an English text; fill in the column english")
    untranslated, different = sum(not pair.english for pair in pairs), sum(map(len, texts.values()))
    counts = {
        **{"rows": len(pairs), "untranslated": untranslated, "same_pair_again": len(pairs) - untranslated - different},
        **{"further_translation": different - len(texts), "same_english_again": 0},
        "machine": sum(pair.by_machine for pair in pairs),
    }
    queries: English = {}
    for split in splits:
        taken: set[str] = set()
        for zh_id, text in ((each, text) for each in splits[split] for text in texts.get(each, ())):
            english_id = text_id(text)
            if english_id in taken:
                counts["same_english_again"] += 1
                english_id = text_id(f"{text}\n{zh_id}")
            taken.add(english_id)
            queries.setdefault(zh_id, []).append((english_id, text))
    counts["with_chinese"] = sum(bool(_HAN.search(text)) for own in queries.values() for _, text in own)
    for key, words in (
        ("untranslated", "rows without English text are skipped"),
        ("with_chinese", "English texts contain Chinese characters"),
        ("machine", "English texts are a model's translations that nobody changed"),
    ):
        if counts[key]:
            log.warning("%d %s", counts[key], words)
    return queries, counts


def build_crosslingual(
    pairs: Sequence[Translation],
    splits: Splits,
    base: Release,
    out: Path,
    options: dict[str, Any],
    sources: Sequence[Source],
    packages: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Write the release ``out``: a copy of ``base`` with the cross-lingual configs. Return the figures of the set.

    ``packages`` has the figures of `annotate translations` (default: no figures).
    """
    queries, counts = english_queries(pairs, splits)
    figures: dict[str, Any] = {}
    with draft_release(out, {"verb": "crosslingual", "options": options, "sources": described(sources)}, base) as draft:
        draft.drop("crosslingual-queries")
        draft.drop("crosslingual")
        for split in SPLITS:
            rows = [(*row, zh_id) for zh_id in splits.get(split, ()) for row in queries.get(zh_id, ())]
            if not rows:
                continue
            table = pa.table([pa.array(column) for column in zip(*rows, strict=True)], schema=CROSSLINGUAL_QUERIES)
            draft.write("crosslingual-queries", split, [table])
            draft.write("crosslingual", split, _joined(base, split, queries))
            words = sum(len(text.split()) for _, text, _ in rows)
            figures[split] = {"queries": len(rows), "words_per_query": round_stat(words / len(rows))}
        draft.stats["english"] = figures
        draft.stats["crosslingual"] = counts | ({"packages": list(packages)} if packages else {})
    return {key: draft.stats[key] for key in ("english", "crosslingual")}


def _joined(release: Release, split: str, queries: English) -> Iterator[pa.Table]:
    """Yield the joined rows of the English queries, in the order of their Chinese queries' joined rows."""
    for batch in release.batches(split, split) if (split, split) in release.splits() else ():
        rows = [
            (row, english_id, text)
            for row, zh_id in enumerate(batch.column("query_id").to_pylist())
            for english_id, text in queries.get(zh_id, ())
        ]
        if rows:
            chosen, ids, texts = zip(*rows, strict=True)
            table = pa.Table.from_batches([batch]).take(pa.array(chosen))
            columns = [pa.array(ids), pa.array(texts), table["positive_passages"], table["negative_passages"]]
            yield pa.table([*columns, table["query"]], schema=CROSSLINGUAL)
