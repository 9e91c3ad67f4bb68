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

from baselines.core.passages import Passages
from baselines.retrieve.hub_models import quiet_libraries
from baselines.train.recipe import Recipe, read_recipe
from baselines.train.recipe_costs import architecture, tokens_of_row
from baselines.train.training_pairs import Pairs
from baselines.train.training_rows import Batches, CrossRows, DualRows
from builders.core.tables import text_table


def rows_per_second(recipe: Recipe, start: Path, pairs: Pairs, passages: Passages, states: Path, batches: int) -> float:
    """Load some batches of a recipe's training. Return the rows per processor second."""
    dual = recipe.model.kind == "dual"
    rows: Any = DualRows(pairs, passages, recipe.data.rows) if dual else CrossRows(pairs, passages)
    order = Batches(rows, recipe.train.batch, 1000, 0)
    loader = iter(trainer_of(recipe, rows, order, start, states, "cpu").get_train_dataloader())
    next(loader)
    begin = time.process_time()
    count = sum(1 for _ in islice(loader, batches))
    return count * order.batch_size / (time.process_time() - begin)


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
    about = machine("torch", "transformers", "sentence-transformers", "tokenizers", "numpy")
    figures: dict[str, Any] = {**about, "peak": args.peak, "cards": args.cards, "share": args.share, "recipes": {}}
    lines = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pairs, passages = training_pairs(folder, random_texts(random_lengths(args.passages, args.characters)))
        start = bert(folder / "start", 1, 8)  # the model is never run
        for recipe in map(read_recipe, args.recipes):
            measurements = (pairs, passages, folder / "states", args.batches)
            rates = [rows_per_second(recipe, start, *measurements) for _ in range(args.repeats)]
            rate = statistics.median(rates)
            model = architecture(recipe, {})
            assert model, f"{recipe.name}: the architecture of its starting checkpoint is unknown"
            wanted = args.cards * args.peak * 1e12 * args.share / (6 * model.in_layers * tokens_of_row(recipe))
            figures["recipes"][recipe.name] = {
                "rows_a_second_a_core": round(rate),
                "lowest_and_highest": [round(min(rates)), round(max(rates))],
                "rows_a_second_wanted": round(wanted),
                "cores_wanted": round(wanted / rate, 1),
            }
            numbers = (rate, min(rates), max(rates), wanted, wanted / rate)
            lines.append([recipe.name, *(f"{number:,.0f}" for number in numbers)])
    print(f"{about['cores']} cores, load {about['load_before']}, Python {about['python']}, {about['versions']}")
    head = ["recipe", "rows/s per core", "lowest", "highest", f"rows/s of {args.cards} GPUs", "cores needed"]
    print(text_table(head, lines))
    write_json(args.json, figures)


if __name__ == "__main__":
    main()
