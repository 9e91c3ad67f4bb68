"""Texts above the limit are refused by readers of sources and of releases."""

import json
import time
from pathlib import Path
from unittest import mock

import pytest
from commands import run
from releases import QUESTIONS, make_release, md5, tables, write_rows
from releases import raw_row as question_row

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
ANSWERS = QUESTIONS["train"] + QUESTIONS["dev"]  # any texts, because every question of a release needs an answer
FAULT = "a text has 1,000,001 characters, expected at most 1,000,000"


def raw_row(paragraph: str) -> bytes:
    """Return a row of DuReader's files with one paragraph."""
    row = {
        "question_id": 1,
        "question": "问",
        "documents": [{"paragraphs": [paragraph], "is_selected": False, "title": ""}],
        "answers": [],
    }
    return json.dumps(row, ensure_ascii=False).encode()


def test_the_reader_of_raw_rows_refuses_a_text_above_the_limit() -> None:
    assert parse_row(raw_row(LONGEST)).documents[0].paragraphs == [LONGEST]
    with pytest.raises(ValueError, match=FAULT):
        parse_row(raw_row(LONG))


@pytest.mark.parametrize(
    ("options", "paragraph_lengths", "remedy"),
    [
        ([], [100, 999_999], "cut its paragraphs or lower --min-chars"),
        (["--whole-documents"], [600_000, 400_099], "leave out --whole-documents"),
    ],
)
def test_paragraphs_that_are_joined_above_the_limit_are_refused(
    options: list[str], paragraph_lengths: list[int], remedy: str, tmp_path: Path
) -> None:
    paragraphs = ["短" * length for length in paragraph_lengths]
    rows = [question_row(1, "问", [["短"]], []), question_row(2, "题", [["短"], paragraphs], [])]
    source = write_rows(tmp_path / "train.json", rows)
    release = tmp_path / "release"
    done = run("builders", "release", "--raw", source, "--out", release, "--unit", "char", *options, code=1)
    fault = "the joined paragraphs of a passage have 1,000,099 characters, expected at most 1,000,000"
    assert done.error == f"{source}:2: {fault}; {remedy}"
    assert not release.exists()


def test_the_reader_of_official_texts_refuses_a_text_above_the_limit() -> None:
    assert len(texts_of([LONGEST.encode()], "passage").digests) == 16  # the bytes of one checksum
    with pytest.raises(BadLine, match=FAULT):
        texts_of([LONG.encode()], "passage")


def test_a_text_of_a_source_above_the_limit_is_refused(tmp_path: Path) -> None:
    source = Source(tmp_path / "passages.csv", None, "passages.csv")
    SourceTexts("passage").add("1", LONGEST, source, 3)
    with pytest.raises(InputError, match=rf"passages.csv:3: {FAULT}"):
        SourceTexts("passage").add("1", LONG, source, 3)


def test_a_release_with_a_text_above_the_limit_is_not_written_and_not_read(tmp_path: Path) -> None:
    release = tmp_path / "release"
    rows = tables([*ANSWERS, LONG])
    with pytest.raises(InputError, match=FAULT):
        make_release(release, rows)
    # As another program might write
    with mock.patch.object(layout, "LONGEST_TEXT", 2_000_000):
        make_release(release, rows)
    assert FAULT in run("baselines", "bm25", "--release", release, "--out", tmp_path / "r", code=1).error


def test_the_longest_passage_is_shown_in_seconds(tmp_path: Path) -> None:
    question = QUESTIONS["dev"][1]
    passage = ("手机进水怎么办。" * 10_000 + LONGEST)[: layout.LONGEST_TEXT]
    release = make_release(tmp_path / "release", tables([*ANSWERS, passage]))
    write_run(tmp_path / "run", [(md5(question), [(md5(passage), 1.0)])])
    started = time.monotonic()
    text = str(show_passages([tmp_path / "run"], release=open_release(release), query=question))
    assert "手机进水怎么办" in text and len(text) < EXCERPT_SOURCE_CHARS
    assert time.monotonic() - started < 60
