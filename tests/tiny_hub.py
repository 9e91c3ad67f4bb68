"""Tiny random versions of the models that the paper's recipes start from, with the files of their repositories.

ERNIE 1.0 is an ErnieModel with relu, two types and 513 positions, in the files ``pytorch_model.bin`` and ``vocab.txt``.
Multilingual BERT is cased, in safetensors.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from hub_server import Blob, Commit, Hub
from transformers import BertConfig, BertForPreTraining, BertTokenizer, ErnieConfig, ErnieModel, PreTrainedModel

ERNIE, MBERT = "nghuyong/ernie-1.0-base-zh", "google-bert/bert-base-multilingual-cased"
_TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def write_ernie(folder: Path, texts: Iterable[str], *, safetensors: bool = False, seed: int = 0) -> Path:
    """Write ERNIE 1.0. ``safetensors``: also write the tokenizer files of other repositories."""
    words = _write_words(folder, {character for text in texts for character in text.lower()})
    torch.manual_seed(seed)
    config = ErnieConfig(
        vocab_size=words + 36, hidden_act="relu", type_vocab_size=2, max_position_embeddings=513, use_task_id=False
    )
    config.update(_TINY)
    _write(ErnieModel(config), folder, safetensors)
    if safetensors:
        BertTokenizer(str(folder / "vocab.txt"), model_max_length=513).save_pretrained(folder)
    return folder


def write_mbert(folder: Path, texts: Iterable[str], *, seed: int = 0) -> Path:
    words = _write_words(folder, {character for text in texts for character in text})
    torch.manual_seed(seed)
    config = BertConfig(vocab_size=words, directionality="bidi")
    config.update(_TINY)
    _write(BertForPreTraining(config), folder, safetensors=True)
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false, "model_max_length": 512}')
    return folder


def _write_words(folder: Path, characters: set[str]) -> int:
    folder.mkdir(parents=True)
    known = sorted(character for character in characters if not character.isspace())
    words = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", *known, *(f"##{each}" for each in known)]
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
    files = {path.name: Blob(path.read_bytes(), path.suffix in (".bin", ".safetensors")) for path in folder.iterdir()}
    return repo.add("a model", files)


def publish_all(hub: Hub, folder: Path, texts: Iterable[str]) -> dict[str, Any]:
    texts = list(texts)
    found = {ERNIE: write_ernie(folder / "ernie", texts), MBERT: write_mbert(folder / "mbert", texts)}
    for name, path in found.items():
        publish(hub, name, path)
    return found
