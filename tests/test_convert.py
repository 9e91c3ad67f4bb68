"""``convert`` computes the same as Paddle, and official inputs equal the tokens of the official reader."""

import collections
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import Command, files
from hub_server import Hub
from hypothesis import given, settings
from hypothesis import strategies as st
from official_parameters import (  # noqa: F401
    Input,
    convert,
    expected,
    official,
    pair_input,
    parameters,
    passage_input,
    pieces,
    query_input,
    words,
)
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import AutoModel, AutoTokenizer, BertConfig, BertTokenizer

from baselines.hub.paddle import read_parameter
from baselines.retrieve.official_input import official_tokenizer
from baselines.train.recipe import read_recipe
from baselines.train.trained_models import cross_encoder, dual_encoder


def assert_close(actual: Any, expected_values: Any) -> None:
    """Check that outputs equal Paddle's."""
    np.testing.assert_allclose(actual, expected_values, rtol=0, atol=1e-5)


def check_against_paddle(folder: Path) -> None:
    """Check that the converted ``dual`` and ``cross`` give Paddle's outputs, in padded batches and one by one."""
    paddle = expected(folder)
    queries, passages = paddle["queries"], paddle["passages"]
    assert len({len(text) for text in passages}) > 1  # the batch has padding
    dual = SentenceTransformer(str(folder / "dual"), device="cpu")
    assert_close(dual.encode_query(queries), paddle["query_"]["cls"])
    assert_close(dual.encode_document(passages), paddle["titlepara_"]["cls"])
    assert_close(dual.encode_document(passages, batch_size=1), paddle["titlepara_"]["cls"])
    products = np.array(paddle["query_"]["cls"]) @ np.array(paddle["titlepara_"]["cls"]).T
    similarities = dual.similarity(dual.encode_query(queries), dual.encode_document(passages))
    np.testing.assert_allclose(similarities, products, rtol=1e-5, atol=1e-4)
    cross = CrossEncoder(str(folder / "cross"), device="cpu")
    pairs = list(zip(queries, passages, strict=True))
    assert_close(cross.predict(pairs), paddle["cross"]["probability"])
    assert_close(cross.predict(pairs, batch_size=1), paddle["cross"]["probability"])


def test_converted_models_give_what_paddle_gives(official: Path) -> None:
    check_against_paddle(official)


def test_ernie_alone_becomes_an_encoder_from_which_the_official_trainings_start(parameters: Path) -> None:
    for name in ("_cls_out_w", "_cls_out_b"):
        (parameters / "cross_params" / name).unlink()
    convert(parameters, "cross_params", parameters / "ernie")
    model = AutoModel.from_pretrained(parameters / "ernie")
    tokenizer = AutoTokenizer.from_pretrained(parameters / "ernie")
    paddle = expected(parameters)
    # BERT's tokenizer splits at spaces, which the official reader removes.
    queries = [text.replace(" ", "") for text in paddle["queries"]]
    passages = [text.replace(" ", "") for text in paddle["passages"]]
    inputs = tokenizer(queries, passages, padding=True, return_tensors="pt")
    with torch.inference_mode():
        outputs = model(**inputs)
    assert_close(outputs.last_hidden_state[:, 0], paddle["cross"]["cls"])
    assert_close(outputs.pooler_output, paddle["cross"]["pooled"])
    assert json.loads((parameters / "ernie" / "recipe.json").read_text())["model"] == {"kind": "encoder"}
    short = ["data.query_length=8", "data.passage_length=20"]
    for start in ("ernie", "dual"):
        dual = dual_encoder(read_recipe("official-de", short), str(parameters / start), "cpu")
        assert dual.encode_document(["高 铁"]).shape == (1, 4)
    cross = cross_encoder(read_recipe("official-ce", short), str(parameters / "ernie"), "cpu")
    assert cross.predict([("高 铁", "票")]).shape == (1, 2)


def test_heads_of_pre_training_and_an_optimizers_numbers_are_left_out(official: Path, parameters: Path) -> None:
    folder = parameters / "dual_params"
    names_of_heads = ["mask_lm_out_fc.b_0", "next_sent_fc.w_0", "pooled_fc.w_0"]
    names_of_optimizer = ["query_word_embedding_moment1_0", "query_pos_embedding_beta1_pow_acc_0", "learning_rate_0"]
    for name in [*names_of_heads, *names_of_optimizer, "@LR_DECAY_COUNTER@"]:
        (folder / name).write_bytes(b"of no use here")
    convert(parameters, "dual_params", parameters / "again")
    for weights in (official / "dual").rglob("*.safetensors"):
        weights_again = parameters / "again" / weights.relative_to(official / "dual")
        assert weights.read_bytes() == weights_again.read_bytes()


