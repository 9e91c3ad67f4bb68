"""Add the cross-lingual set: English queries (Section 2.5).

Table 3 has its figures. Each English query has the passages of its Chinese query. Built from a table of translations
(CSV or TSV; columns named id or zh, and english, or two without a header: query id or Chinese text, English text) and
the release that holds the Chinese queries. An English query is in the split of its Chinese query. Configs:
crosslingual-queries (_id, text, zh_id) and crosslingual (the rows of train, dev and test, query in English, query_zh
added). The judgments are those of the release's qrels for zh_id.

The id is the MD5 of the English text. Where several Chinese queries of a split have one English text, each keeps a row
of its own, as each has its own passages: from the second on the id is the MD5 of the English text, a line feed and
zh_id, so that no id comes twice in a split. A Chinese query may have several translations, too: a row each.

`annotate translations` translates by hand, with the paper's quality control (A.3).

example:
  python -m builders add crosslingual --source translations.tsv --release build/sample --out build/with-english
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from builders.add.collection import described, open_base
from builders.core.command import add_format
from builders.core.errors import InputError, log
from builders.core.tables import print_result
from builders.sources.encoding import CHOICES
from builders.sources.files import Source
from builders.sources.tables import find_tables, open_table
from builders.store.draft import draft_release
from builders.store.layout import CROSSLINGUAL, CROSSLINGUAL_QUERIES, SPLITS, text_id
from builders.store.reader import Release
from builders.store.table3 import round_stat

# The names that the columns may have: the query's id, its Chinese text, its English text.
_COLUMNS = {
    "key": ("key", "id", "_id", "zh_id", "query_id", "query-id", "question_id", "qid"),
    "zh": ("zh", "query_zh", "chinese", "中文", "text", "query", "question"),
    "english": ("english", "en", "query_en", "translation", "英文"),
}
_HAN = re.compile("[\u3400-\u9fff]")

Splits = Mapping[str, Mapping[str, str]]  # by split: the text of its Chinese queries by id
English = dict[str, list[tuple[str, str]]]  # by Chinese query: (id, text) of its English ones


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source", nargs="+", type=Path, required=True, metavar="TABLE", help="translations")
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="it holds the Chinese queries")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the release to write")
    parser.add_argument("--encoding", choices=CHOICES, default="auto", help="default: told by the bytes")
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    base, splits, pairs = open_translations(args.release, args.source, args.encoding)
    options = {"action": "build", "encoding": args.encoding}
    print_set(build_crosslingual(pairs, splits, base, args.out, options, find_tables(args.source)), args)


def print_set(stats: Mapping[str, Any], args: argparse.Namespace) -> None:
    """Print the figures of the set, as :func:`build_crosslingual` returns them."""
    lines = [
        f"{split}: {n['queries']:,} English queries, {n['words_per_query']:.2f} words each"
        for split, n in stats["english"].items()
    ]
    print_result(stats, "\n".join([*lines, f"release: {args.out}"]), args.format)


def open_translations(
    release: Path, tables: Sequence[Path], encoding: str
) -> tuple[Release, Splits, list[Translation]]:
    """Return a release, its Chinese queries, and the rows of the tables that translate one of them.

    A query of several splits is in the first of test, dev, train. Raises :class:`InputError` where no row translates
    a query; the other rows are counted and reported.
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
        at = f"{unknown[0].source.shown}:{unknown[0].line}"
        log.warning("%d rows name no query of the release and are left out; the first: %s", len(unknown), at)
    if not known or (tables and not kept):
        raise InputError("no row names a query of the release, by id or by Chinese text", path=release)
    return base, splits, kept


@dataclass(frozen=True)
class Translation:
    """One translated query as a table has it; ``package`` is empty in a plain table, ``english`` may be."""

    zh_id: str
    english: str
    package: str
    source: Source
    line: int


def read_pairs(sources: Sequence[Source], known: Mapping[str, str], encoding: str) -> Iterator[Translation]:
    """Yield the rows of translation tables: with a header, or two columns (query id or Chinese text, English text).

    ``known`` maps the release's query ids to their texts; any other key is a Chinese text. Raises :class:`InputError`
    for other columns, and for a row whose id and Chinese text belong to different queries.
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
            if not key:  # a column of Chinese texts alone may hold ids, too
                key, chinese = chinese, ""
            # A spreadsheet turns an id of digits alone into a number: such a row must not get lost, or go astray.
            if key and chinese and key != text_id(chinese) and (key in known or text_id(chinese) in known):
                expected = f"the id of {chinese!r} is {text_id(chinese)}, here {key!r}"
                raise InputError(expected, path=source.shown, line=line)
            zh_id = key if key in known else text_id(key)
            yield Translation(zh_id, english.strip(), fields.get("package", ""), source, line)


def english_queries(pairs: Sequence[Translation], splits: Splits) -> tuple[English, dict[str, int]]:
    """The English queries with their ids, each id once in a split, and what was counted on the way.

    Raises :class:`InputError` where no pair has an English text.
    """
    texts: dict[str, dict[str, None]] = {}
    for pair in pairs:
        if pair.english:
            texts.setdefault(pair.zh_id, {})[pair.english] = None
    if not texts:
        raise InputError("no row has an English text")
    untranslated, different = sum(not pair.english for pair in pairs), sum(map(len, texts.values()))
    counts = {
        "rows": len(pairs),
        "untranslated": untranslated,
        "same_pair_again": len(pairs) - untranslated - different,
    }
    counts |= {"further_translation": different - len(texts), "same_english_again": 0}
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
    for key, words in (("untranslated", "have no English text, and are left out"), ("with_chinese", "hold Chinese")):
        if counts[key]:
            log.warning("%d rows %s", counts[key], words)
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
    """Write the release ``out``: ``base`` and the cross-lingual configs; return its figures.

    ``packages``: the figures of the packages of a translation by hand.
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
    """A row for each English query: that of its Chinese one in the split's joined config, in this config's order."""
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
