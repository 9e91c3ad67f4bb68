"""Passages by id and by row."""

import pickle
from pathlib import Path

import pytest
from releases import TEXTS, make_release, md5

from baselines.retrieve.passages import open_passages
from builders.store.reader import open_release


def test_texts_and_ids_are_those_of_the_release(tmp_path: Path) -> None:
    passages = open_passages(open_release(make_release(tmp_path / "release")), keep=tmp_path / "keep")
    assert len(passages) == len(TEXTS)
    assert passages.texts([4, 0, 4]) == [TEXTS[4], TEXTS[0], TEXTS[4]]
    assert passages.ids(range(len(TEXTS))) == [md5(text) for text in TEXTS]
    assert passages.rows([md5(TEXTS[3]), "none", md5(TEXTS[1])]).tolist() == [3, -1, 1]
    again = pickle.loads(pickle.dumps(passages))
    assert again.texts([2]) == [TEXTS[2]]
    with pytest.raises(IndexError):
        passages.texts([-1])
