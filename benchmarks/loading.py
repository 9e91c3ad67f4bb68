"""Measure the training rows per second that one core prepares: it joins, tokenizes and pads texts, without a model.

The batches come from the trainers' data loaders. The passages are random Chinese texts in memory-mapped files. Their
lengths are log-normal, with --characters on average. The processor time of one thread is measured, so that other
programs on the machine have little influence.

The output also has the rows per second that --cards GPUs process if each GPU reaches --share of its --peak, and the
number of cores that prepare these rows. The operations of a row come from baselines/train/recipe_costs.py.

Example:

  python benchmarks/loading.py --json loading.json
"""

import os
import statistics
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from common import machine, parser_of, write_json

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # as in the loader's processes

import torch
from models import bert, random_lengths, random_texts, trainer_of, training_pairs

from baselines.core.passages import CachedPassages
from baselines.retrieve.hub_models import quiet_libraries
from baselines.train.recipe import Recipe, read_recipe
from baselines.train.recipe_costs import starting_architecture, tokens_of_row
from baselines.train.training_pairs import PairRows
from baselines.train.training_rows import CrossRows, DualRows, TrainingBatches
from builders.core.tables import text_table

_EPOCHS = 1000  # more than any measurement needs
_OPERATIONS_PER_WEIGHT = 6  # of a token: 2 in the forward pass and 4 in the backward pass


def rows_per_second(
    recipe: Recipe, start: Path, pairs: PairRows, passages: CachedPassages, states: Path, batches: int
) -> float:
    """Load ``batches`` batches of a recipe's training. Return the rows per processor second.

    ``start`` is the folder of the starting checkpoint, and ``states`` the folder for the trainer's states.
    """
    is_dual = recipe.model.kind == "dual"
    rows: Any = DualRows(pairs, passages, recipe.data.rows) if is_dual else CrossRows(pairs, passages)
    row_order = TrainingBatches(rows, recipe.train.batch, _EPOCHS, 0)
    trainer = trainer_of(recipe, rows, row_order, start, states, "cpu")
    loader = iter(trainer.get_train_dataloader())
    next(loader)  # warm-up
    start_time = time.process_time()
    batch_count = sum(1 for _ in islice(loader, batches))
    return batch_count * row_order.batch_size / (time.process_time() - start_time)


def main() -> None:
    parser = parser_of(__doc__, "--repeats", "--json")
    recipes = ["de-bm25-neg", "ce-bm25-neg"]
    parser.add_argument("--recipes", nargs="+", default=recipes, help="default: de-bm25-neg ce-bm25-neg")
    length = "average length of a passage (default: 358, the value of the paper's Table 3)"
    parser.add_argument("--characters", type=int, default=358, help=length)
    parser.add_argument("--passages", type=int, default=10_000, help="number of passages (default: 10000)")
    parser.add_argument("--batches", type=int, default=4, help="batches per measurement (default: 4)")
    parser.add_argument("--peak", type=float, default=989.0, help="TFLOPS of a GPU (default: 989, H100 in dense bf16)")
    parser.add_argument("--cards", type=int, default=8, help="number of GPUs (default: 8)")
    parser.add_argument("--share", type=float, default=0.4, help="share of the peak that a GPU reaches (default: 0.4)")
    args = parser.parse_args()
    quiet_libraries()
    torch.set_num_threads(1)
    figures = machine("torch", "transformers", "sentence-transformers", "tokenizers", "numpy")
    print(f"{figures['cores']} cores, load {figures['load_before']}, Python {figures['python']}, {figures['versions']}")
    recipe_figures: dict[str, Any] = {}
    table_rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pairs, passages = training_pairs(folder, random_texts(random_lengths(args.passages, args.characters)))
        start = bert(folder / "start", 1, 8)  # the model is never run
        for recipe in map(read_recipe, args.recipes):
            rates = []
            for _ in range(args.repeats):
                rates.append(rows_per_second(recipe, start, pairs, passages, folder / "states", args.batches))
            rate = statistics.median(rates)

            # The rows that the GPUs can process, and the cores that prepare these rows.
            model = starting_architecture(recipe, {})
            assert model, f"{recipe.name}: the architecture of its starting checkpoint is unknown"
            gpu_operations = args.cards * args.peak * 1e12 * args.share
            gpu_rate = gpu_operations / (_OPERATIONS_PER_WEIGHT * model.in_layers * tokens_of_row(recipe))
            core_count = gpu_rate / rate
            recipe_figures[recipe.name] = {
                "rows_a_second_a_core": round(rate),
                "lowest_and_highest": [round(min(rates)), round(max(rates))],
                "rows_a_second_wanted": round(gpu_rate),
                "cores_wanted": round(core_count, 1),
            }
            numbers = (rate, min(rates), max(rates), gpu_rate, core_count)
            table_rows.append([recipe.name] + [f"{number:,.0f}" for number in numbers])
    columns = ["recipe", "rows/s per core", "lowest", "highest", f"rows/s of {args.cards} GPUs", "cores needed"]
    print(text_table(columns, table_rows))
    figures["peak"] = args.peak
    figures["cards"] = args.cards
    figures["share"] = args.share
    figures["recipes"] = recipe_figures
    write_json(args.json, figures)


if __name__ == "__main__":
    main()
