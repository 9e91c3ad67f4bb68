"""Compare the speed of dual-encoder training with plain sentence-transformers training of the same model.

Passages are random Chinese characters, with 4 negatives per positive. Three trainings take turns, with the same
precision and batch:

  ours     the trainer of `train`: texts are read by row number, batch by batch, from memory-mapped files
  stock    SentenceTransformerTrainer with a datasets.Dataset of all texts in memory (skipped without `datasets`)
  loop     a hand-written loop over texts in memory: preprocess, loss, backward, AdamW

Figures are rows per second. A row is a query with its positive and negatives. On a GPU, the share of the matrix rate is
also printed: the operations of two forward passes and one backward pass (gradients are cached), per second, divided by
the rate of large bf16 products measured here.

Example:

  python benchmarks/train.py --layers 2 --hidden 128 --batch 32 --steps 10
  python benchmarks/train.py --layers 12 --hidden 768 --batch 256 --length 384 --json train.json
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from releases import make_release, md5  # noqa: E402
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer  # noqa: E402
from sentence_transformers import SentenceTransformerTrainingArguments as Arguments  # noqa: E402
from sentence_transformers.util import batch_to_device, dot_score  # noqa: E402
from transformers import PrinterCallback, TrainerCallback  # noqa: E402

from baselines.checkpoint import versions  # noqa: E402
from baselines.retrieve.hub_models import quiet_libraries  # noqa: E402
from baselines.retrieve.passages import Passages, open_passages  # noqa: E402
from baselines.train import trainers  # noqa: E402
from baselines.train.data import (  # noqa: E402
    Batches,
    DualRows,
    Pairs,
)
from baselines.train.models import dual_encoder, make_start  # noqa: E402
from baselines.train.recipe import Recipe, read_recipe  # noqa: E402
from builders.store.reader import open_release  # noqa: E402

_WARM = 3  # warm-up steps, not measured


def make_rows(folder: Path, passages: int, length: int) -> tuple[Passages, DualRows]:
    chance = random.Random(0)
    characters = [chr(0x4E00 + n) for n in range(3000)]
    texts = ["".join(chance.choices(characters, k=chance.randint(length // 2, length))) for _ in range(passages)]
    corpus = [{"_id": md5(text), "title": "", "text": text} for text in texts]
    release = make_release(folder / "release", {("corpus", "corpus"): corpus}, rows_per_shard=50_000)
    opened = open_passages(open_release(release), keep=folder / "texts")
    queries = ["".join(chance.choices(characters, k=chance.randint(6, 14))) for _ in range(passages // 5)]
    rows = np.random.default_rng(0).permutation(len(queries) * 5).reshape(-1, 5)
    return opened, DualRows(Pairs(queries, np.arange(len(queries)), rows[:, 0], rows[:, 1:]), opened)


class Clock(TrainerCallback):
    """Callback that measures the seconds of the steps after the warm-up."""

    def __init__(self) -> None:
        self.seconds, self._count = 0.0, 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._count += 1
        if self._count in (_WARM, state.max_steps):
            synchronize()
            self.seconds = time.perf_counter() - (self.seconds if self._count > _WARM else 0)


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def ours(recipe: Recipe, model: SentenceTransformer, rows: DualRows, given: dict[str, Any], batches: Batches) -> float:
    trainer = trainers.dual_trainer(recipe, model, rows, batches, given)
    clock = Clock()
    trainer.add_callback(clock)
    trainer.train()
    return clock.seconds


def the_loss(recipe: Recipe, model: SentenceTransformer) -> Any:
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss

    scale, mini_batch = recipe.train.scale, recipe.train.mini_batch
    return CachedMultipleNegativesRankingLoss(model, scale, dot_score, mini_batch)


def routes(rows: DualRows) -> dict[str, str]:
    return {name: "query" if name == "query" else "document" for name in rows.column_names}


def stock(recipe: Recipe, model: SentenceTransformer, rows: DualRows, given: dict[str, Any], batches: Batches) -> float:
    from datasets import Dataset

    every = [rows[number] for number in range(len(rows))]
    dataset = Dataset.from_dict({name: [row[name] for row in every] for name in rows.column_names})
    args = Arguments(**{**given, "max_steps": len(batches)}, router_mapping=routes(rows))
    loss = the_loss(recipe, model)
    trainer = SentenceTransformerTrainer(model=model, args=args, train_dataset=dataset, loss=loss)
    trainer.remove_callback(PrinterCallback)
    clock = Clock()
    trainer.add_callback(clock)
    trainer.train()
    return clock.seconds


def loop(recipe: Recipe, model: SentenceTransformer, rows: DualRows, given: dict[str, Any], batches: Batches) -> float:
    every = [rows[number] for number in range(len(rows))]
    tasks = routes(rows)
    loss = the_loss(recipe, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.train.learning_rate, fused=True)
    model.train()
    begin = 0.0
    for step, batch in enumerate(batches, 1):
        features = []
        for name, task in tasks.items():
            tokens = model.preprocess([every[row % len(every)][name] for row in batch], task=task)
            features.append(batch_to_device(tokens, model.device))
        with torch.autocast(model.device.type, torch.bfloat16, enabled=given["bf16"]):
            value = loss(features, None)
            value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step == _WARM:
            synchronize()
            begin = time.perf_counter()
    synchronize()
    return time.perf_counter() - begin


def products(model: SentenceTransformer, rows: DualRows, recipe: Recipe) -> float:
    """Return the floating-point operations per row of a training step, from 200 rows, without padding."""
    config: Any = model[0].auto_model.config
    hidden, layers = config.hidden_size, config.num_hidden_layers
    weights = layers * (4 * hidden * hidden + 2 * hidden * config.intermediate_size)
    total = 0.0
    for number in range(200):
        for name, text in rows[number % len(rows)].items():
            task = "query" if name == "query" else "document"
            tokens = model.preprocess([text], task=task)["input_ids"].shape[1]
            forward = tokens * (2 * weights + 4 * layers * tokens * hidden)
            total += 4 * forward  # two forward passes, and a backward pass that costs as much as two
    return total / 200


def matrix_rate(device: str) -> float:
    """Return the floating-point operations per second of a large bf16 product, the best of ten."""
    size = 8192
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = 0.0
    for _ in range(10):
        synchronize()
        begin = time.perf_counter()
        for _ in range(10):
            left @ right
        synchronize()
        best = max(best, 20 * size**3 / (time.perf_counter() - begin))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2, help="layers of the model (default: 2)")
    parser.add_argument("--hidden", type=int, default=128, help="width of the model (default: 128)")
    parser.add_argument("--batch", type=int, default=32, help="rows per step (default: 32)")
    parser.add_argument("--mini-batch", type=int, default=32, help="rows at once (default: 32)")
    parser.add_argument("--length", type=int, default=128, help="most characters and tokens per passage (default: 128)")
    parser.add_argument("--steps", type=int, default=12, help="measured steps (default: 12)")
    parser.add_argument("--repeats", type=int, default=3, help="trainings for each figure (default: 3)")
    parser.add_argument("--passages", type=int, default=5_000, help="number of passages (default: 5000)")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="default: cuda if available")
    parser.add_argument("--json", type=Path, help="file for the figures (default: no file)")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    quiet_libraries()
    cuda = args.device != "cpu" and torch.cuda.is_available()
    device = "cuda:0" if cuda else "cpu"
    values = {"train.batch": args.batch, "train.mini_batch": args.mini_batch, "train.max_steps": args.steps + _WARM}
    values |= {"train.epochs": 1000, "train.saves": 0, "data.passage_length": args.length, "train.logs": 1}
    recipe = read_recipe("de-bm25-neg-scratch", [f"{key}={value}" for key, value in values.items()])
    sizes = {"layers": args.layers, "hidden": args.hidden, "heads": max(1, args.hidden // 64)}
    scratch = read_recipe(
        "mlm-scratch", [f"scratch.{k}={v}" for k, v in {**sizes, "feed_forward": 4 * args.hidden}.items()]
    )
    ways: dict[str, Callable[..., float]] = {"ours": ours, "stock": stock, "loop": loop}
    if not importlib.util.find_spec("datasets"):
        del ways["stock"]
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        passages, rows = make_rows(folder, args.passages, args.length)
        start = make_start(scratch, "scratch", passages, folder / "start")
        batches = Batches(rows, args.batch, recipe.train.epochs, 0, max_steps=recipe.train.max_steps)
        given = trainers.arguments(recipe, folder / "states", batches, device)
        for _ in range(args.repeats):
            for way, function in ways.items():
                torch.manual_seed(0)
                model = dual_encoder(recipe, str(start), device)
                seconds[way].append(function(recipe, model, rows, given, batches))
        cost = products(model, rows, recipe)
    count = args.steps * args.batch
    result: dict[str, Any] = {
        "options": {key: value for key, value in vars(args).items() if key != "json"},
        "device": torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} threads",
        "precision": "bf16" if given["bf16"] else "fp32",
        "load_average": os.getloadavg()[0],
        "machine": platform.machine(),
        "versions": versions(),
        "rows_per_second": {way: [round(count / each, 2) for each in found] for way, found in seconds.items()},
    }
    median = {way: count / statistics.median(found) for way, found in seconds.items()}
    result["ratio"] = {way: round(median["ours"] / median[way], 3) for way in ways if way != "ours"}
    if cuda:
        rate = matrix_rate(device)
        result["matrix_tflops"] = round(rate / 1e12, 1)
        result["share_of_matrix_rate"] = {way: round(median[way] * cost / rate, 4) for way in ways}
    print(f"{result['device']}, {result['precision']}, batch {args.batch}, load {result['load_average']:.1f}")
    for way in ways:
        print(f"{way:<6}{median[way]:>10.1f} rows/s  {result['rows_per_second'][way]}")
    print("speed of ours / others:", result["ratio"])
    if cuda:
        print("share of the matrix rate:", result["share_of_matrix_rate"])
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