def test_16_bit_parameters_are_read_as_paddle_wrote_them(official: Path) -> None:
    parameter = read_parameter(official / "half" / "half")
    assert parameter.dtype == np.float32
    np.testing.assert_array_equal(parameter, np.array(expected(official)["half"], np.float32))


def test_segments_may_have_their_other_name_and_a_vocabulary_no_ids(parameters: Path) -> None:
    config_path = parameters / "ernie_config.json"
    config_path.write_text(config_path.read_text().replace('"type_vocab_size"', '"sent_type_vocab_size"'))
    vocabulary_path = parameters / "vocab.txt"
    tokens_without_ids = re.sub(r"\t.*", "", vocabulary_path.read_text(encoding="utf-8"))
    vocabulary_path.write_text(tokens_without_ids, encoding="utf-8")
    convert(parameters, "cross_params", parameters / "cross")
    convert(parameters, "dual_params", parameters / "dual")
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


def test_the_card_of_a_converted_model_says_what_it_is(hub: Hub, call: Command, official: Path) -> None:
    call("push", "--model", official / "dual", "--repo", "org/official-de", "--create")
    pushed = files(hub, "org/official-de")
    text = pushed["README.md"].decode()
    assert "from the folder `dual_params` of Paddle" in text
    assert "conversion trains nothing." in text and "trained with the recipe" not in text
    assert {"recipe.json", "router_config.json", "query_0_Transformer/model.safetensors"} <= set(pushed)


PARTS = ["##ing", "##tion", "the", "un", "##able", "ab", "abc", "##bc", "sep", "cls", "##19", "20", "##σ", "δ", "##ς"]
CHARACTERS = "的中国年节假日一在有abcdeipxyz0123456789,.[]!?，。、《》%-éä"
INNER_CHARACTERS = [f"##{character}" for character in "abcdexyz0123"]
VOCABULARY = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", *PARTS, *CHARACTERS, *INNER_CHARACTERS, "[UNK]"]
# Characters of web pages, up to Unicode 8, because the library's tables have no later ones.
BLOCKS = [(0, 0x24F), (0x370, 0x52F), (0xE00, 0xE7F), (0x1E00, 0x206F), (0x2100, 0x22FF), (0x3000, 0x30FF)]
BLOCKS += [(0x3400, 0x3410), (0x4E00, 0x9FA5), (0xAC00, 0xAC80), (0xE000, 0xE010), (0xFF00, 0xFFFD)]
BLOCKS += [(0x1F300, 0x1F64F), (0x20000, 0x20010), (0x2B740, 0x2B930), (0x2F800, 0x2F810)]
BLOCK_CHARACTERS = [
    st.characters(min_codepoint=low, max_codepoint=high, exclude_categories=("Cs", "Cn")) for low, high in BLOCKS
]
# Σ is tested separately.
ANY = st.one_of(*BLOCK_CHARACTERS).filter(lambda character: character != "Σ")
USUAL = st.sampled_from(
    [*CHARACTERS, *" \t\n\u3000\xa0\u200b\x00\ufeffÀİß", "unable", "[SEP]", "[UNK]", "##ing", "x" * 101]
)
TEXTS = st.lists(st.one_of(USUAL, ANY), max_size=60).map("".join)


