"""Measurements for the part `speed` of gpu.py: a GPU's peak rates, and the speed of search, encoding and training."""

import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import matrix_rate, timed
from gpu_common import Rows, SavedRows, Setting, Step, passages_of, unit_vectors, write_vectors
from models import Clock, bert, dual_encoder, forward_operations, lengths_of, random_texts, trainer_of, transformer_of
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer

from baselines.core.settings import ModelSettings
from baselines.retrieve import exact_search
from baselines.retrieve.devices import DTYPES, compile_transformers
from baselines.retrieve.encoder import Prefetcher, TextEncoder
from baselines.retrieve.hub_models import quiet_libraries
from baselines.retrieve.models import open_encoder
from baselines.retrieve.torch_engine import TorchEngine
from baselines.train import trainers
from baselines.train.recipe import Recipe, read_recipe
from baselines.train.training_rows import TrainingBatches

SHAPES = ((768, 768), (768, 3072), (3072, 768), (384, 384), (384, 1536), (1536, 384))  # layers: BERT-base, e5-small
GIB = 2**30
_TIMED_LAYERS = 5  # passes through a linear layer in one measurement
_TIMED_BATCHES = 4  # passes of a batch through a model in one measurement
_TOKENS = 380  # of a random text, with [CLS] and [SEP]
_SPECIAL_TOKENS = 2
_COUNTED_ROWS = 64  # training rows whose tokens are counted
_LONGEST_TRAINING = 20  # seconds; no training begins if less time is left


def memory_formula(weights: int, layers: int, width: int, tokens: int, bytes_a_number: int) -> float:
    """Return the approximate memory of a training step with ``tokens`` tokens at once, in bytes.

    Weights, gradients and Adam's two moments take 16 bytes per weight. The backward pass needs about 23 numbers per
    token, layer and unit of width, which take 46 bytes in bf16. Attention scores are not included, because SDPA does
    not store them. On an H100 in bf16, two towers of BERT-base take 7.9, 15.6 and 28.0 GiB at 12,288, 32,768 and 65,536
    tokens. The formula is within 4 % of these values. For e5-small, the formula is 17 to 20 % too low: the model takes
    8.8, 16.6 and 32.1 GiB at 32,768, 65,536 and 131,072 tokens.
    """
    return 16.0 * weights + layers * width * tokens * 23 * bytes_a_number


def random_bert(setting: Setting, folder: Path, labels: int | None = None) -> Path:
    """Write a BERT with random weights: of base size, or tiny if ``setting.small``.

    With ``labels``, the BERT has a classifier with this number of outputs.
    """
    return bert(folder, setting.of(12, 2), setting.of(768, 32), labels)


def product_rate(setting: Setting, dtype: str) -> float:
    """Measure the operations per second of a large matrix product."""
    return matrix_rate(setting.device, dtype, setting.of(8192, 64))


def host_bandwidth(setting: Setting) -> float:
    """Measure the bytes per second from pinned host memory to the GPU."""
    host_tensor = torch.ones(1 << 29, dtype=torch.uint8).pin_memory()
    seconds, _ = timed(lambda: host_tensor.to(setting.device, non_blocking=True), setting.device, 5, 2)
    return len(host_tensor) / seconds


def ceilings(setting: Setting) -> Rows:
    """Measure the peak rates of large products, of products with BERT's shapes, and of copies."""
    rows = SavedRows()
    size = setting.of(8192, 64)
    for dtype in ("bf16", "fp16", "fp32"):
        rate = round(product_rate(setting, dtype) / 1e12, 1)
        rows.append({"ceiling": f"{dtype} product, {size} x {size} x {size}", "TFLOP/s": rate})
    token_count = setting.of(98_304, 64)
    tensor_options = {"device": setting.device, "dtype": DTYPES["fp16" if setting.cuda else "fp32"]}
    for inner, outer in SHAPES:
        layer = torch.nn.Linear(inner, outer, **tensor_options)
        inputs = torch.randn(token_count, inner, **tensor_options)

        def apply_layer(layer: torch.nn.Linear = layer, inputs: torch.Tensor = inputs) -> Any:
            return [layer(inputs) for _ in range(_TIMED_LAYERS)]

        with torch.inference_mode():
            seconds, _ = timed(apply_layer, setting.device, 3, 1)
        operations = _TIMED_LAYERS * 2 * token_count * inner * outer
        rate = round(operations / seconds / 1e12, 1)
        rows.append({"ceiling": f"linear layer {inner} to {outer} of {token_count:,} tokens", "TFLOP/s": rate})
    byte_count = setting.of(1 << 31, 1 << 20)
    device_tensor = torch.ones(byte_count, dtype=torch.uint8, device=setting.device)
    seconds, _ = timed(device_tensor.clone, setting.device, 5, 2)
    name = f"copy of {byte_count >> 20} MiB, bytes read and written"
    rows.append({"ceiling": name, "GB/s": round(2 * byte_count / seconds / 1e9, 1)})
    if setting.cuda:
        rows.append({"ceiling": "pinned host memory to the GPU", "GB/s": round(host_bandwidth(setting) / 1e9, 1)})
    return rows


