"""Read translations of queries, and write the cross-lingual set (Section 2.5)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from builders.add.collection import describe_sources, open_base
from builders.core.errors import InputError, log
from builders.core.progress import show_progress
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
# Columns of a table without a header.
_HEADERLESS_COLUMNS = ("key", "english")
_HAN = re.compile("[\u3400-\u9fff]")  # CJK ideographs of Unicode's basic plane
_SHOWN_CHARACTERS = 200  # maximum of a table's column names in an error

Splits = Mapping[str, Mapping[str, str]]  # split -> id of a Chinese query -> text
# Id of a Chinese query -> (id, text) of its English queries
English = dict[str, list[tuple[str, str]]]


def crosslingual_report(release_stats: Mapping[str, Any], out_path: Path) -> Report:
    """Return the figures of the set as a report. ``out_path`` is the release that was written.

    ``release_stats`` has ``english`` and ``crosslingual`` of ``stats.json``, from :func:`build_crosslingual`.
    """
    lines, rows = describe_splits(release_stats)
    lines.append(f"release: {out_path}")
    table = Table(("split", "queries", "words_per_query"), rows)
    return Report(release_stats, "\n".join(lines), [table])


def describe_splits(release_stats: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, int, float]]]:
    """Return the figures of the splits as lines, and as rows (split, English queries, words per query).

    ``release_stats["english"]`` maps a split to ``queries`` and ``words_per_query``.
    """
    lines = []
    rows = []
    for split, figures in release_stats["english"].items():
        query_count = figures["queries"]
        word_mean = figures["words_per_query"]
        lines.append(f"{split}: {query_count:,} English queries, {word_mean:.2f} words each")
        rows.append((split, query_count, word_mean))
    return lines, rows


def join_splits(texts_by_split: Splits) -> dict[str, str]:
    """Return the queries of all splits: id -> text. No query is in two splits (:func:`open_translations`)."""
    all_texts: dict[str, str] = {}
    for split_texts in texts_by_split.values():
        all_texts |= split_texts
    return all_texts


def open_translations(
    release: Release | Path, table_paths: Sequence[Path], encoding: str
) -> tuple[Release, Splits, list[Translation]]:
    """Return a release, its Chinese queries, and the rows of the tables that translate these queries.

    A query of several splits stays in the first of test, dev, train. Rows of unknown queries are counted, reported and
    skipped. ``table_paths`` may be empty, if only the Chinese queries are needed. Raises :class:`InputError` if the
    release has no query, or if there are tables without a row for any query.
    """
    base = open_base(release, "crosslingual")
    splits: dict[str, dict[str, str]] = {}
    query_texts: dict[str, str] = {}
    # The order is test, dev, train: a query of several splits stays in the first of them.
    for split in reversed(SPLITS):
        if ("queries", split) in base.splits():
            split_texts = base.texts("queries", split)
            splits[split] = {zh_id: text for zh_id, text in split_texts.items() if zh_id not in query_texts}
            query_texts |= split_texts
    translations = []
    unknown_rows = []
    if table_paths:
        for translation in read_pairs(find_tables(table_paths), query_texts, encoding):
            if translation.zh_id in query_texts:
                translations.append(translation)
            else:
                unknown_rows.append(translation)
    if unknown_rows:
        first = f"{unknown_rows[0].source.shown}:{unknown_rows[0].line}"
        log.warning("skipped %d rows that name no query of the release; the first is %s", len(unknown_rows), first)
    if not query_texts:
        raise InputError("has no queries to translate", path=base.path)
    if table_paths and not translations:
        raise InputError("no row of the tables names a query of the release, by id or by Chinese text", path=base.path)
    return base, splits, translations


@dataclass(frozen=True)
class Translation:
    """One row of a table of translations."""

    zh_id: str  # id of the Chinese query, or the MD5 of a Chinese text that the release lacks
    english: str  # may be empty
    package: str  # such as dev-001; empty without `annotate translations`
    by_machine: bool  # True if the English text equals the column machine_translation
    source: Source
    line: int


def read_pairs(
    table_sources: Sequence[Source],
    query_texts: Mapping[str, str],
    encoding: str,
) -> Iterator[Translation]:
    """Yield the rows of translation tables. A table without a header has two columns: id or Chinese text, and English.

    ``query_texts`` maps the release's query ids to texts. Values that are not among these ids are Chinese texts. If
    several queries have this text, the row belongs to the first. Raises :class:`InputError` for a table with other
    columns, and a row whose id and Chinese text are of different queries.
    """
    ids_by_text: dict[str, str] = {}
    for query_id, query_text in query_texts.items():
        ids_by_text.setdefault(query_text, query_id)
    for source in table_sources:
        table = open_table(source, encoding, spreadsheet=True)
        # Key, zh or english -> name of the column, or "" without such a column.
        roles: dict[str, str] = {}
        for role, accepted_names in _COLUMNS.items():
            roles[role] = next((name for name in accepted_names if name in table.columns), "")
        # A first row without the names of two such columns is a row of data.
        has_header = bool(roles["english"] and (roles["key"] or roles["zh"]))
        if has_header:
            column_names: Sequence[str] = table.columns
            rows = table.rows(column_names)
        elif len(table.columns) == len(_HEADERLESS_COLUMNS):
            column_names = _HEADERLESS_COLUMNS
            roles = {"key": "key", "zh": "", "english": "english"}
            rows = table.rows()  # without column names, the first row is yielded, too
        else:
            raise InputError(
                "expected columns named id or zh, and english, or two columns: query id or Chinese text, English text;"
                f" found {', '.join(table.columns)[:_SHOWN_CHARACTERS]}",
                path=source.shown,
                line=table.first_line,
            )
        for line, row in rows:
            fields = dict(zip(column_names, row, strict=True))
            yield _translation_of_row(fields, roles, query_texts, ids_by_text, source, line)


def _translation_of_row(
    fields: Mapping[str, str],
    roles: Mapping[str, str],
    query_texts: Mapping[str, str],
    ids_by_text: Mapping[str, str],
    source: Source,
    line: int,
) -> Translation:
    """Return a row of a table as a :class:`Translation`, with the id of its Chinese query.

    ``fields`` maps columns to values, and ``roles`` maps key, zh and english to columns, or to "" for no column.
    ``query_texts`` maps the release's query ids to texts, and ``ids_by_text`` the texts to ids. Raises
    :class:`InputError` if id and Chinese text are of different queries.
    """
    key = fields.get(roles["key"], "")
    chinese = fields.get(roles["zh"], "")
    english = fields.get(roles["english"], "").strip()
    if not key:  # without a column of ids, the column of Chinese texts may contain ids
        key = chinese
        chinese = ""
    # A spreadsheet may have changed the id, for example from digits to a rounded number.
    is_same_query = key == text_id(chinese) or query_texts.get(key) == chinese
    if key and chinese and not is_same_query:
        # If neither is a query of the release, the row is skipped later.
        expected_id = _find_query(chinese, query_texts, ids_by_text)
        if key in query_texts or expected_id:
            expected = f"has the id {key!r} for {chinese!r}; expected {expected_id or text_id(chinese)}"
            raise InputError(expected, path=source.shown, line=line)
    # A value that is no id of the release is a Chinese text, or the MD5 of the row's Chinese text.
    if key in query_texts:
        zh_id = key
    else:
        found_id = _find_query(key, query_texts, ids_by_text) or _find_query(chinese, query_texts, ids_by_text)
        zh_id = found_id or text_id(key)
    machine_text = fields.get("machine_translation", "").strip()
    by_machine = machine_text != "" and english == machine_text
    return Translation(zh_id, english, fields.get("package", ""), by_machine, source, line)


def _find_query(chinese: str, query_texts: Mapping[str, str], ids_by_text: Mapping[str, str]) -> str:
    """Return the id of the release's query with a Chinese text, or "" if the release has no such query."""
    md5_id = text_id(chinese)
    if md5_id in query_texts:
        return md5_id
    # Official archives may have ids that are no MD5 of the text.
    return ids_by_text.get(chinese, "")