def save_tokenizer(folder: Path, vocabulary: list[str], input_type: Any, length: int) -> Any:
    """Return the official tokenizer of queries, passages or pairs, saved and loaded by transformers."""
    model_folder = folder / input_type
    bert_tokenizer = BertTokenizer({token: number for number, token in enumerate(vocabulary)})
    official_tokenizer(bert_tokenizer, input_type, length).save_pretrained(model_folder)
    # The folder is a BERT's, but the library must not load BERT's tokenizer instead.
    BertConfig().save_pretrained(model_folder)
    return AutoTokenizer.from_pretrained(model_folder)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Tokenizers of short inputs."""
    folder = tmp_path_factory.mktemp("tokenizers")
    return {
        "query": save_tokenizer(folder, VOCABULARY, "query", 8),
        "passage": save_tokenizer(folder, VOCABULARY, "passage", 16),
        "pair": save_tokenizer(folder, VOCABULARY, "pair", 15),
    }


def tokenize(tokenizer: Any, *texts: str) -> Input:
    """Return the tokens and types of a text or a pair."""
    encoding = tokenizer(*texts, truncation=True)
    return tokenizer.convert_ids_to_tokens(encoding["input_ids"]), encoding["token_type_ids"]


@settings(max_examples=200)
@given(text=TEXTS, passage=TEXTS)
def test_any_text_becomes_what_the_official_reader_makes(tokenizers: dict[str, Any], text: str, passage: str) -> None:
    vocabulary = set(VOCABULARY)
    assert tokenize(tokenizers["query"], text) == query_input(text, vocabulary, 8)
    assert tokenize(tokenizers["passage"], text) == passage_input(text, vocabulary, 16)
    if pieces(passage, vocabulary):  # there are no empty passages
        assert tokenize(tokenizers["pair"], text, passage) == pair_input(text, passage, vocabulary, 15)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("中 国 un able", ["中", "国", "un", "##able"]),  # spaces are removed, not word ends
        ("ab\u3000ab\xa0ab\tab\nab", ["ab"] * 5),  # other white space becomes one space
        ("a\x00b\u200bc\ufeff\ufffd", ["abc"]),  # control characters and U+FFFD are removed
        ("[SEP]", ["[", "sep", "]"]),  # the name of a special token in a text is plain text
        ("x" * 101, ["[UNK]"]),
    ],
)
def test_what_becomes_of_some_texts(tmp_path: Path, text: str, expected: list[str]) -> None:
    tokens, _ = tokenize(save_tokenizer(tmp_path, VOCABULARY, "passage", 384), text)
    assert tokens == ["[CLS]", "[SEP]", *expected, "[SEP]"]
    assert pieces(text, set(VOCABULARY)) == expected  # the reference reader has the same behaviour


def test_a_pair_of_two_long_texts_leaves_the_odd_piece_to_the_passage(tmp_path: Path) -> None:
    # The only known difference: the official reader gives this length to the query.
    tokens, _ = tokenize(save_tokenizer(tmp_path, VOCABULARY, "pair", 384), "中" * 200, "国" * 300)
    assert (tokens.count("中"), tokens.count("国")) == (190, 191)
    official_tokens, _ = pair_input("中" * 200, "国" * 300, set(VOCABULARY))
    assert (official_tokens.count("中"), official_tokens.count("国")) == (191, 190)


def test_real_queries_and_passages_become_the_official_inputs(shared_data: Path, tmp_path: Path) -> None:
    lines = (shared_data / "dureader-retrieval-samples/cross.train.tsv").read_text("utf-8").split("\n")
    pairs = []
    for line in lines:
        if line:
            query, _, passage, *_ = line.split("\t")
            pairs.append((query, passage))
    assert len(pairs) > 50
    assert any(len(passage) > 400 for _, passage in pairs)
    vocabulary = make_vocabulary(pairs)
    query_tokenizer = save_tokenizer(tmp_path, vocabulary, "query", 32)
    passage_tokenizer = save_tokenizer(tmp_path, vocabulary, "passage", 384)
    pair_tokenizer = save_tokenizer(tmp_path, vocabulary, "pair", 384)
    for query, passage in pairs:
        assert tokenize(query_tokenizer, query) == query_input(query, set(vocabulary))
        assert tokenize(passage_tokenizer, passage) == passage_input(passage, set(vocabulary))
        assert tokenize(pair_tokenizer, query, passage) == pair_input(query, passage, set(vocabulary))


def make_vocabulary(pairs: list[tuple[str, str]]) -> list[str]:
    """Return a vocabulary of the words that occur twice or more, and of all ASCII characters."""
    word_counts = collections.Counter[str]()
    for query, passage in pairs:
        word_counts.update(words(query))
        word_counts.update(words(passage))
    # The other words become pieces, or [UNK].
    common_words = [word for word, count in word_counts.items() if count > 1]
    letters = sorted(letter for letter in set("".join(word_counts)) if letter.isascii())
    vocabulary = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"]
    vocabulary += dict.fromkeys(common_words + letters)
    vocabulary += [f"##{letter}" for letter in letters]
    vocabulary += ["##er", "##ing"]
    return vocabulary


def test_transformers_4_finds_the_class_of_a_saved_tokenizer(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, VOCABULARY, "query", 32)
    config = json.loads((tmp_path / "query" / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"  # TokenizersBackend, its other name, is unknown there
