"""Passages by id and by row."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from releases import TEXTS, make_release, md5, tables

from baselines.retrieve.passages import open_passages
from builders.core.errors import InputError
from builders.store.reader import open_release


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return make_release(tmp_path / "release")


def test_texts_and_ids_are_those_of_the_release(release: Path, tmp_path: Path) -> None:
    passages = open_passages(open_release(release), keep=tmp_path / "keep")
    assert len(passages) == len(TEXTS)
    assert passages.texts([4, 0, 4]) == [TEXTS[4], TEXTS[0], TEXTS[4]]
    assert passages.ids(range(len(TEXTS))) == [md5(text) for text in TEXTS]
    assert passages.rows([md5(TEXTS[3]), "none", md5(TEXTS[1])]).tolist() == [3, -1, 1]
    again = pickle.loads(pickle.dumps(passages))
    assert again.texts([2]) == [TEXTS[2]]
    with pytest.raises(IndexError):
        passages.texts([-1])


def test_the_unpacked_folder_is_used_again_until_the_corpus_or_a_file_changes(release: Path, tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    folder = open_passages(open_release(release), keep=keep).folder
    made = (folder / "texts").stat().st_mtime_ns
    assert open_passages(open_release(release), keep=keep).folder == folder
    assert (folder / "texts").stat().st_mtime_ns == made
    (folder / "texts").write_bytes(b"half")
    assert open_passages(open_release(release), keep=keep).texts([5]) == [TEXTS[5]]
    other = make_release(tmp_path / "other", tables([*TEXTS, "新的一段"]))
    assert open_passages(open_release(other), keep=keep).texts([6]) == ["新的一段"]


def test_an_empty_text_and_missing_passages(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release", tables([*TEXTS, ""]))
    assert open_passages(open_release(release), keep=tmp_path / "keep").texts([6, 5]) == ["", TEXTS[5]]
    with pytest.raises(InputError, match="cmedqa-corpus"):
        open_passages(open_release(release), "cmedqa-corpus", tmp_path / "keep")
