"""Rounds of annotation, spoiled: what they hold, judgments, sheets, what Label Studio exports."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fuzzing import Reader, as_json, equal, fuzz_and_count, same
from spoil import JSON, JSON_LINES

from builders.annotate.judgments import Judgment, add_judgments, encoded, read_judgments
from builders.annotate.rounds import Item, Package, Round, Rule, items_of, open_round, pairs_of, write_round

NOON = datetime(2024, 5, 1, 12, tzinfo=timezone.utc)
ITEMS = [Item("q1", "p1", "高铁票提前几天买", "高铁票可以提前十五天购买。"), Item("q1", "p2", "=1+1", 'a,"b"')]
JUDGED = [Judgment(*item.pair, label, "anna", NOON, "dev-001", 1, "annotation") for label, item in enumerate(ITEMS)]


def make_round(folder: Path) -> None:
    (folder / "packages").mkdir(parents=True)
    lines = b"".join(msgspec.json.encode(item) + b"\n" for item in ITEMS)
    (folder / "packages" / "dev-001.jsonl").write_bytes(lines)
    rule = Rule(reviewers=2, review_pairs=1)
    write_round(folder, Round(1, "release", "0" * 64, "dev", "1" * 64, rule, [Package("dev-001", len(ITEMS))]))


def _items(folder: Path) -> Any:
    (package,) = open_round(folder).packages
    assert pairs_of(folder, package) == [item.pair for item in items_of(folder, package)]
    return items_of(folder, package)


def _as_items(found: list[Item], good: list[Item], folder: Path) -> bool:
    lines = (folder / "packages" / "dev-001.jsonl").read_bytes().split(b"\n")
    said = [json.loads(line.removeprefix(b"\xef\xbb\xbf"), parse_int=str) for line in lines if line]
    return equal([msgspec.to_builtins(item) for item in found], said)


def _judgments(folder: Path) -> None:
    make_round(folder)
    add_judgments(folder, JUDGED)


READERS = [
    Reader(
        "round.json",
        reaches=("builders.annotate.rounds:open_round",),
        make=make_round,
        spoils={"round.json": JSON},
        read=lambda folder: msgspec.to_builtins(open_round(folder)),
        right=as_json("round.json"),
    ),
    Reader(
        "the pairs of a package",
        reaches=("builders.annotate.rounds:_checked",),
        make=make_round,
        spoils={"packages/dev-001.jsonl": JSON_LINES},
        read=_items,
        right=_as_items,
    ),
    Reader(
        "judgments",
        reaches=("builders.annotate.judgments:_lines",),
        make=_judgments,
        spoils={"judgments/*.jsonl": JSON_LINES},
        read=lambda folder: [encoded(each) for each in read_judgments(folder)],
        right=same,
    ),
]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_spoiled_rounds_give_what_they_say_or_one_line(
    reader: Reader, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    fuzz_and_count(reader, tmp_path, record_property)
