"""Convert the official Paddle parameters to PyTorch.

The official parameters are folders with one file for each parameter. The converted checkpoint loads without Paddle and
without this project. dual_params becomes a SentenceTransformer with two encoders. So does ernie_base_1.0_twin_CN, which
has ERNIE 1.0 twice. cross_params becomes a CrossEncoder whose score is the probability of class 1. ERNIE 1.0 alone
becomes a starting checkpoint. `encode`, `search`, `rerank`, `push` and `train --start` read the output.

The tokenizers of the dual-encoder and the cross-encoder produce the tokens of the official code: spaces are removed,
and the dual-encoder's passages begin with an empty title. A query has at most 32 tokens. A passage or a pair has at
most 384. A file that is missing, damaged or unknown, or has a wrong shape, is an error. Pre-training heads and
optimizer states are skipped.

Example with unpacked archives:

  python -m baselines convert --params dual_params --config ernie_config.json --vocab vocab.txt --out build/official-de
  python -m baselines search --release DIR --split dev --model build/official-de --passages EMBEDDINGS --out RUN
"""

import argparse
from pathlib import Path

from baselines.core.checkpoint import RECIPE, TRAINING, versions, write_json
from builders.core.folders import check_output, replace_directory, work_beside


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--params", type=Path, required=True, metavar="DIR", help="unpacked folder of parameters")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="ERNIE's ernie_config.json")
    parser.add_argument("--vocab", type=Path, required=True, metavar="FILE", help="ERNIE's vocab.txt")
    parser.add_argument("--out", type=Path, required=True, metavar="CKPT", help="the checkpoint directory to write")


def run(args: argparse.Namespace) -> None:
    from baselines.hub.model_card import finish_checkpoint
    from baselines.hub.paddle import read_official, write_model

    out = check_output(args.out, "a checkpoint", RECIPE)
    official, name = read_official(args.params, args.config, args.vocab), args.params.resolve().name
    with work_beside(out) as work:
        write_model(work, official)
        write_json(work / RECIPE, {"name": name, "model": {"kind": official.kind}})
        converted = {"from": name, "sha256": official.sources}
        write_json(work / TRAINING, {"converted": converted, "versions": versions()})
        finish_checkpoint(work, out.name)
        replace_directory(work, out)
    print(args.out)
