"""Measurements for the part `speed` of gpu.py: a GPU's peak rates, and the speed of search, encoding and training."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_common import Kept, Rows, Setting, Step, passages_of, synchronize, timed, unit_vectors, write_vectors
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

from baselines.retrieve import dense
from baselines.retrieve.dense import TorchEngine
from baselines.retrieve.devices import DTYPES, compile_transformers
from baselines.retrieve.encoder import Encoder, Prefetcher
from baselines.retrieve.hub_models import quiet_libraries
from baselines.retrieve.models import open_encoder
from baselines.retrieve.settings import ModelSettings
from baselines.train import models, trainers
from baselines.train.data import Batches
from baselines.train.recipe import Recipe, read_recipe

FIRST, COUNT = 0x4E00, 17_995  # the Chinese characters in the vocabulary of the random BERT
SHAPES = ((768, 768), (768, 3072), (3072, 768), (384, 384), (384, 1536), (1536, 384))  # layers: BERT-base, e5-small
GIB = 2**30


def bert(folder: Path, setting: Setting, labels: int | None = None) -> Path:
    """Write a BERT-base (in a small run, a tiny BERT) with random weights and a vocabulary of Chinese characters."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, range(FIRST, FIRST + COUNT))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    BertTokenizer(str(folder / "vocab.txt"), model_max_length=512).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(words), num_labels=labels or 2)
    if setting.small:
        config.update({"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64})
    (BertForSequenceClassification if labels else BertModel)(config).save_pretrained(folder)
    return folder


def characters(count: int, length: int, seed: int = 0) -> list[str]:
    """Return random texts of ``length`` characters. Each character is a token of :func:`bert`."""
    numbers = np.random.default_rng(seed).integers(FIRST, FIRST + COUNT, (count, length))
    return ["".join(map(chr, row)) for row in numbers.tolist()]


def transformer_of(model: torch.nn.Module) -> PreTrainedModel:
    """Return the model's first transformer."""
    return next(module for module in model.modules() if isinstance(module, PreTrainedModel))


def forward_operations(model: torch.nn.Module, lengths: list[int]) -> float:
    """Return the floating-point operations of a forward pass over texts with the given ``lengths`` in tokens.

    A token takes 2 operations per weight of a linear layer. Attention takes 4 x layers x width x tokens^2 per text.
    """
    transformer = transformer_of(model)
    layers = [(name, module) for name, module in transformer.named_modules() if isinstance(module, torch.nn.Linear)]
    linear = sum(each.weight.numel() for name, each in layers if "pooler" not in name and "classifier" not in name)
    attention = 4 * transformer.config.num_hidden_layers * transformer.config.hidden_size
    return float(sum(2 * linear * length + attention * length**2 for length in lengths))


def memory_formula(weights: int, layers: int, width: int, tokens: int, bytes_a_number: int) -> float:
    """Return the approximate memory of a training step with ``tokens`` tokens at once, in bytes.

    Weights, gradients and Adam's two moments take 16 bytes per weight. The backward pass needs about 23 numbers per
    token, layer and unit of width, which take 46 bytes in bf16. Attention scores are not included, because SDPA does
    not store them. On an H100 in bf16, two towers of BERT-base take 7.9, 15.6 and 28.0 GiB at 12,288, 32,768 and 65,536
    tokens. The formula is within 4 % of these values. For e5-small, the formula is 17 to 20 % too low: the model takes
    8.8, 16.6 and 32.1 GiB at 32,768, 65,536 and 131,072 tokens.
    """
    return 16.0 * weights + layers * width * tokens * 23 * bytes_a_number


def matrix_rate(setting: Setting, dtype: str) -> float:
    """Measure the operations per second of a large matrix product."""
    size = setting.of(8192, 64)
    one, other = (torch.randn(size, size, device=setting.device).to(DTYPES[dtype]) for _ in range(2))
    took, _ = timed(setting, lambda: [one @ other for _ in range(10)], 5, 2)
    return 20 * size**3 / took


def host_bandwidth(setting: Setting) -> float:
    """Measure the bytes per second from pinned host memory to the GPU."""
    host = torch.ones(1 << 29, dtype=torch.uint8).pin_memory()
    took, _ = timed(setting, lambda: host.to(setting.device, non_blocking=True), 5, 2)
    return len(host) / took


def ceilings(setting: Setting) -> Rows:
    """Measure the peak rates of large products, of products with BERT's shapes, and of copies."""
    rows, size = Kept(), setting.of(8192, 64)
    for dtype in ("bf16", "fp16", "fp32"):
        rate = round(matrix_rate(setting, dtype) / 1e12, 1)
        rows.append({"ceiling": f"{dtype} product, {size} x {size} x {size}", "TFLOP/s": rate})
    tokens, dtype = setting.of(98_304, 64), torch.float16 if setting.cuda else torch.float32
    for inner, outer in SHAPES:
        layer = torch.nn.Linear(inner, outer, device=setting.device, dtype=dtype)
        given = torch.randn(tokens, inner, device=setting.device, dtype=dtype)
        with torch.inference_mode():
            took, _ = timed(setting, lambda layer=layer, given=given: [layer(given) for _ in range(5)])
        rate = round(10 * tokens * inner * outer / took / 1e12, 1)
        rows.append({"ceiling": f"linear layer {inner} to {outer} of {tokens:,} tokens", "TFLOP/s": rate})
    count = setting.of(1 << 31, 1 << 20)
    took, _ = timed(setting, torch.ones(count, dtype=torch.uint8, device=setting.device).clone, 5, 2)
    name = f"copy of {count >> 20} MiB, bytes read and written"
    rows.append({"ceiling": name, "GB/s": round(2 * count / took / 1e9, 1)})
    if setting.cuda:
        rows.append({"ceiling": "pinned host memory to the GPU", "GB/s": round(host_bandwidth(setting) / 1e9, 1)})
    return rows


def searching(setting: Setting) -> Rows:
    """Time 2,000 queries against a million passages, and compare the time with the GPU's peak rates."""
    count, width, asked = setting.of(1_000_000, 5_000), setting.of(768, 32), setting.of(2_000, 20)
    queries, checked, rows = unit_vectors(0, asked, width), setting.of(100, 5), Kept()

    def engine() -> TorchEngine:
        return TorchEngine(queries, 100, setting.device)

    with tempfile.TemporaryDirectory(dir=setting.work) as name:
        vectors = write_vectors(Path(name), count, width, setting.device)
        took, _ = timed(setting, lambda: dense.candidates(vectors, [engine()], 100), 3, 2)
        search = lambda: list(dense.search(vectors, queries, [engine()], 50, 100, lambda: np.arange(count)))  # noqa: E731
        whole, hits = timed(setting, search, 2)
        read = lambda: [torch.from_numpy(np.array(block)) for _, block in vectors.blocks(1 << 16)]  # noqa: E731
        reading, _ = timed(setting, read, 2)
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
        floor = 2.0 * asked * count * width / matrix_rate(setting, dtype)
        share = round(max(floor, copied) / took, 3)
        name = f"lower bound: operations in {dtype}"
        rows.append({"search": name, "s": round(floor, 4), "larger bound / candidates": share})
    return rows


def encoding(setting: Setting) -> Rows:
    """Measure passages per second of a BERT-base at 380 tokens, and of e5-small on real passages."""
    rows, dtype = Kept(), "fp16" if setting.cuda else "fp32"
    rate, tokens = matrix_rate(setting, dtype), setting.of(98_304, 2_048)

    def row(name: str, model: SentenceTransformer, lengths: list[int], function: Callable[[], Any]) -> None:
        took, _ = timed(setting, function, setting.of(2, 1))
        share = round(forward_operations(model, lengths) / took / rate, 3)
        speed = round(len(lengths) / took)
        rows.append({"model": name, "texts": len(lengths), "passages/s": speed, "share of the matrix rate": share})

    with tempfile.TemporaryDirectory() as name:
        module = Transformer(str(bert(Path(name) / "bert", setting)), query_length=32, document_length=384)
        modules = [module, Pooling(module.get_embedding_dimension(), "cls")]
        model = SentenceTransformer(modules=modules, similarity_fn_name="dot", device="cpu")
        model = model.to(setting.device, DTYPES[dtype]).eval()
        unpadded = None
        if setting.cuda and find_spec("flash_attn"):  # sentence-transformers then concatenates the texts of a batch
            kwargs = {"attn_implementation": "flash_attention_2", "dtype": DTYPES[dtype]}
            module = Transformer(str(Path(name) / "bert"), model_kwargs=kwargs, document_length=384)
            unpadded = SentenceTransformer(modules=[module, *modules[1:]], device=setting.device).eval()
    texts = characters(setting.of(4_096, 16), 378)
    lengths, few = [380] * len(texts), texts[: tokens // 384]
    given = Prefetcher(model, {}, 0, pin=False).tokens(few)
    batch = {key: value.to(setting.device) for key, value in given.items() if torch.is_tensor(value)}

    def forward() -> Any:
        with torch.inference_mode():
            return [model(dict(batch), task="document")["sentence_embedding"] for _ in range(4)]

    def library() -> Any:
        return model.encode_document(texts, batch_size=256, show_progress_bar=False)

    at_hand = [380] * len(few) * 4
    row("BERT-base, already tokenized", model, at_hand, forward)
    row("BERT-base, sentence-transformers' encode", model, lengths, library)
    if unpadded:
        flash = lambda: unpadded.encode_document(texts, batch_size=256, show_progress_bar=False)  # noqa: E731
        row("BERT-base, sentence-transformers' encode, flash_attn, unpadded", unpadded, lengths, flash)
    for budget in (tokens // 3, tokens):
        encoder = Encoder(model, "document", budget)
        name = f"BERT-base, encode, batches of {budget:,} tokens"
        row(name, model, lengths, lambda encoder=encoder: encoder.encode(texts))
    real = passages_of(setting, setting.of(16_384, 16))
    small = open_encoder(ModelSettings(str(setting.model)), setting.device, dtype)
    sizes = [min(512, len(each)) for each in small.tokenizer(real)["input_ids"]]
    own = Encoder(small, "document", tokens)
    row(f"e5-small, encode, {statistics.mean(sizes):.0f} tokens", small, sizes, lambda: own.encode(real))
    model.transformers_model.set_attn_implementation("eager")
    row("BERT-base, already tokenized, without SDPA", model, at_hand, forward)
    model.transformers_model.set_attn_implementation("sdpa")
    compile_transformers(model)
    row("BERT-base, compiled, already tokenized", model, at_hand, forward)
    row("BERT-base, compiled, encode", model, lengths, lambda: encoder.encode(texts))
    return rows


class Texts(list[dict[str, Any]]):
    """Training rows that repeat endlessly."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__(rows)
        self.column_names = list(rows[0])

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index % len(self))


class Clock(TrainerCallback):
    """Callback that records the start of a training and the end of each step."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.times = setting, list[float]()

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.times.append(time.perf_counter())

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        synchronize(self.setting)
        self.times.append(time.perf_counter())


def lengths_of(model: Any, row: dict[str, Any]) -> list[int]:
    """Return the number of tokens of each text in a row."""
    if "label" in row:
        return [int(model.preprocess([(row["query"], row["passage"])])["attention_mask"].sum())]
    found = (model.preprocess([text], task="query" if name == "query" else "document") for name, text in row.items())
    return [int(each["attention_mask"].sum()) for each in found]


def trainer_of(recipe: Recipe, data: Texts, start: Path, batches: Batches, states: Path, device: str) -> Any:
    """Create the trainer that `train` uses, for the rows in ``data``."""
    given = trainers.arguments(recipe, states, batches, device)
    torch.manual_seed(0)
    if recipe.model.kind == "cross":
        model = models.cross_encoder(recipe, str(start), device)
        trainer = trainers.cross_trainer(recipe, model, data, batches, given)
    else:
        model = models.dual_encoder(recipe, str(start), device)
        trainer = trainers.dual_trainer(recipe, model, data, batches, given)
    if recipe.train.compile:
        compile_transformers(trainer.model)
    return trainer


def train_speed(setting: Setting, rate: float, recipe: Recipe, data: Texts, start: Path) -> dict[str, Any]:
    """Train for a few steps. Return rows per second, the share of the matrix rate, and the memory."""
    if setting.cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    train, clock = recipe.train, Clock(setting)
    batches = Batches(data, train.batch, train.epochs, 0, max_steps=train.max_steps)
    try:
        with tempfile.TemporaryDirectory() as folder:
            trainer = trainer_of(recipe, data, start, batches, Path(folder) / "states", setting.device)
            trainer.add_callback(clock)
            trainer.train()
    except torch.cuda.OutOfMemoryError:
        return {"rows/s": "out of memory", "GiB": round(torch.cuda.max_memory_allocated() / GIB, 1)}
    model, times = trainer.model, clock.times
    seconds = (times[-1] - times[2]) / (len(times) - 3)  # without the first two steps
    texts = [length for number in range(64) for length in lengths_of(model, data[number])]
    passes = 4 if recipe.model.kind == "dual" else 3  # backward counts as two; cached gradients need a second forward
    passes += 2 if train.adversarial else 0  # a forward pass, and a backward pass to the embeddings only
    operations = forward_operations(model, texts) / 64 * passes * batches.batch
    config, weights = transformer_of(model).config, sum(each.numel() for each in model.parameters())
    tokens = sum(texts) // 64 * batches.batch
    tokens = min(tokens, trainers.tokens_at_once(recipe, torch.device(setting.device)) or tokens)
    bytes_a_number = 4 if train.precision == "fp32" else 2
    formula = memory_formula(weights, config.num_hidden_layers, config.hidden_size, tokens, bytes_a_number)
    return {
        "rows/s": round(batches.batch / seconds, 1),
        "tokens per row": round(sum(texts) / 64),
        "share of the matrix rate": round(operations / seconds / rate, 3),
        "GiB": round((torch.cuda.max_memory_allocated() if setting.cuda else 0) / GIB, 1),
        "formula, GiB": round(formula / GIB, 1),
        "first step, s": round(times[1] - times[0], 1),
    }


def training(setting: Setting) -> Rows:
    """Measure training rows per second: official-de and official-ce on a random BERT-base, and e5-small."""
    quiet_libraries()
    deadline = time.monotonic() + setting.seconds - 20
    rows, rate = Kept(), matrix_rate(setting, "bf16" if setting.cuda else "fp32")
    length, count = setting.of(384, 24), setting.of(2_048, 16)
    passages, queries = characters(count, length - 3), characters(count, setting.of(30, 8), 1)
    pairs = list(enumerate(zip(queries, passages, strict=True)))
    dual = Texts([{"query": q, "positive": p, "negative_1": passages[-n - 1]} for n, (q, p) in pairs])
    cross = Texts([{"query": q, "passage": p, "label": float(n % 5 == 0)} for n, (q, p) in pairs])
    own = passages_of(setting, count)
    real = Texts([{"query": p[:16], "positive": p, "negative_1": own[-n - 1]} for n, p in enumerate(own)])
    sets = [f"train.max_steps={setting.of(6, 3)}", "train.saves=0", "train.evaluations=0", "train.epochs=1000"]
    sets += ["train.workers=6"]
    small = ["train.batch=8", f"data.passage_length={length}", "data.query_length=12"] if setting.small else []
    with tempfile.TemporaryDirectory() as name:
        base, labelled = bert(Path(name) / "bert", setting), bert(Path(name) / "pairs", setting, 2)
        e5 = ["model.pooling=", "model.similarity=", f"model.start={setting.model}"]
        e5 += ["train.scale=50", "train.batch=512"]

        def run(title: str, recipe: str, data: Texts, start: Path, *values: str) -> None:
            if time.monotonic() > deadline:
                rows.append({"training": title, "rows/s": "no time left"})
                return
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
        run_e5("compiled", "train.compile=true")  # last: on an H100 its first step took more than 150 s
    return rows


STEPS: list[Step] = [(ceilings, 30), (searching, 70), (encoding, 90), (training, 190)]
