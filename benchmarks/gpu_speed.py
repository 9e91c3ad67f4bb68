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
from gpu_common import Kept, Rows, Setting, Step, passages_of, unit_vectors, write_vectors
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
from baselines.train.training_rows import Batches

SHAPES = ((768, 768), (768, 3072), (3072, 768), (384, 384), (384, 1536), (1536, 384))  # layers: BERT-base, e5-small
GIB = 2**30


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
    """Write a BERT with random weights: of base size, or tiny if ``setting.small``."""
    return bert(folder, setting.of(12, 2), setting.of(768, 32), labels)


def product_rate(setting: Setting, dtype: str) -> float:
    """Measure the operations per second of a large matrix product."""
    return matrix_rate(setting.device, dtype, setting.of(8192, 64))


def host_bandwidth(setting: Setting) -> float:
    """Measure the bytes per second from pinned host memory to the GPU."""
    host = torch.ones(1 << 29, dtype=torch.uint8).pin_memory()
    return len(host) / timed(lambda: host.to(setting.device, non_blocking=True), setting.device, 5, 2)[0]


def ceilings(setting: Setting) -> Rows:
    """Measure the peak rates of large products, of products with BERT's shapes, and of copies."""
    rows, size, device = Kept(), setting.of(8192, 64), setting.device
    for dtype in ("bf16", "fp16", "fp32"):
        rate = round(product_rate(setting, dtype) / 1e12, 1)
        rows.append({"ceiling": f"{dtype} product, {size} x {size} x {size}", "TFLOP/s": rate})
    tokens, options = setting.of(98_304, 64), {"device": device, "dtype": DTYPES["fp16" if setting.cuda else "fp32"]}
    for inner, outer in SHAPES:
        layer, inputs = torch.nn.Linear(inner, outer, **options), torch.randn(tokens, inner, **options)
        with torch.inference_mode():
            took, _ = timed(lambda layer=layer, inputs=inputs: [layer(inputs) for _ in range(5)], device, 3, 1)
        rate = round(10 * tokens * inner * outer / took / 1e12, 1)
        rows.append({"ceiling": f"linear layer {inner} to {outer} of {tokens:,} tokens", "TFLOP/s": rate})
    count = setting.of(1 << 31, 1 << 20)
    took, _ = timed(torch.ones(count, dtype=torch.uint8, device=device).clone, device, 5, 2)
    name = f"copy of {count >> 20} MiB, bytes read and written"
    rows.append({"ceiling": name, "GB/s": round(2 * count / took / 1e9, 1)})
    if setting.cuda:
        rows.append({"ceiling": "pinned host memory to the GPU", "GB/s": round(host_bandwidth(setting) / 1e9, 1)})
    return rows


def searching(setting: Setting) -> Rows:
    """Time 2,000 queries against a million passages, and compare the time with the GPU's peak rates."""
    count, width, asked = setting.of(1_000_000, 5_000), setting.of(768, 32), setting.of(2_000, 20)
    queries, checked, rows = unit_vectors(0, asked, width), setting.of(100, 5), Kept()

    def candidates() -> Any:
        return exact_search.candidates(vectors, [TorchEngine(queries, 100, setting.device)], 100)

    def search() -> Any:
        engines = [TorchEngine(queries, 100, setting.device)]
        return list(exact_search.search(vectors, queries, engines, 50, 100, lambda: np.arange(count)))

    def read() -> Any:
        return [torch.from_numpy(np.array(block)) for _, block in vectors.blocks(1 << 16)]

    with tempfile.TemporaryDirectory(dir=setting.work) as name:
        vectors = write_vectors(Path(name), count, width, setting.device)
        took, _ = timed(candidates, setting.device, 3, 2)
        whole, hits = timed(search, setting.device, 2, 1)
        reading, _ = timed(read, setting.device, 2, 1)
        exact = queries[:checked].astype(np.float32) @ vectors.all().astype(np.float32).T
    lowest = -np.partition(-exact, 49, axis=1)[:, 49]
    right = all(exact[number, hits[number][0]].min() > lowest[number] - 1e-5 for number in range(checked))
    for name, seconds in (("candidates (TorchEngine)", took), ("whole, scores in 64 bits on the CPU", whole)):
        rows.append({"search": name, "s": round(seconds, 4), "queries/s": round(asked / seconds)})
    rows.append({"search": "reading all embeddings once, one thread", "s": round(reading, 4)})
    rows.append({"search": f"same top 50 as on the CPU within 1e-5, {checked} queries", "s": str(right)})
    copied = 2.0 * count * width / host_bandwidth(setting) if setting.cuda else 0.0
    if setting.cuda:
        rows.append({"search": "lower bound: copy all embeddings from host memory", "s": round(copied, 4)})
    for dtype in ("fp16", "fp32"):
        bound = 2.0 * asked * count * width / product_rate(setting, dtype)
        share, name = round(max(bound, copied) / took, 3), f"lower bound: operations in {dtype}"
        rows.append({"search": name, "s": round(bound, 4), "larger bound / candidates": share})
    return rows


