"""Train a model from a recipe (Section 3.1, Appendix A.2).

The model is a dual-encoder, a cross-encoder, or a masked language model. RECIPE is a name (baselines/recipes/NAME.toml)
or a path. Hard negatives come from `mine`. The checkpoint directory loads with plain SentenceTransformer(DIR) or
CrossEncoder(DIR); recipe.json, training.json and loss.png lie in it. States for taking up a killed training are kept in
DIR.training; the same command goes on from the last one and ends in the same bits (on one machine, on the CPU; graphics
cards sum in no fixed order). Several processes, with cross-batch negatives: torchrun --nproc-per-node N -m baselines
train ... A recipe that starts from another one's checkpoint finds it beside --out, or is given it with --start.

--set data.set=restrain-14K-interpolation (or another config that `builders add` made) trains on the questions
that were drawn alone; hard negatives of all training questions serve as they are.

question-matching learns from labelled pairs of questions in the place of a release (Section 2.3): tables with commas or
tabs, or JSON lines, gzipped or not, with columns text1, text2 and label, by these names or those that LCQMC, BQ and
AFQMC have. The columns of a table without names stand behind it: FILE:id,text1,text2,label. AUC, and the accuracy at
the paper's threshold of 0.5, on --dev-pairs or on a part that is held out, are printed and kept in training.json.

Example, from nothing:

  python -m baselines train mlm-scratch --release DIR --out build/models/mlm-scratch
  python -m baselines train de-bm25-neg-scratch --release DIR --negatives bm25.train.negatives.jsonl.gz \\
      --out build/models/de-bm25-neg-scratch --set train.epochs=3

Example, a question-matching model for `match`:

  python -m baselines train question-matching --pairs LCQMC/train.tsv BQ/train.tsv AFQMC/train.json \\
      --dev-pairs LCQMC/dev.tsv --out build/models/question-matching
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from baselines.train.recipe import names
from builders.core.errors import log
from builders.core.folders import work_beside


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help=f"a .toml file, or one of {', '.join(names())}")
    parser.add_argument("--release", type=Path, metavar="DIR", help="the release directory (but with --pairs)")
    parser.add_argument("--out", type=Path, required=True, metavar="CKPT", help="the checkpoint directory to write")
    parser.add_argument(
        "--pairs",
        nargs="+",
        default=[],
        metavar="FILE",
        help="labelled pairs of questions, for question-matching: tables or JSON lines with text1, text2, label",
    )
    parser.add_argument(
        "--dev-pairs", nargs="+", default=[], metavar="FILE", help="pairs to measure on (default: a part of --pairs)"
    )
    parser.add_argument(
        "--negatives",
        type=Path,
        action="append",
        default=[],
        metavar="F",
        help="hard negatives (what `mine` writes); several times: of some queries each",
    )
    parser.add_argument(
        "--dev-run", type=Path, metavar="RUN", help="a run of the dev queries: a cross-encoder's dev curve re-ranks it"
    )
    parser.add_argument(
        *("--start", "--start-from"),  # torchrun takes --start for an abbreviation of its own --start-method
        metavar="MODEL",
        help="a directory or a hub name in the place of the recipe's start (under torchrun write --start-from)",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a value of the recipe: train.batch=64"
    )
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="default: cuda where it is")
    parser.add_argument("--no-resume", action="store_true", help="start anew, over earlier states and checkpoints")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where unpacked collections are kept")


def run(args: argparse.Namespace) -> None:
    from baselines.train.order import read_order
    from baselines.train.processes import said_once
    from baselines.train.record import is_done

    with said_once():
        order = read_order(args)
        if order.resume and is_done(order):
            log.info("%s is this training's checkpoint already; --no-resume trains again", order.out)
            if order.first:
                with work_beside(order.out, wait=True):  # removes what a kill at the very end has left beside it
                    pass
            return
        if order.commit:  # asked for before the large libraries are loaded: what is wrong is said at once
            log.info("starts from %s, commit %s", order.start, order.commit)

        from baselines.train.training import train

        if training := train(order):
            print(json.dumps({"checkpoint": str(args.out), "steps": training["steps"], "dev": training["dev"][-1:]}))