def searching(setting: Setting) -> Rows:
    """Time 2,000 queries against a million passages, and compare the time with the GPU's peak rates.

    The candidates are the best 100 passages of a query by scores in 32 bits. The whole search also scores the
    candidates in 64 bits, and keeps the best 50.
    """
    passage_count = setting.of(1_000_000, 5_000)
    width = setting.of(768, 32)
    query_count = setting.of(2_000, 20)
    checked_count = setting.of(100, 5)  # queries whose hits are compared with exact scores
    queries = unit_vectors(0, query_count, width)

    def find_candidates() -> Any:
        return exact_search.find_candidates(vectors, [TorchEngine(queries, 100, setting.device)], 100)

    def search() -> Any:
        engines = [TorchEngine(queries, 100, setting.device)]
        return list(exact_search.search_unsorted(vectors, queries, engines, 50, 100, lambda: np.arange(passage_count)))

    def read_all() -> Any:
        return [torch.from_numpy(np.array(block)) for _, block in vectors.blocks(1 << 16)]

    with tempfile.TemporaryDirectory(dir=setting.work) as name:
        vectors = write_vectors(Path(name), passage_count, width, setting.device)
        candidate_seconds, _ = timed(find_candidates, setting.device, 3, 2)
        search_seconds, hits = timed(search, setting.device, 2, 1)
        read_seconds, _ = timed(read_all, setting.device, 2, 1)
        exact_scores = queries[:checked_count].astype(np.float32) @ vectors.all().astype(np.float32).T

    # A hit is right if its exact score is at least the score of rank 50, within rounding errors.
    lowest_scores = -np.partition(-exact_scores, 49, axis=1)[:, 49]
    is_right = True
    for number in range(checked_count):
        hit_rows, _ = hits[number]
        is_right = is_right and bool(exact_scores[number, hit_rows].min() > lowest_scores[number] - 1e-5)

    rows = SavedRows()
    for name, seconds in (
        ("candidates (TorchEngine)", candidate_seconds),
        ("whole, scores in 64 bits", search_seconds),
    ):
        rows.append({"search": name, "s": round(seconds, 4), "queries/s": round(query_count / seconds)})
    rows.append({"search": "reading all embeddings once, one thread", "s": round(read_seconds, 4)})
    rows.append({"search": f"same top 50 as on the CPU within 1e-5, {checked_count} queries", "s": str(is_right)})
    # The bounds: each number of an embedding takes 2 bytes, and 2 operations (multiply and add) with each query.
    copy_bound = 0.0
    if setting.cuda:
        copy_bound = 2.0 * passage_count * width / host_bandwidth(setting)
        rows.append({"search": "lower bound: copy all embeddings from host memory", "s": round(copy_bound, 4)})
    for dtype in ("fp16", "fp32"):
        product_bound = 2.0 * query_count * passage_count * width / product_rate(setting, dtype)
        rows.append(
            {
                "search": f"lower bound: operations in {dtype}",
                "s": round(product_bound, 4),
                "larger bound / candidates": round(max(product_bound, copy_bound) / candidate_seconds, 3),
            }
        )
    return rows


