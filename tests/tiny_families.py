"""Tiny random models of the architectures in models.toml, and of the models that the paper's recipes start from.

Every character or byte is a token, so a model's tokens give back the encoded string with its special tokens. The
tokenizers of BERT and XLM-R add special tokens. Qwen's add none, because versions of transformers differ in this.

ERNIE 1.0 is an ErnieModel with relu, two types and 513 positions, in the files ``pytorch_model.bin`` and ``vocab.txt``.
Multilingual BERT is cased, in safetensors.
"""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hub_server import Blob, Commit, Hub
from releases import QUESTIONS, TEXTS
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForPreTraining, BertTokenizer, ErnieConfig, ErnieModel, PreTrainedModel

from baselines.retrieve.family_table import read_families

_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_BERT = ("BertConfig", {"max_position_embeddings": 512}, ("[CLS]", "[SEP]"))
_XLMR = ("XLMRobertaConfig", {"max_position_embeddings": 514}, ("<s>", "</s>"))
_QWEN = {"num_key_value_heads": 2, "max_position_embeddings": 8192}
# By the name on the hub: the configuration, its settings, the special tokens around a text.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], tuple[str, str] | None]] = {
    "BAAI/bge-small-zh-v1.5": _BERT,
    "TencentBAC/Conan-embedding-v1": _BERT,
    "intfloat/multilingual-e5-large": _XLMR,
    "alibaba-nlp-community/gte-multilingual-base": ("GteConfig", {"max_position_embeddings": 512}, ("<s>", "</s>")),
    "Alibaba-NLP/gte-Qwen2-1.5B-instruct": ("Qwen2Config", _QWEN, None),
    "Qwen/Qwen3-Embedding-0.6B": ("Qwen3Config", {**_QWEN, "head_dim": 16}, None),
}
END = "<|endoftext|>"
_SPECIAL = ["<pad>", "<unk>", "<s>", "</s>", "[CLS]", "[SEP]"]


def characters() -> list[str]:
    """Return the characters of all texts, questions and prompts."""
    all_characters = set("问找查文")
    for text in itertools.chain(TEXTS, *QUESTIONS.values()):
        all_characters.update(text)
    for family in read_families().families.values():
        for prompt in (family.query_prompt, family.passage_prompt, *family.prompts.values()):
            all_characters.update(prompt or "")
    return sorted(all_characters)


def write_tokenizer(folder: Path, around: tuple[str, str]) -> int:
    """Write a BERT or XLM-R tokenizer with one token per character, and return the vocabulary size."""
    token_ids = {token: number for number, token in enumerate(_SPECIAL + characters())}
    tokenizer = Tokenizer(models.WordLevel(token_ids, unk_token="<unk>"))
    tokenizer.add_special_tokens(_SPECIAL)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    first, last = around
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B {last}",
        special_tokens=[(first, token_ids[first]), (last, token_ids[last])],
    )
    fast_tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>"
    )
    fast_tokenizer.save_pretrained(folder)
    return len(token_ids)


def write_qwen_tokenizer(folder: Path, eos: str) -> int:
    """Write a Qwen tokenizer with one token per byte and no special tokens, and return the vocabulary size."""
    tokens = [END, "<|im_end|>"]
    tokens += sorted(pre_tokenizers.ByteLevel.alphabet())
    token_ids = {token: number for number, token in enumerate(tokens)}
    transformers.Qwen2Tokenizer(vocab=token_ids, merges=[], eos_token=eos).save_pretrained(folder)
    return len(token_ids)


def as_text(tokenizer: Any, ids: list[int]) -> str:
    """Return the text of tokens, with the special tokens."""
    tokens = tokenizer.convert_ids_to_tokens(ids)
    decoder = tokenizer.backend_tokenizer.decoder
    return "".join(tokens) if decoder is None else str(decoder.decode(tokens))


