"""Compare the speed of dual-encoder training with plain sentence-transformers training of the same model.

The model is a random BERT. Passages are random Chinese characters, with 4 negatives per positive. Three trainings take
turns, with the same precision and batch:

  ours     the trainer of `train`: texts are read by row number, batch by batch, from memory-mapped files
  stock    SentenceTransformerTrainer with a datasets.Dataset of all texts in memory (skipped without `datasets`)
  loop     a hand-written loop over texts in memory: preprocess, loss, backward, AdamW

Figures are rows per second. A row is a query with its positive and negatives. On a GPU, the output has the share of the
matrix rate: a training's operations per second, divided by those of large matrix products. A step has two forward
passes, because gradients are cached, and a backward pass.

Example:

  python benchmarks/train.py --layers 2 --hidden 128 --batch 32 --steps 10
  python benchmarks/train.py --layers 12 --hidden 768 --batch 256 --length 384 --json train.json
"""

import importlib.util
import logging
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import machine, matrix_rate, parser_of, write_json
from models import Clock, bert, forward_operations, lengths_of, random_texts, trainer_of, training_pairs
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss
from sentence_transformers.util import batch_to_device, dot_score
from transformers import PrinterCallback

from baselines.core.checkpoint import read_library_versions
from baselines.retrieve.hub_models import quiet_libraries
from baselines.train import trainers
from baselines.train.recipe import Recipe, read_recipe
from baselines.train.trained_models import dual_encoder
from baselines.train.training_rows import DualRows, TrainingBatches

_WARM_UP_STEPS = 3  # not measured
_COUNTED_ROWS = 200  # rows whose tokens are counted for the operations of a step
Training = Callable[[Recipe, DualRows, TrainingBatches, Path, Path, Clock], Any]  # returns the trained model


def ours(recipe: Recipe, rows: DualRows, batches: TrainingBatches, start: Path, states: Path, clock: Clock) -> Any:
    """Train with the trainer of `train`, and return the model."""
    trainer = trainer_of(recipe, rows, batches, start, states, clock.device)
    trainer.add_callback(clock)
    trainer.train()
    return trainer.model


def model_of(recipe: Recipe, start: Path, device: str) -> tuple[SentenceTransformer, Any]:
    """Return the model and the loss of the trainings stock and loop."""
    torch.manual_seed(0)
    model = dual_encoder(recipe, str(start), device)
    return model, CachedMultipleNegativesRankingLoss(model, recipe.train.scale, dot_score, recipe.train.mini_batch)


def tasks_of(rows: DualRows) -> dict[str, str]:
    """Return the task (query or document) of each column."""
    return {name: "query" if name == "query" else "document" for name in rows.column_names}


