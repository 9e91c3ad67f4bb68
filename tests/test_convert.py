"""``convert``: converted models compute the same as Paddle."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import Command, files
from hub_server import Hub
from official_parameters import convert, expected, official, parameters  # noqa: F401  # noqa: F401
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from baselines.hub.paddle import read_parameter
from baselines.train.models import cross_encoder, dual_encoder
from baselines.train.recipe import read_recipe

CLOSE = {"rtol": 0, "atol": 1e-5}


def check_against_paddle(folder: Path) -> None:
    """Check that the converted ``dual`` and ``cross`` give Paddle's outputs, in padded batches and one by one."""
    paddle = expected(folder)
    queries, passages = paddle["queries"], paddle["passages"]
    assert len({len(text) for text in passages}) > 1  # the batch has padding
    dual = SentenceTransformer(str(folder / "dual"), device="cpu")
    np.testing.assert_allclose(dual.encode_query(queries), paddle["query_"]["cls"], **CLOSE)
    np.testing.assert_allclose(dual.encode_document(passages), paddle["titlepara_"]["cls"], **CLOSE)
    np.testing.assert_allclose(dual.encode_document(passages, batch_size=1), paddle["titlepara_"]["cls"], **CLOSE)
    products = np.array(paddle["query_"]["cls"]) @ np.array(paddle["titlepara_"]["cls"]).T
    found = dual.similarity(dual.encode_query(queries), dual.encode_document(passages))
    np.testing.assert_allclose(found, products, rtol=1e-5, atol=1e-4)
    cross = CrossEncoder(str(folder / "cross"), device="cpu")
    pairs = list(zip(queries, passages, strict=True))
    np.testing.assert_allclose(cross.predict(pairs), paddle["cross"]["probability"], **CLOSE)
    np.testing.assert_allclose(cross.predict(pairs, batch_size=1), paddle["cross"]["probability"], **CLOSE)


def test_converted_models_give_what_paddle_gives(official: Path) -> None:
    check_against_paddle(official)


def lines(vocabulary: Path) -> list[list[str]]:
    return [line.split("\t") for line in vocabulary.read_text(encoding="utf-8").splitlines()]


def test_ernie_alone_becomes_an_encoder_with_its_pooler(parameters: Path) -> None:
    for name in ("_cls_out_w", "_cls_out_b"):
        (parameters / "cross_params" / name).unlink()
    convert(parameters, "cross_params", parameters / "ernie")
    model, tokenizer = (kind.from_pretrained(parameters / "ernie") for kind in (AutoModel, AutoTokenizer))
    paddle = expected(parameters)
    texts = [[text.replace(" ", "") for text in paddle[name]] for name in ("queries", "passages")]
    with torch.inference_mode():
        found = model(**tokenizer(*texts, padding=True, return_tensors="pt"))
    np.testing.assert_allclose(found.last_hidden_state[:, 0], paddle["cross"]["cls"], **CLOSE)
    np.testing.assert_allclose(found.pooler_output, paddle["cross"]["pooled"], **CLOSE)
    assert json.loads((parameters / "ernie" / "recipe.json").read_text())["model"] == {"kind": "encoder"}


def test_heads_of_pre_training_and_an_optimizers_numbers_are_left_out(official: Path, parameters: Path) -> None:
    folder = parameters / "dual_params"
    names = ["mask_lm_out_fc.b_0", "next_sent_fc.w_0", "pooled_fc.w_0", "query_word_embedding_moment1_0"]
    for name in [*names, "query_pos_embedding_beta1_pow_acc_0", "learning_rate_0", "@LR_DECAY_COUNTER@"]:
        (folder / name).write_bytes(b"of no use here")
    convert(parameters, "dual_params", parameters / "again")
    for path in (official / "dual").rglob("*.safetensors"):
        assert path.read_bytes() == (parameters / "again" / path.relative_to(official / "dual")).read_bytes()


def test_16_bit_parameters_are_read_as_paddle_wrote_them(official: Path) -> None:
    found = read_parameter(official / "half" / "half")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.array(expected(official)["half"], np.float32))


def test_segments_may_have_their_other_name_and_a_vocabulary_no_ids(parameters: Path) -> None:
    config, vocabulary = parameters / "ernie_config.json", parameters / "vocab.txt"
    config.write_text(config.read_text().replace('"type_vocab_size"', '"sent_type_vocab_size"'))
    vocabulary.write_text("".join(f"{token}\n" for token, _ in lines(vocabulary)), encoding="utf-8")
    for kind in ("cross", "dual"):
        convert(parameters, f"{kind}_params", parameters / kind)
    check_against_paddle(parameters)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "ernie_config.json: lacks hidden_size"),
        ({"num_attention_heads": 3}, "hidden_size: expected a multiple of num_attention_heads"),
        ({"use_task_id": True}, "of ERNIE 2.0; expected ERNIE 1.0"),
        ({"num_hidden_layers": 3}, "encoder_layer_2_ffn_fc_0.b_0"),
        ({"max_position_embeddings": 513}, "pos_embedding: has the shape [20, 4]; the configuration says [513, 4]"),
        ("[PAD]\t0\t1\n", "vocab.txt:1: expected a token, or a token and its id, separated by a tab"),
        ("[PAD]\n[CLS]\n[SEP]\n高\n", "vocab.txt: lacks [MASK], [UNK]"),
    ],
)
def test_a_file_of_another_model_is_one_error(parameters: Path, change: dict[str, Any] | str, message: str) -> None:
    if isinstance(change, str):
        (parameters / "vocab.txt").write_text(change, encoding="utf-8")
    else:
        path = parameters / "ernie_config.json"
        content = json.loads(path.read_text()) | change
        path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
    assert message in convert(parameters, "cross_params", parameters / "out", code=1).error


def ernie(parameters: Path) -> None:
    for path in (parameters / "cross_params").glob("_cls_out*"):
        path.unlink()
    convert(parameters, "cross_params", parameters / "ernie")


def test_the_official_trainings_start_from_converted_models(parameters: Path) -> None:
    ernie(parameters)
    short = ["data.query_length=8", "data.passage_length=20"]
    for start in ("ernie", "dual"):
        dual = dual_encoder(read_recipe("official-de", short), str(parameters / start), "cpu")
        assert dual.encode_document(["高 铁"]).shape == (1, 4)
    cross = cross_encoder(read_recipe("official-ce", short), str(parameters / "ernie"), "cpu")
    assert cross.predict([("高 铁", "票")]).shape == (1, 2)


def test_the_card_of_a_converted_model_says_what_it_is(hub: Hub, call: Command, official: Path) -> None:
    call("push", "--model", official / "dual", "--repo", "org/official-de", "--create")
    pushed = files(hub, "org/official-de")
    text = pushed["README.md"].decode()
    assert "from the folder `dual_params` of Paddle" in text
    assert "conversion trains nothing." in text and "trained with the recipe" not in text
    assert {"recipe.json", "router_config.json", "query_0_Transformer/model.safetensors"} <= set(pushed)