def write_encoder(folder: Path, hub_name: str, seed: int = 0) -> Path:
    """Write a plain encoder without files of sentence-transformers to ``folder``/NAME."""
    config_class, settings, around = ARCHITECTURES[hub_name]
    if not hasattr(transformers, config_class):
        pytest.skip(f"transformers {transformers.__version__} has no {config_class}")
    folder = folder / hub_name.rpartition("/")[2]
    folder.mkdir(parents=True)
    # In Qwen3-Embedding, the last token of a text is not the tokenizer's eos_token.
    eos = "<|im_end|>" if "Qwen3" in hub_name else END
    token_count = write_tokenizer(folder, around) if around else write_qwen_tokenizer(folder, eos)
    torch.manual_seed(seed)
    config_settings = {"vocab_size": token_count, "pad_token_id": 0, "initializer_range": 0.2} | _SIZES | settings
    config = getattr(transformers, config_class)(**config_settings)
    transformers.AutoModel.from_config(config).eval().save_pretrained(folder)
    return folder


def with_modules(folder: Path, pooling: str, *, prompts: dict[str, str] | None = None, normalize: bool = False) -> Path:
    """Convert a plain encoder to a model of sentence-transformers, in the same folder."""
    transformer = Transformer(str(folder))
    modules = [transformer, Pooling(transformer.get_embedding_dimension(), pooling)]
    if normalize:
        modules.append(Normalize())
    SentenceTransformer(modules=modules, prompts=prompts, device="cpu").save_pretrained(str(folder))
    return folder


ERNIE = "nghuyong/ernie-1.0-base-zh"
MBERT = "google-bert/bert-base-multilingual-cased"
_TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def write_ernie(folder: Path, texts: Iterable[str], *, safetensors: bool = False, seed: int = 0) -> Path:
    """Write ERNIE 1.0. ``safetensors``: also write the tokenizer files of other repositories."""
    vocabulary_size = _write_words(folder, set("".join(texts).lower()))
    torch.manual_seed(seed)
    # The released model has more rows of embeddings than words, too.
    config = ErnieConfig(
        vocab_size=vocabulary_size + 36,
        hidden_act="relu",
        type_vocab_size=2,
        max_position_embeddings=513,
        use_task_id=False,
    )
    config.update(_TINY)
    _write(ErnieModel(config), folder, safetensors)
    if safetensors:
        BertTokenizer(str(folder / "vocab.txt"), model_max_length=513).save_pretrained(folder)
    return folder


def write_mbert(folder: Path, texts: Iterable[str], *, seed: int = 0) -> Path:
    """Write multilingual BERT, which distinguishes upper and lower case."""
    vocabulary_size = _write_words(folder, set("".join(texts)))
    torch.manual_seed(seed)
    config = BertConfig(vocab_size=vocabulary_size, directionality="bidi")
    config.update(_TINY)
    _write(BertForPreTraining(config), folder, safetensors=True)
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false, "model_max_length": 512}')
    return folder


def _write_words(folder: Path, characters: set[str]) -> int:
    """Write the vocabulary of a BERT to a new folder, and return the number of its words."""
    folder.mkdir(parents=True)
    visible_characters = sorted(character for character in characters if not character.isspace())
    words = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"]
    words += visible_characters
    words += [f"##{character}" for character in visible_characters]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    return len(words)


def _write(model: PreTrainedModel, folder: Path, safetensors: bool) -> None:
    model.eval().save_pretrained(folder)
    if not safetensors:  # the library no longer writes this format
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")


def publish(hub: Hub, name: str, folder: Path) -> Commit:
    """Commit the files of ``folder`` to a repository, which is created if missing."""
    repo = hub.repos.get(("model", name)) or hub.create(name, "model")
    files = {}
    for path in folder.rglob("*"):
        if path.is_file():
            file_name = path.relative_to(folder).as_posix()
            files[file_name] = Blob(path.read_bytes(), lfs=path.suffix in (".bin", ".safetensors"))
    return repo.add("a model", files)


def publish_all(hub: Hub, folder: Path, texts: Iterable[str]) -> dict[str, Any]:
    """Publish ERNIE 1.0 and multilingual BERT, and return their folders by their names on the hub."""
    texts = list(texts)
    model_folders = {ERNIE: write_ernie(folder / "ernie", texts), MBERT: write_mbert(folder / "mbert", texts)}
    for name, model_folder in model_folders.items():
        publish(hub, name, model_folder)
    return model_folders