def stock(recipe: Recipe, rows: DualRows, batches: TrainingBatches, start: Path, states: Path, clock: Clock) -> Any:
    """Train with sentence-transformers' own trainer, and return the model."""
    from datasets import Dataset

    dataset = Dataset.from_list([rows[number] for number in range(len(rows))])
    model, loss = model_of(recipe, start, clock.device)
    options = trainers.training_arguments(recipe, states, batches, clock.device)
    options["max_steps"] = len(batches)
    options["router_mapping"] = tasks_of(rows)
    trainer = SentenceTransformerTrainer(
        model=model, args=Arguments(**options), train_dataset=dataset, loss=loss, callbacks=[clock]
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return model


def loop(recipe: Recipe, rows: DualRows, batches: TrainingBatches, start: Path, states: Path, clock: Clock) -> Any:
    """Train with a hand-written loop, and return the model."""
    all_rows = [rows[number] for number in range(len(rows))]
    tasks = tasks_of(rows)
    model, loss = model_of(recipe, start, clock.device)
    uses_bf16 = trainers.training_arguments(recipe, states, batches, clock.device)["bf16"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.train.learning_rate, fused=True)
    model.train()
    clock.on_train_begin()
    for batch in batches:
        # Row numbers continue from epoch to epoch.
        batch_rows = [all_rows[row_number % len(all_rows)] for row_number in batch]
        column_tokens = []
        for column, task in tasks.items():
            texts = [row[column] for row in batch_rows]
            column_tokens.append(model.preprocess(texts, task=task))
        with torch.autocast(model.device.type, torch.bfloat16, enabled=uses_bf16):
            loss([batch_to_device(tokens, model.device) for tokens in column_tokens], None).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        clock.on_step_end()
    return model


def rows_per_second(clock: Clock, batches: TrainingBatches) -> float:
    """Return the rows per second of a training after the warm-up. ``clock`` has the times of the training's steps."""
    measured_steps = len(clock.times) - 1 - _WARM_UP_STEPS  # the first time is the start of the training
    measured_seconds = clock.times[-1] - clock.times[_WARM_UP_STEPS]
    # TrainingBatches has smaller batches than --batch if there are fewer rows.
    return measured_steps * batches.batch / measured_seconds


def main() -> None:
    parser = parser_of(__doc__, "--repeats", "--json")
    parser.add_argument("--layers", type=int, default=2, help="layers of the model (default: 2)")
    parser.add_argument("--hidden", type=int, default=128, help="width of the model (default: 128)")
    parser.add_argument("--batch", type=int, default=32, help="rows per step, at most (default: 32)")
    parser.add_argument("--mini-batch", type=int, default=32, help="rows at once (default: 32)")
    parser.add_argument("--length", type=int, default=128, help="most characters and tokens per passage (default: 128)")
    parser.add_argument("--steps", type=int, default=12, help="measured steps (default: 12)")
    parser.add_argument("--passages", type=int, default=5_000, help="number of passages (default: 5000)")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="default: cuda if available")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    quiet_libraries()
    has_cuda = args.device != "cpu" and torch.cuda.is_available()
    device = "cuda:0" if has_cuda else "cpu"
    recipe_values = {
        "train.batch": args.batch,
        "train.mini_batch": args.mini_batch,
        "train.max_steps": args.steps + _WARM_UP_STEPS,
        "train.epochs": 1000,
        "train.saves": 0,
        "data.passage_length": args.length,
        "train.logs": 1,
    }
    recipe = read_recipe("de-bm25-neg-scratch", [f"{key}={value}" for key, value in recipe_values.items()])
    ways: dict[str, Training] = {"ours": ours, "stock": stock, "loop": loop}
    if not importlib.util.find_spec("datasets"):
        del ways["stock"]
    rates: dict[str, list[float]] = {way: [] for way in ways}
    figures = machine()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lengths = np.random.default_rng(0).integers(args.length // 2, args.length + 1, args.passages)
        rows = DualRows(*training_pairs(folder, random_texts(lengths)))
        start = bert(folder / "start", args.layers, args.hidden)
        batches = TrainingBatches(rows, args.batch, recipe.train.epochs, 0, max_steps=recipe.train.max_steps)
        # The trainings take turns, so that other load on the machine affects all of them.
        for _ in range(args.repeats):
            for way, train in ways.items():
                clock = Clock(device)
                model = train(recipe, rows, batches, start, folder / "states", clock)
                rates[way].append(rows_per_second(clock, batches))
        uses_bf16 = trainers.training_arguments(recipe, folder / "states", batches, device)["bf16"]
        text_lengths: list[int] = []
        for row_number in range(_COUNTED_ROWS):
            text_lengths += lengths_of(model, rows[row_number])

    medians = {way: statistics.median(way_rates) for way, way_rates in rates.items()}
    figures["versions"] = read_library_versions()
    figures["options"] = {key: value for key, value in vars(args).items() if key != "json"}
    figures["device"] = f"CPU, {torch.get_num_threads()} threads"
    if has_cuda:
        figures["device"] = torch.cuda.get_device_name()
    figures["precision"] = "bf16" if uses_bf16 else "fp32"
    figures["batch"] = batches.batch
    figures["rows_per_second"] = {}
    for way, way_rates in rates.items():
        figures["rows_per_second"][way] = [round(rate, 2) for rate in way_rates]
    figures["ratio"] = {way: round(medians["ours"] / medians[way], 3) for way in ways if way != "ours"}
    if has_cuda:
        peak_rate = matrix_rate(device, "bf16")
        # A step has two forward passes, and a backward pass that costs as much as two.
        operations_per_row = 4 * forward_operations(model, text_lengths) / _COUNTED_ROWS
        figures["matrix_tflops"] = round(peak_rate / 1e12, 1)
        figures["share_of_matrix_rate"] = {}
        for way in ways:
            figures["share_of_matrix_rate"][way] = round(medians[way] * operations_per_row / peak_rate, 4)
    print(f"{figures['device']}, {figures['precision']}, batch {batches.batch}, load {figures['load_before']}")
    for way in ways:
        print(f"{way:<6}{medians[way]:>10.1f} rows/s  {figures['rows_per_second'][way]}")
    print("speed of ours, relative to the other trainings:", figures["ratio"])
    if has_cuda:
        print("share of the matrix rate:", figures["share_of_matrix_rate"])
    write_json(args.json, figures)


if __name__ == "__main__":
    main()