def english_queries(
    translations: Sequence[Translation],
    texts_by_split: Splits,
) -> tuple[English, dict[str, int]]:
    """Return the English queries, with ids that are unique in a split, and counts for ``stats.json``.

    ``texts_by_split`` are the Chinese queries. Raises :class:`InputError` if no row has an English text.
    """
    # Id of a Chinese query -> its English texts, each once
    texts_by_query: dict[str, dict[str, None]] = {}
    for translation in translations:
        if translation.english:
            texts_by_query.setdefault(translation.zh_id, {})[translation.english] = None
    if not texts_by_query:
        raise InputError("no row of --source has an English text; fill in the column english")
    # Counts of rows and of pairs (Chinese query, English text). Equal rows of several tables are one pair.
    untranslated = sum(not translation.english for translation in translations)
    distinct_pairs = sum(map(len, texts_by_query.values()))
    counts = {
        "rows": len(translations),
        "untranslated": untranslated,
        "same_pair_again": len(translations) - untranslated - distinct_pairs,
        "further_translation": distinct_pairs - len(texts_by_query),  # beyond the first of a Chinese query
        "same_english_again": 0,
        "machine": sum(translation.by_machine for translation in translations),
    }

    # Give each English query an id that is unique in its split.
    queries: English = {}
    for split_queries in texts_by_split.values():
        split_ids: set[str] = set()
        for zh_id in split_queries:
            for english in texts_by_query.get(zh_id, ()):
                english_id = text_id(english)
                if english_id in split_ids:
                    # Another Chinese query has the same translation. Its passages differ, so it needs its own id.
                    counts["same_english_again"] += 1
                    english_id = text_id(f"{english}\n{zh_id}")
                split_ids.add(english_id)
                queries.setdefault(zh_id, []).append((english_id, english))

    # Texts that are probably no translations are only reported.
    with_chinese = 0
    for query_translations in queries.values():
        with_chinese += sum(bool(_HAN.search(english)) for _, english in query_translations)
    counts["with_chinese"] = with_chinese
    _warn_of_texts(counts)
    return queries, counts


