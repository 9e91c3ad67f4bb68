"""Starts that a training makes of the collection: a vocabulary, and static models, trained and used as any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import Done, run
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from synonyms import make_synonyms
from training_world import training_of, weights_of

from baselines.retrieve.encoder import Encoder
from baselines.retrieve.models import open_encoder
from baselines.retrieve.settings import ModelSettings
from baselines.train.models import Counts, words_tokenizer

SMALL = ["words.dimensions=128", "train.shortest=64", "train.batch=64", "train.saves=0", "data.dev_passages=50"]


class _Texts(list[str]):
    def texts(self, rows: list[int]) -> list[str]:
        return [self[row] for row in rows]


@pytest.fixture(scope="module")
def counts() -> Counts:
    texts = ["北京大学在北京。", "上海有ABC公司,2016年成立", "北京有公司", "他在上海生活"]
    return Counts(_Texts(texts), 10)  # type: ignore[arg-type]


def test_a_text_is_cut_into_words_and_what_is_no_word_into_characters(counts: Counts) -> None:
    tokenizer, words = words_tokenizer(counts, 100)
    assert words == [tokenizer.id_to_token(number) for number in range(len(words))]
    assert tokenizer.encode("ＡＢＣ公司, 2016年:北京大学").tokens == ["abc", "公司", "2016", "年", "北京大学"]
    assert tokenizer.encode("大海有龙").tokens == ["大", "海", "有", "龙"]
    assert tokenizer.encode("大海有龙").ids[-1] == 0  # 龙 is in no passage
    # A smaller vocabulary has the most frequent words and all characters.
    _, words = words_tokenizer(counts, 3)
    assert set(words[1:4]) <= {"北京", "上海", "公司", "在", "有"}
    assert set("北京大学上海公司他在生活有年成立abc2016") <= set(words)


class World:
    """A release in which a question's answer has the synonyms of its words, and others have the words themselves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.release, self.negatives = make_synonyms(folder / "release", questions=300, dev=30)

    def train(self, out: str, *values: str, code: int | None = 0) -> Done:
        words = ["train", "static", "--release", self.release, "--negatives", self.negatives, "--device", "cpu"]
        words += ["--out", self.folder / out, "--cache", self.folder / "cache"]
        return run("baselines", *words, *(word for value in (*SMALL, *values) for word in ("--set", value)), code=code)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("static"))
    world.train("model", "train.epochs=20", "train.learning_rate=0.1")
    return world


def test_training_teaches_which_words_stand_for_each_other(world: World) -> None:
    world.train("untrained", "train.max_steps=1", "train.learning_rate=1e-9", "train.evaluations=1")
    before, after = (training_of(world.folder / name)["dev"][-1]["MRR@10"] for name in ("untrained", "model"))
    assert before < 0.2 < 0.4 < after
    # The trained model is a start like any other.
    world.train("tuned", "train.max_steps=1", "train.evaluations=0", f"model.start={world.folder / 'model'}")
    assert weights_of(world.folder / "tuned") != weights_of(world.folder / "model")


def test_the_checkpoint_is_a_plain_sentence_transformer_that_can_be_cut_to_the_trained_dimensions(world: World) -> None:
    folder, texts = world.folder / "model", ["saba rabe", "sebi"]
    plain = SentenceTransformer(str(folder), device="cpu")
    assert [type(module) for module in plain] == [StaticEmbedding, Normalize]
    assert "texts are read whole" in (folder / "README.md").read_text(encoding="utf-8")
    whole = plain.encode(texts)
    assert np.allclose(np.linalg.norm(whole, axis=1), 1, atol=1e-5)
    assert np.allclose(Encoder(open_encoder(ModelSettings(str(folder))), "document").encode(texts), whole, atol=1e-3)
    cut = SentenceTransformer(str(folder), device="cpu", truncate_dim=64)
    found = cut.similarity(cut.encode(texts), cut.encode(texts)).numpy()
    assert cut.encode(texts).shape == (2, 64) and np.allclose(np.diag(found), 1, atol=1e-5)
