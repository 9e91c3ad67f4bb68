"""Starting checkpoints created from the collection: a vocabulary, and static models."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import run
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


Train = Callable[..., Path]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """``train(name, *values)`` trains on questions whose answers use synonyms of the questions' words."""
    folder = tmp_path_factory.mktemp("static")
    release, negatives = make_synonyms(folder / "release", questions=300, dev=30)

    def made(name: str, *values: str) -> Path:
        words = ["train", "static", "--release", release, "--negatives", negatives, "--device", "cpu"]
        words += ["--out", folder / name, "--cache", folder / "cache"]
        run("baselines", *words, *(word for value in (*SMALL, *values) for word in ("--set", value)))
        return folder / name

    return made


@pytest.fixture(scope="module")
def model(train: Train) -> Path:
    return train("model", "train.epochs=20", "train.learning_rate=0.1")


def test_training_teaches_which_words_stand_for_each_other(train: Train, model: Path) -> None:
    untrained = train("untrained", "train.max_steps=1", "train.learning_rate=1e-9", "train.evaluations=1")
    before, after = (training_of(each)["dev"][-1]["MRR@10"] for each in (untrained, model))
    assert before < 0.2 < 0.4 < after
    tuned = train("tuned", "train.max_steps=1", "train.evaluations=0", f"model.start={model}")
    assert weights_of(tuned) != weights_of(model)


def test_the_checkpoint_is_a_plain_sentence_transformer_that_can_be_cut_to_the_trained_dimensions(model: Path) -> None:
    folder, texts = model, ["saba rabe", "sebi"]
    plain = SentenceTransformer(str(folder), device="cpu")
    assert [type(module) for module in plain] == [StaticEmbedding, Normalize]
    whole = plain.encode(texts)
    assert np.allclose(np.linalg.norm(whole, axis=1), 1, atol=1e-5)
    assert np.allclose(Encoder(open_encoder(ModelSettings(str(folder))), "document").encode(texts), whole, atol=1e-3)
    cut = SentenceTransformer(str(folder), device="cpu", truncate_dim=64)
    found = cut.similarity(cut.encode(texts), cut.encode(texts)).numpy()
    assert cut.encode(texts).shape == (2, 64) and np.allclose(np.diag(found), 1, atol=1e-5)
