"""Random BERT models, random texts and training pairs; trainers; operations of a forward pass."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import synchronize  # must precede `releases`, because it makes tests/ importable
from releases import make_release, md5
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    BertTokenizer,
    PreTrainedModel,
    TrainerCallback,
)

from baselines.core.passages import CachedPassages, open_passages
from baselines.train import trained_models, trainers
from baselines.train.recipe import Recipe
from baselines.train.training_pairs import PairRows
from baselines.train.training_rows import TrainingBatches
from builders.store.reader import open_release

# The Chinese characters in the vocabulary of a random BERT.
_FIRST_CHARACTER = 0x4E00
_CHARACTERS = 17_995
_CHARACTER_CODES = range(_FIRST_CHARACTER, _FIRST_CHARACTER + _CHARACTERS)
_NEGATIVES = 4  # negatives per positive
_LENGTH_SIGMA = 0.6  # of the log-normal lengths of random texts


def bert(folder: Path, layers: int, width: int, labels: int | None = None) -> Path:
    """Write a BERT with random weights, a vocabulary of Chinese characters, and a classifier if ``labels`` is given."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, _CHARACTER_CODES)]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    BertTokenizer(str(folder / "vocab.txt"), model_max_length=512).save_pretrained(folder)
    torch.manual_seed(0)
    # Without a classifier, the number of labels is not used.
    sizes = {"hidden_size": width, "num_attention_heads": max(1, width // 64), "intermediate_size": 4 * width}
    config = BertConfig(vocab_size=len(words), num_labels=labels or 2, num_hidden_layers=layers, **sizes)
    model_class = BertForSequenceClassification if labels else BertModel
    model_class(config).save_pretrained(folder)
    return folder


def dual_encoder(folder: Path, layers: int, width: int) -> SentenceTransformer:
    """Return a random BERT as a dual-encoder: 384 tokens per passage, pooling by the first token, dot products."""
    module = Transformer(str(bert(folder, layers, width)), query_length=32, document_length=384)
    modules = [module, Pooling(width, "cls")]
    return SentenceTransformer(modules=modules, similarity_fn_name="dot", device="cpu")


def random_texts(lengths: Iterable[int], seed: int = 0) -> list[str]:
    """Return random texts with the given lengths in characters. Each character is a token of :func:`bert`."""
    generator = np.random.default_rng(seed)
    texts = []
    for length in lengths:
        codes = generator.integers(_CHARACTER_CODES.start, _CHARACTER_CODES.stop, length).tolist()
        texts.append("".join(map(chr, codes)))
    return texts


def random_lengths(count: int, mean: int) -> list[int]:
    """Return log-normal lengths (sigma 0.6) of at least 5, with the given mean."""
    # On the logarithmic scale, the mean of a log-normal variable is half of sigma squared above the median.
    log_median = np.log(mean) - _LENGTH_SIGMA**2 / 2
    lengths = np.random.default_rng(1).lognormal(log_median, _LENGTH_SIGMA, count)
    return np.maximum(5, lengths).astype(int).tolist()


def training_pairs(folder: Path, texts: list[str]) -> tuple[PairRows, CachedPassages]:
    """Return training pairs of random queries and passages, and the passages ``texts`` in memory-mapped files.

    The release with the passages and the memory-mapped files are written to ``folder``.
    """
    corpus = [{"_id": md5(text), "title": "", "text": text} for text in texts]
    release = make_release(folder / "release", {("corpus", "corpus"): corpus}, rows_per_shard=50_000)
    passages = open_passages(open_release(release), keep=folder / "texts")
    # Every passage is used once: in each row, the first passage is the positive.
    query_count = len(texts) // (1 + _NEGATIVES)
    passage_rows = np.random.default_rng(0).permutation(query_count * (1 + _NEGATIVES)).reshape(query_count, -1)
    queries = random_texts([10] * query_count, 1)
    pairs = PairRows(queries, np.arange(query_count), passage_rows[:, 0], passage_rows[:, 1:])
    return pairs, passages


def transformer_of(model: torch.nn.Module) -> Any:
    """Return the model's first transformer."""
    return next(module for module in model.modules() if isinstance(module, PreTrainedModel))


def forward_operations(model: torch.nn.Module, lengths: Iterable[int]) -> float:
    """Return the floating-point operations of a forward pass over texts with the given ``lengths`` in tokens.

    A token takes 2 operations per weight of a linear layer. Attention takes 4 x layers x width x tokens^2 per text.
    """
    transformer = transformer_of(model)
    weight_count = 0
    for name, module in transformer.named_modules():
        is_head = "pooler" in name or "classifier" in name  # a head reads one token of a text
        if isinstance(module, torch.nn.Linear) and not is_head:
            weight_count += module.weight.numel()
    attention_factor = 4 * transformer.config.num_hidden_layers * transformer.config.hidden_size
    return float(sum(2 * weight_count * length + attention_factor * length**2 for length in lengths))


def lengths_of(model: Any, row: dict[str, Any]) -> list[int]:
    """Return the number of tokens of each text in a training row. A cross-encoder's pair is one text."""
    if "label" in row:
        return [int(model.preprocess([(row["query"], row["passage"])])["attention_mask"].sum())]
    lengths = []
    for column, text in row.items():
        task = "query" if column == "query" else "document"
        lengths.append(int(model.preprocess([text], task=task)["attention_mask"].sum()))
    return lengths


class Clock(TrainerCallback):
    """Callback that records the start of a training and the end of each step."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.times: list[float] = []

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.times.append(time.perf_counter())

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        synchronize(self.device)
        self.times.append(time.perf_counter())


def trainer_of(recipe: Recipe, rows: Any, batches: TrainingBatches, start: Path, states: Path, device: str) -> Any:
    """Create the trainer that `train` uses.

    ``rows`` are the training rows, ``batches`` has the row numbers of each batch, ``start`` is the folder of the
    starting checkpoint, and ``states`` is the folder for the trainer's states.
    """
    torch.manual_seed(0)
    arguments = trainers.training_arguments(recipe, states, batches, device)
    if recipe.model.kind == "cross":
        cross_encoder = trained_models.cross_encoder(recipe, str(start), device)
        return trainers.cross_trainer(recipe, cross_encoder, rows, batches, arguments)
    encoder = trained_models.dual_encoder(recipe, str(start), device)
    return trainers.dual_trainer(recipe, encoder, rows, batches, arguments)
