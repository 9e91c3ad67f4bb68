"""The English queries and their ids (Section 2.5): each belongs to the split of its Chinese query."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from builders.common.command import InputError, log
from builders.crosslingual.pairs import Pair
from builders.store.layout import SPLITS, text_id
from builders.store.reader import Release

_HAN = re.compile("[\u3400-\u9fff]")


def chinese_queries(release: Release) -> dict[str, dict[str, str]]:
    """Text by id of the release's queries, by split; a query in several splits in the first of test, dev, train."""
    seen: set[str] = set()
    found: dict[str, dict[str, str]] = {}
    for split in reversed(SPLITS):
        if ("queries", split) in release.splits():
            table = release.table("queries", split)
            rows = zip(table["_id"].to_pylist(), table["text"].to_pylist(), strict=True)
            found[split] = {zh_id: text for zh_id, text in rows if zh_id not in seen}
            seen.update(found[split])
    if not found:
        raise InputError("has no queries to translate", path=release.path)
    return found


def repeated_id(text: str, zh_id: str) -> str:
    """The id of an English query whose text is, in the same split, that of an earlier one, too."""
    return text_id(f"{text}\n{zh_id}")


# By Chinese query: (id, text) of its English ones.
English = dict[str, list[tuple[str, str]]]


def english_queries(pairs: Iterable[Pair], splits: Mapping[str, Mapping[str, str]]) -> tuple[English, dict[str, int]]:
    """The English queries with their ids, each id once in a split, and what was counted on the way.

    Raises :class:`InputError` where no pair has an English text.
    """
    texts: dict[str, dict[str, None]] = {}
    counts = dict.fromkeys(
        ("rows", "untranslated", "same_pair_again", "further_translation", "same_english_again", "with_chinese"), 0
    )
    for pair in pairs:
        counts["rows"] += 1
        if not pair.english:
            counts["untranslated"] += 1
            continue
        known = texts.setdefault(pair.zh_id, {})
        counts["same_pair_again"] += pair.english in known
        counts["further_translation"] += bool(known) and pair.english not in known
        known[pair.english] = None
    if not texts:
        raise InputError("no row has an English text")
    queries: English = {}
    for split in splits:
        taken: set[str] = set()
        rows = [(each, text) for each in splits[split] for text in texts.get(each, ())]
        for zh_id, text in rows:
            english_id = text_id(text)
            if english_id in taken:
                counts["same_english_again"] += 1
                english_id = repeated_id(text, zh_id)
            taken.add(english_id)
            counts["with_chinese"] += bool(_HAN.search(text))
            queries.setdefault(zh_id, []).append((english_id, text))
    for key, words in (("untranslated", "have no English text, and are left out"), ("with_chinese", "hold Chinese")):
        if counts[key]:
            log.warning("%d rows %s", counts[key], words)
    return queries, counts