def encoding(setting: Setting) -> Rows:
    """Measure passages per second of a BERT-base at 380 tokens, and of e5-small on real passages."""
    rows, dtype = Kept(), "fp16" if setting.cuda else "fp32"
    rate, tokens = product_rate(setting, dtype), setting.of(98_304, 2_048)

    def row(name: str, model: SentenceTransformer, lengths: list[int], function: Callable[[], Any]) -> None:
        took, _ = timed(function, setting.device, setting.of(2, 1), 1)
        share = round(forward_operations(model, lengths) / took / rate, 3)
        speed = round(len(lengths) / took)
        rows.append({"model": name, "texts": len(lengths), "passages/s": speed, "share of the matrix rate": share})

    def library(model: SentenceTransformer) -> Any:
        return model.encode_document(texts, batch_size=256, show_progress_bar=False)

    with tempfile.TemporaryDirectory() as name:
        model = dual_encoder(Path(name), setting.of(12, 2), setting.of(768, 32))
        unpadded = None
        if setting.cuda and find_spec("flash_attn"):  # sentence-transformers then concatenates the texts of a batch
            kwargs = {"attn_implementation": "flash_attention_2", "dtype": DTYPES[dtype]}
            module = Transformer(name, model_kwargs=kwargs, document_length=384)
            unpadded = SentenceTransformer(modules=[module, model[1]], device=setting.device).eval()
    model = model.to(setting.device, DTYPES[dtype]).eval()
    texts = random_texts([378] * setting.of(4_096, 16))
    lengths, few = [380] * len(texts), texts[: tokens // 384]
    features = Prefetcher(model, {}, 0, pin=False).tokens(few)
    batch = {key: value.to(setting.device) for key, value in features.items() if torch.is_tensor(value)}

    def forward() -> Any:
        with torch.inference_mode():
            return [model(dict(batch), task="document")["sentence_embedding"] for _ in range(4)]

    tokenized = [380] * len(few) * 4
    row("BERT-base, already tokenized", model, tokenized, forward)
    row("BERT-base, sentence-transformers' encode", model, lengths, lambda: library(model))
    if unpadded:
        name = "BERT-base, sentence-transformers' encode, flash_attn, unpadded"
        row(name, unpadded, lengths, lambda: library(unpadded))
    for budget in (tokens // 3, tokens):
        encoder = TextEncoder(model, "document", budget)
        name = f"BERT-base, encode, batches of {budget:,} tokens"
        row(name, model, lengths, lambda encoder=encoder: encoder.encode(texts))
    real = passages_of(setting, setting.of(16_384, 16))
    small = open_encoder(ModelSettings(str(setting.model)), setting.device, dtype)
    sizes = [min(512, len(each)) for each in small.tokenizer(real)["input_ids"]]
    own = TextEncoder(small, "document", tokens)
    row(f"e5-small, encode, {statistics.mean(sizes):.0f} tokens", small, sizes, lambda: own.encode(real))
    model.transformers_model.set_attn_implementation("eager")
    row("BERT-base, already tokenized, without SDPA", model, tokenized, forward)
    model.transformers_model.set_attn_implementation("sdpa")
    compile_transformers(model)
    row("BERT-base, compiled, already tokenized", model, tokenized, forward)
    row("BERT-base, compiled, encode", model, lengths, lambda: encoder.encode(texts))
    return rows


class Texts(list[dict[str, Any]]):
    """Training rows that repeat endlessly."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__(rows)
        self.column_names = list(rows[0])

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index % len(self))


def train_speed(setting: Setting, rate: float, recipe: Recipe, data: Texts, start: Path) -> dict[str, Any]:
    """Train for a few steps. Return rows per second, the share of the matrix rate, and the memory."""
    if setting.cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    train, clock = recipe.train, Clock(setting.device)
    batches = Batches(data, train.batch, train.epochs, 0, max_steps=train.max_steps)
    try:
        with tempfile.TemporaryDirectory() as folder:
            trainer = trainer_of(recipe, data, batches, start, Path(folder) / "states", setting.device)
            if train.compile:
                compile_transformers(trainer.model)
            trainer.add_callback(clock)
            trainer.train()
    except torch.cuda.OutOfMemoryError:
        return {"rows/s": "out of memory", "GiB": round(torch.cuda.max_memory_allocated() / GIB, 1)}
    model, times = trainer.model, clock.times
    seconds = (times[-1] - times[2]) / (len(times) - 3)  # without the first two steps
    lengths = [length for number in range(64) for length in lengths_of(model, data[number])]
    # A backward pass counts as two. Gradient caching in a dual-encoder's training needs a second forward pass.
    passes = 4 if recipe.model.kind == "dual" else 3
    passes += 2 if train.adversarial else 0  # a forward pass, and a backward pass to the embeddings only
    operations = forward_operations(model, lengths) / 64 * passes * batches.batch
    config, weights = transformer_of(model).config, sum(each.numel() for each in model.parameters())
    tokens = sum(lengths) // 64 * batches.batch
    tokens = min(tokens, trainers.tokens_per_pass(recipe, torch.device(setting.device)) or tokens)
    bytes_a_number = 4 if train.precision == "fp32" else 2
    formula = memory_formula(weights, config.num_hidden_layers, config.hidden_size, tokens, bytes_a_number)
    return {
        "rows/s": round(batches.batch / seconds, 1),
        "tokens per row": round(sum(lengths) / 64),
        "share of the matrix rate": round(operations / seconds / rate, 3),
        "GiB": round((torch.cuda.max_memory_allocated() if setting.cuda else 0) / GIB, 1),
        "formula, GiB": round(formula / GIB, 1),
        "first step, s": round(times[1] - times[0], 1),
    }


def training(setting: Setting) -> Rows:
    """Measure training rows per second: official-de and official-ce on a random BERT-base, and e5-small."""
    quiet_libraries()
    deadline = time.monotonic() + setting.seconds - 20
    rows, rate = Kept(), product_rate(setting, "bf16" if setting.cuda else "fp32")
    length, count = setting.of(384, 24), setting.of(2_048, 16)
    passages, queries = random_texts([length - 3] * count), random_texts([setting.of(30, 8)] * count, 1)
    pairs = list(enumerate(zip(queries, passages, strict=True)))
    dual = Texts([{"query": q, "positive": p, "negative_1": passages[-n - 1]} for n, (q, p) in pairs])
    cross = Texts([{"query": q, "passage": p, "label": float(n % 5 == 0)} for n, (q, p) in pairs])
    own = passages_of(setting, count)
    real = Texts([{"query": p[:16], "positive": p, "negative_1": own[-n - 1]} for n, p in enumerate(own)])
    sets = [f"train.max_steps={setting.of(6, 3)}", "train.saves=0", "train.evaluations=0", "train.epochs=1000"]
    sets += ["train.workers=6"]
    small = ["train.batch=8", f"data.passage_length={length}", "data.query_length=12"] if setting.small else []
    e5 = ["model.pooling=", "model.similarity=", f"model.start={setting.model}", "train.scale=50", "train.batch=512"]
    with tempfile.TemporaryDirectory() as name:
        base, labelled = random_bert(setting, Path(name) / "bert"), random_bert(setting, Path(name) / "pairs", 2)

        def run(title: str, recipe: str, data: Texts, start: Path, *values: str) -> None:
            if time.monotonic() > deadline:
                rows.append({"training": title, "rows/s": "no time left"})
            else:
                chosen = read_recipe(recipe, [*sets, *values, *small])
                rows.append({"training": title, **train_speed(setting, rate, chosen, data, start)})

        def run_e5(title: str, *values: str) -> None:
            run(f"e5-small, {title}", "de-bm25-neg", real, setting.model, *e5, *values)

        run("official-de, 32 rows at once", "official-de", dual, base, f"train.mini_batch_tokens={32 * length}")
        run("official-de", "official-de", dual, base)
        run("official-de, 65,536 tokens at once", "official-de", dual, base, "train.mini_batch_tokens=65536")
        run("official-ce (fp32: TF32 on a GPU)", "official-ce", cross, labelled)
        run("official-ce in bf16", "official-ce", cross, labelled, "train.precision=bf16")
        run_e5("real passages")
        run_e5("65,536 tokens at once", "train.mini_batch_tokens=65536")
        run_e5("131,072 tokens at once", "train.mini_batch_tokens=131072")
        run_e5("compiled", "train.compile=true")  # last, because the first step took more than 150 s on an H100
    return rows


STEPS: list[Step] = [(ceilings, 30), (searching, 70), (encoding, 90), (training, 190)]