def encoding(setting: Setting) -> Rows:
    """Measure passages per second of a BERT-base at 380 tokens, and of e5-small on real passages."""
    rows = SavedRows()
    dtype = "fp16" if setting.cuda else "fp32"
    rate = product_rate(setting, dtype)
    batch_tokens = setting.of(98_304, 2_048)

    def measure(name: str, model: SentenceTransformer, lengths: list[int], function: Callable[[], Any]) -> None:
        """Add the speed of a function that encodes texts with these lengths in tokens."""
        seconds, _ = timed(function, setting.device, setting.of(2, 1), 1)
        rows.append(
            {
                "model": name,
                "texts": len(lengths),
                "passages/s": round(len(lengths) / seconds),
                "share of the matrix rate": round(forward_operations(model, lengths) / seconds / rate, 3),
            }
        )

    def encode_by_library(model: SentenceTransformer) -> Any:
        return model.encode_document(texts, batch_size=256, show_progress_bar=False)

    # BERT-base, and texts that fill its 380 tokens.
    with tempfile.TemporaryDirectory() as name:
        model = dual_encoder(Path(name), setting.of(12, 2), setting.of(768, 32))
        unpadded_model = None
        if setting.cuda and find_spec("flash_attn"):  # sentence-transformers then concatenates the texts of a batch
            model_options = {"attn_implementation": "flash_attention_2", "dtype": DTYPES[dtype]}
            module = Transformer(name, model_kwargs=model_options, document_length=384)
            unpadded_model = SentenceTransformer(modules=[module, model[1]], device=setting.device).eval()
    model = model.to(setting.device, DTYPES[dtype]).eval()
    texts = random_texts([_TOKENS - _SPECIAL_TOKENS] * setting.of(4_096, 16))
    lengths = [_TOKENS] * len(texts)

    # One batch that is already tokenized, so that only the model is measured.
    batch_texts = texts[: batch_tokens // 384]
    features = Prefetcher(model, {}, 0, pin=False).tokens(batch_texts)
    batch = {key: value.to(setting.device) for key, value in features.items() if torch.is_tensor(value)}

    def run_model() -> Any:
        with torch.inference_mode():
            return [model(dict(batch), task="document")["sentence_embedding"] for _ in range(_TIMED_BATCHES)]

    batch_lengths = [_TOKENS] * len(batch_texts) * _TIMED_BATCHES
    measure("BERT-base, already tokenized", model, batch_lengths, run_model)
    measure("BERT-base, sentence-transformers' encode", model, lengths, lambda: encode_by_library(model))
    if unpadded_model:
        name = "BERT-base, sentence-transformers' encode, flash_attn, unpadded"
        measure(name, unpadded_model, lengths, lambda: encode_by_library(unpadded_model))
    for token_budget in (batch_tokens // 3, batch_tokens):
        encoder = TextEncoder(model, "document", token_budget)
        name = f"BERT-base, encode, batches of {token_budget:,} tokens"
        measure(name, model, lengths, lambda encoder=encoder: encoder.encode(texts))

    # e5-small on real passages, whose lengths differ.
    real_texts = passages_of(setting, setting.of(16_384, 16))
    small_model = open_encoder(ModelSettings(str(setting.model)), setting.device, dtype)
    real_lengths = [min(512, len(token_ids)) for token_ids in small_model.tokenizer(real_texts)["input_ids"]]
    small_encoder = TextEncoder(small_model, "document", batch_tokens)
    name = f"e5-small, encode, {statistics.mean(real_lengths):.0f} tokens"
    measure(name, small_model, real_lengths, lambda: small_encoder.encode(real_texts))

    # Other implementations of BERT-base. Compilation is last, because it changes the model.
    model.transformers_model.set_attn_implementation("eager")
    measure("BERT-base, already tokenized, without SDPA", model, batch_lengths, run_model)
    model.transformers_model.set_attn_implementation("sdpa")
    compile_transformers(model)
    measure("BERT-base, compiled, already tokenized", model, batch_lengths, run_model)
    measure("BERT-base, compiled, encode", model, lengths, lambda: encoder.encode(texts))
    return rows


class Texts(list[dict[str, Any]]):
    """Training rows that repeat endlessly."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__(rows)
        self.column_names = list(rows[0])

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index % len(self))


def train_speed(setting: Setting, rate: float, recipe: Recipe, data: Texts, start: Path) -> dict[str, Any]:
    """Train for a few steps. Return rows per second, the share of the matrix rate, and the memory, as cells of a row.

    ``rate`` is the result of :func:`product_rate`. ``start`` is the folder of the starting checkpoint.
    """
    if setting.cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    train = recipe.train
    clock = Clock(setting.device)
    batches = TrainingBatches(data, train.batch, train.epochs, 0, max_steps=train.max_steps)
    try:
        with tempfile.TemporaryDirectory() as folder:
            trainer = trainer_of(recipe, data, batches, start, Path(folder) / "states", setting.device)
            if train.compile:
                compile_transformers(trainer.model)
            trainer.add_callback(clock)
            trainer.train()
    except torch.cuda.OutOfMemoryError:
        return {"rows/s": "out of memory", "GiB": round(torch.cuda.max_memory_allocated() / GIB, 1)}
    model = trainer.model
    step_times = clock.times
    step_seconds = (step_times[-1] - step_times[2]) / (len(step_times) - 3)  # without the first two steps
    lengths: list[int] = []
    for row_number in range(_COUNTED_ROWS):
        lengths += lengths_of(model, data[row_number])

    # A backward pass counts as two. Gradient caching in a dual-encoder's training needs a second forward pass.
    pass_count = 4 if recipe.model.kind == "dual" else 3
    if train.adversarial:
        pass_count += 2  # a forward pass, and a backward pass to the embeddings only
    operations = forward_operations(model, lengths) / _COUNTED_ROWS * pass_count * batches.batch

    config = transformer_of(model).config
    weight_count = sum(weights.numel() for weights in model.parameters())
    batch_tokens = sum(lengths) // _COUNTED_ROWS * batches.batch
    tokens_at_once = trainers.tokens_per_pass(recipe, torch.device(setting.device)) or batch_tokens
    formula = memory_formula(
        weight_count,
        config.num_hidden_layers,
        config.hidden_size,
        tokens=min(batch_tokens, tokens_at_once),
        bytes_a_number=4 if train.precision == "fp32" else 2,
    )
    peak_memory = torch.cuda.max_memory_allocated() if setting.cuda else 0
    return {
        "rows/s": round(batches.batch / step_seconds, 1),
        "tokens per row": round(sum(lengths) / _COUNTED_ROWS),
        "share of the matrix rate": round(operations / step_seconds / rate, 3),
        "GiB": round(peak_memory / GIB, 1),
        "formula, GiB": round(formula / GIB, 1),
        "first step, s": round(step_times[1] - step_times[0], 1),
    }


def training(setting: Setting) -> Rows:
    """Measure training rows per second: official-de and official-ce on a random BERT-base, and e5-small."""
    quiet_libraries()
    deadline = time.monotonic() + setting.seconds - _LONGEST_TRAINING
    rows = SavedRows()
    rate = product_rate(setting, "bf16" if setting.cuda else "fp32")

    # Random rows for BERT-base, and rows of real passages for e5-small.
    passage_length = setting.of(384, 24)
    row_count = setting.of(2_048, 16)
    passages = random_texts([passage_length - 3] * row_count)  # the official code adds three special tokens
    queries = random_texts([setting.of(30, 8)] * row_count, 1)
    dual_rows = []
    cross_rows = []
    for number, (query, passage) in enumerate(zip(queries, passages, strict=True)):
        dual_rows.append({"query": query, "positive": passage, "negative_1": passages[-number - 1]})
        cross_rows.append({"query": query, "passage": passage, "label": float(number % 5 == 0)})
    real_passages = passages_of(setting, row_count)
    real_rows = []
    for number, passage in enumerate(real_passages):
        real_rows.append({"query": passage[:16], "positive": passage, "negative_1": real_passages[-number - 1]})

    values_of_all = [f"train.max_steps={setting.of(6, 3)}", "train.saves=0", "train.evaluations=0"]
    values_of_all += ["train.epochs=1000", "train.workers=6"]
    small_values: list[str] = []
    if setting.small:
        small_values = ["train.batch=8", f"data.passage_length={passage_length}", "data.query_length=12"]
    e5_values = ["model.pooling=", "model.similarity=", f"model.start={setting.model}"]
    e5_values += ["train.scale=50", "train.batch=512"]
    with tempfile.TemporaryDirectory() as name:
        dual_start = random_bert(setting, Path(name) / "bert")
        cross_start = random_bert(setting, Path(name) / "pairs", 2)

        def run(title: str, recipe_name: str, data: Texts, start: Path, *values: str) -> None:
            """Measure a training, and add its row."""
            if time.monotonic() > deadline:
                rows.append({"training": title, "rows/s": "no time left"})
                return
            recipe = read_recipe(recipe_name, [*values_of_all, *values, *small_values])
            rows.append({"training": title} | train_speed(setting, rate, recipe, data, start))

        def run_e5(title: str, *values: str) -> None:
            run(f"e5-small, {title}", "de-bm25-neg", Texts(real_rows), setting.model, *e5_values, *values)

        dual = Texts(dual_rows)
        cross = Texts(cross_rows)
        run(
            "official-de, 32 rows at once",
            "official-de",
            dual,
            dual_start,
            f"train.mini_batch_tokens={32 * passage_length}",
        )
        run("official-de", "official-de", dual, dual_start)
        run("official-de, 65,536 tokens at once", "official-de", dual, dual_start, "train.mini_batch_tokens=65536")
        run("official-ce (fp32: TF32 on a GPU)", "official-ce", cross, cross_start)
        run("official-ce in bf16", "official-ce", cross, cross_start, "train.precision=bf16")
        run_e5("real passages")
        run_e5("65,536 tokens at once", "train.mini_batch_tokens=65536")
        run_e5("131,072 tokens at once", "train.mini_batch_tokens=131072")
        run_e5("compiled", "train.compile=true")  # last, because the first step took more than 150 s on an H100
    return rows


STEPS: list[Step] = [(ceilings, 30), (searching, 70), (encoding, 90), (training, 190)]
