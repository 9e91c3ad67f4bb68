"""Texts above the limit are refused by readers of sources and of releases."""

import json
import time
from pathlib import Path
from unittest import mock

import pytest
from commands import run
from releases import QUESTIONS, make_release, md5, tables

from baselines.look.excerpts import EXCERPT_SOURCE_CHARS
from baselines.look.show import show_passages
from builders.add.collection import SourceTexts
from builders.core.errors import InputError
from builders.official.official_formats import BadLine, texts_of
from builders.release.rows import parse_row
from builders.sources.source_files import Source
from builders.store import layout
from builders.store.reader import open_release
from builders.store.runs import write_run

LONG = "长" * (layout.LONGEST_TEXT + 1)
LONGEST = LONG[1:]
FAULT = "a text has 1,000,001 characters, expected at most 1,000,000"


def raw_row(paragraph: str) -> bytes:
    row = {
        "question_id": 1,
        "question": "问",
        "documents": [{"paragraphs": [paragraph], "is_selected": False, "title": ""}],
        "answers": [],
    }
    return json.dumps(row, ensure_ascii=False).encode()


def test_readers_refuse_a_text_above_the_limit(tmp_path: Path) -> None:
    assert parse_row(raw_row(LONGEST)).documents[0].paragraphs == [LONGEST]
    with pytest.raises(ValueError, match=FAULT):
        parse_row(raw_row(LONG))
    assert len(texts_of([LONGEST.encode()], "passage").digests) == 16
    with pytest.raises(BadLine, match=FAULT):
        texts_of([LONG.encode()], "passage")
    source = Source(tmp_path / "passages.csv", None, "passages.csv")
    SourceTexts("passage").add("1", LONGEST, source, 3)
    with pytest.raises(InputError, match=rf"passages.csv:3: {FAULT}"):
        SourceTexts("passage").add("1", LONG, source, 3)


def test_a_release_with_a_text_above_the_limit_is_not_written_and_not_read(tmp_path: Path) -> None:
    rows = tables([*QUESTIONS["train"], *QUESTIONS["dev"], LONG])
    with pytest.raises(InputError, match=FAULT):
        make_release(tmp_path / "release", rows)
    with mock.patch.object(layout, "LONGEST_TEXT", 2_000_000):
        make_release(tmp_path / "release", rows)
    assert FAULT in run("baselines", "bm25", "--release", tmp_path / "release", "--out", tmp_path / "r", code=1).error


def test_the_longest_passage_is_shown_in_seconds(tmp_path: Path) -> None:
    passage = f"{'手机进水怎么办。' * 10_000}{LONGEST}"[: layout.LONGEST_TEXT]
    release = make_release(tmp_path / "release", tables([*QUESTIONS["train"], *QUESTIONS["dev"], passage]))
    write_run(tmp_path / "run", [(md5(QUESTIONS["dev"][1]), [(md5(passage), 1.0)])])
    start = time.monotonic()
    shown = str(show_passages([tmp_path / "run"], release=open_release(release), query=QUESTIONS["dev"][1]))
    assert "手机进水怎么办" in shown and len(shown) < EXCERPT_SOURCE_CHARS
    assert time.monotonic() - start < 60
