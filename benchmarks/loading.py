"""Measure the training rows per second that one core prepares: it joins, tokenizes and pads texts, without a model.

The batches come from the trainers' data loaders. The passages are random Chinese texts in memory-mapped files. Their
lengths are log-normal, with --characters on average, like those of the training positives. Processor time of one thread
is measured, so that other programs on the machine have little influence. The output also shows the rows per second that
--cards consume at --share of their --peak (formula: baselines/reproduce/costs.py), and the cores needed for them.

Example:

  python benchmarks/loading.py --json loading.json
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from common import ROOT, machine, write_json

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # as in the loader's processes
sys.path.insert(0, str(ROOT / "tests"))

import numpy as np
import torch
from encode import CHARACTERS, random_texts
from releases import make_release, md5
from transformers import BertConfig, BertModel, BertTokenizer

from baselines.reproduce.costs import architecture, tokens_of_row
from baselines.retrieve.hub_models import quiet_libraries
from baselines.retrieve.passages import Passages, open_passages
from baselines.train import trainers
from baselines.train.data import Batches, CrossRows, DualRows, Pairs
from baselines.train.models import cross_encoder, dual_encoder
from baselines.train.recipe import read_recipe
from builders.core.tables import text_table
from builders.store.reader import open_release

_EACH = 4  # negatives per positive


def make_pairs(folder: Path, passages: int, characters: int) -> tuple[Pairs, Passages]:
    corpus = [{"_id": md5(text), "title": "", "text": text} for text in random_texts(passages, characters)]
    release = make_release(folder / "release", {("corpus", "corpus"): corpus}, rows_per_shard=50_000)
    opened = open_passages(open_release(release), keep=folder / "texts")
    rows = np.random.default_rng(0).permutation(passages // (1 + _EACH) * (1 + _EACH)).reshape(-1, 1 + _EACH)
    queries = random_texts(len(rows), 10)
    return Pairs(queries, np.arange(len(rows)), rows[:, 0], rows[:, 1:]), opened


def make_start(folder: Path) -> Path:
    """Create a minimal model, which is never run, with BERT's tokenizer and a vocabulary of Chinese characters."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *CHARACTERS]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    BertTokenizer(str(folder / "vocab.txt"), model_max_length=512).save_pretrained(folder)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)
    return folder


def seconds(name: str, start: Path, pairs: Pairs, passages: Passages, folder: Path, batches: int) -> tuple[float, int]:
    """Load some batches of a recipe's training. Return the processor seconds and the number of rows."""
    recipe = read_recipe(name)
    dual = recipe.model.kind == "dual"
    rows: Any = DualRows(pairs, passages, recipe.data.rows) if dual else CrossRows(pairs, passages)
    order = Batches(rows, recipe.train.batch, 1000, 0)
    given = trainers.arguments(recipe, folder / "states", order, "cpu")
    model = (dual_encoder if dual else cross_encoder)(recipe, str(start), "cpu")
    make = trainers.dual_trainer if dual else trainers.cross_trainer
    loader = iter(make(recipe, model, rows, order, given).get_train_dataloader())
    next(loader)
    begin = time.process_time()
    count = sum(1 for _ in islice(loader, batches))
    return time.process_time() - begin, count * order.batch_size


def flat(found: dict[str, Any]) -> list[float]:
    return [each for value in found.values() for each in (value if isinstance(value, list) else [value])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    recipes = ["de-bm25-neg", "ce-bm25-neg"]
    parser.add_argument("--recipes", nargs="+", default=recipes, help="default: de-bm25-neg ce-bm25-neg")
    parser.add_argument(
        "--characters", type=int, default=358, help="average length of a passage (default: 358, Table 3)"
    )
    parser.add_argument("--passages", type=int, default=10_000, help="number of passages (default: 10000)")
    parser.add_argument("--batches", type=int, default=4, help="batches per measurement (default: 4)")
    parser.add_argument("--repeats", type=int, default=5, help="measurements (default: 5)")
    parser.add_argument("--peak", type=float, default=989.0, help="TFLOPS of a GPU (default: 989, H100 in dense bf16)")
    parser.add_argument("--cards", type=int, default=8, help="number of GPUs (default: 8)")
    parser.add_argument("--share", type=float, default=0.4, help="share of the peak that a GPU reaches (default: 0.4)")
    parser.add_argument("--json", type=Path, help="file for the figures (default: no file)")
    args = parser.parse_args()
    quiet_libraries()
    torch.set_num_threads(1)
    about = machine("torch", "transformers", "sentence-transformers", "tokenizers", "numpy")
    result: dict[str, Any] = {**about, "peak": args.peak, "cards": args.cards, "share": args.share, "recipes": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pairs, passages = make_pairs(folder, args.passages, args.characters)
        start = make_start(folder / "start")
        for recipe in args.recipes:
            rates = []
            for _ in range(args.repeats):
                took, rows = seconds(recipe, start, pairs, passages, folder, args.batches)
                rates.append(rows / took)
            model = architecture(read_recipe(recipe), {})
            assert model, f"{recipe}: the architecture of its starting checkpoint is unknown"
            operations = 6 * model.in_layers * tokens_of_row(read_recipe(recipe))
            wanted = args.cards * args.peak * 1e12 * args.share / operations
            result["recipes"][recipe] = {
                "rows_a_second_a_core": round(statistics.median(rates)),
                "lowest_and_highest": [round(min(rates)), round(max(rates))],
                "rows_a_second_wanted": round(wanted),
                "cores_wanted": round(wanted / statistics.median(rates), 1),
            }
    print(f"{about['cores']} cores, load {about['load_before']}, Python {about['python']}, {about['versions']}")
    head = ["recipe", "rows/s per core", "lowest", "highest", f"rows/s of {args.cards} GPUs", "cores needed"]
    body = [[name, *(f"{number:,}" for number in flat(found))] for name, found in result["recipes"].items()]
    print(text_table(head, body))
    write_json(args.json, result)


if __name__ == "__main__":
    main()
