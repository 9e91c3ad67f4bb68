"""Tables of translations: CSV or TSV, with a header or without, of a Chinese query and its English text a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from builders.common.command import InputError, log
from builders.sources.files import Source
from builders.sources.tables import Table, open_table
from builders.store.layout import text_id

# What the columns may be called: the query's id, its Chinese text, its English text.
_KEYS = ("key", "id", "_id", "zh_id", "query_id", "query-id", "question_id", "qid")
_CHINESE = ("zh", "query_zh", "chinese", "中文", "text", "query", "question")
_ENGLISH = ("english", "en", "query_en", "translation", "英文")


@dataclass(frozen=True)
class Pair:
    """One translated query as a table has it; ``package`` is empty in a plain table, ``english`` may be."""

    zh_id: str
    english: str
    package: str
    source: Source
    line: int


def read_pairs(sources: Sequence[Source], known: Mapping[str, str], encoding: str) -> Iterator[Pair]:
    """The rows of translation tables: with a header, or two columns (query id or Chinese text, English text) without.

    ``known`` maps the release's query ids to their texts. A key that is none of these ids is taken as a Chinese text.

    Raises :class:`InputError` for a table of other columns, and for a row whose id and Chinese text belong to
    different queries.
    """
    for source in sources:
        table = open_table(source, encoding, spreadsheet=True)
        names = _names(table)
        for line, row in table.rows(names):
            fields = dict(zip(names, row, strict=True)) if names else {"key": row[0], "english": row[1]}
            values = {role: fields[name] for role, name in _roles(names or ["key", "english"]).items()}
            key, chinese = values.get("key", ""), values.get("zh", "")
            if not key:  # a column of Chinese texts alone may hold ids, too
                key, chinese = chinese, ""
            zh_id = key if key in known else text_id(key)
            # A spreadsheet turns an id of digits alone into a number: such a row must not get lost, or go astray.
            if key and chinese and key != text_id(chinese) and (key in known or text_id(chinese) in known):
                expected = f"the id of {chinese!r} is {text_id(chinese)}, here {key!r}"
                raise InputError(expected, path=source.shown, line=line)
            yield Pair(zh_id, values["english"].strip(), fields.get("package", ""), source, line)


def _roles(names: Sequence[str]) -> dict[str, str]:
    """The columns that hold key, Chinese and English text, as far as they are there."""
    found = {}
    for role, words in (("key", _KEYS), ("zh", _CHINESE), ("english", _ENGLISH)):
        if name := next((word for word in words if word in names), None):
            found[role] = name
    return found


def _names(table: Table) -> list[str] | None:
    """The table's column names; None where it has two columns and no header."""
    roles = _roles(table.columns)
    if "english" in roles and ("key" in roles or "zh" in roles):
        return table.columns
    if len(table.columns) == 2:
        return None
    raise InputError(
        "expected columns named id or zh, and english, or two columns: query id or Chinese text, English text;"
        f" found {', '.join(table.columns)[:200]}",
        path=table.source.shown,
        line=1,
    )


def known_pairs(pairs: Iterable[Pair], known: Mapping[str, str]) -> list[Pair]:
    """The pairs whose Chinese query the release has; the others are counted and reported."""
    kept: list[Pair] = []
    unknown: list[Pair] = []
    for pair in pairs:
        (kept if pair.zh_id in known else unknown).append(pair)
    if unknown:
        at = f"{unknown[0].source.shown}:{unknown[0].line}"
        log.warning("%d rows name no query of the release and are left out; the first: %s", len(unknown), at)
    if not kept:
        raise InputError("no row names a query of the release, by id or by Chinese text")
    return kept