def _warn_of_texts(counts: Mapping[str, int]) -> None:
    """Log a warning for each count of :func:`english_queries` that needs a person's look."""
    if counts["untranslated"]:
        log.warning("%d rows without English text are skipped", counts["untranslated"])
    if counts["with_chinese"]:
        log.warning("%d English texts contain Chinese characters", counts["with_chinese"])
    if counts["machine"]:
        log.warning("%d English texts are a model's translations that nobody changed", counts["machine"])


def build_crosslingual(
    translations: Sequence[Translation],
    texts_by_split: Splits,
    base_release: Release,
    out_path: Path,
    build_options: dict[str, Any],
    table_sources: Sequence[Source],
    package_figures: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Write a copy of ``base_release`` with the cross-lingual configs. Return the figures of the set.

    The figures are ``english`` (of each split) and ``crosslingual`` (counts of the tables) of ``stats.json``.

    Args:
        translations: rows that translate queries of the release.
        texts_by_split: the Chinese queries.
        base_release: release to copy.
        out_path: release directory to write.
        build_options: options for the manifest.
        table_sources: source files for the manifest.
        package_figures: a row of figures for each package of `annotate translations`.
    """
    queries, counts = english_queries(translations, texts_by_split)
    figures: dict[str, Any] = {}
    build = {"verb": "crosslingual", "options": build_options, "sources": describe_sources(table_sources)}
    with draft_release(out_path, build, base_release) as draft:
        # The copied release may have an earlier set.
        draft.drop("crosslingual-queries")
        draft.drop("crosslingual")
        for split in SPLITS:
            # English id, English text, id of the Chinese query.
            query_rows: list[tuple[str, str, str]] = []
            for zh_id in texts_by_split.get(split, ()):
                for english_id, english in queries.get(zh_id, ()):
                    query_rows.append((english_id, english, zh_id))
            if not query_rows:
                continue
            columns = [pa.array(values) for values in zip(*query_rows, strict=True)]
            draft.write("crosslingual-queries", split, [pa.table(columns, schema=CROSSLINGUAL_QUERIES)])
            # A Chinese query of several splits is translated only in one of them.
            split_queries = {zh_id: queries[zh_id] for zh_id in texts_by_split[split] if zh_id in queries}
            draft.write("crosslingual", split, _joined_tables(base_release, split, split_queries))
            word_count = sum(len(english.split()) for _, english, _ in query_rows)
            figures[split] = {
                "queries": len(query_rows),
                "words_per_query": round_stat(word_count / len(query_rows)),
            }
        draft.stats["english"] = figures
        draft.stats["crosslingual"] = counts
        if package_figures:
            draft.stats["crosslingual"] = counts | {"packages": list(package_figures)}
    return {name: draft.stats[name] for name in ("english", "crosslingual")}


def _joined_tables(release: Release, split: str, queries_by_id: English) -> Iterator[pa.Table]:
    """Yield the joined rows of the English queries, in the order of their Chinese queries' joined rows.

    Yields nothing if the release has no joined rows of the split.
    """
    if (split, split) not in release.splits():
        return
    row_count = sum(entry.rows or 0 for entry in release.shards(split, split))
    with show_progress(total=row_count, unit="row", label=f"crosslingual {split}") as bar:
        for batch in release.batches(split, split):
            # A Chinese query's row is repeated for each of its English queries.
            batch_rows: list[int] = []
            english_ids: list[str] = []
            english_texts: list[str] = []
            for row, zh_id in enumerate(batch.column("query_id").to_pylist()):
                for english_id, english in queries_by_id.get(zh_id, ()):
                    batch_rows.append(row)
                    english_ids.append(english_id)
                    english_texts.append(english)
            if batch_rows:
                chinese = pa.Table.from_batches([batch]).take(pa.array(batch_rows))
                columns = [
                    pa.array(english_ids),
                    pa.array(english_texts),
                    chinese["positive_passages"],
                    chinese["negative_passages"],
                    chinese["query"],
                ]
                yield pa.table(columns, schema=CROSSLINGUAL)
            bar.update(batch.num_rows)
